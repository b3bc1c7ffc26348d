"""A process of an elastic job without an engine: it says what the driver is to hear.

It prints a line "GENERATION RANK SIZE HOST START_RANK" for each place, trains until the driver
cancels the generation or has news, and ends when it is told to leave. Words after the script's name
change that: see `main`.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import time

from hvdtune.core.driver import messages

START_RANK = os.environ["HOROVOD_RANK"]
PLACES = ("RANK", "SIZE", "HOSTNAME")


class Member:
    """The connection to the driver, and what it has said."""

    def __init__(self) -> None:
        host, _, port = os.environ[messages.DRIVER].rpartition(":")
        self.socket = socket.create_connection((host.strip("[]"), int(port)))
        self.reader, self.heard = messages.Reader(), []
        self.identity, secret = os.environ[messages.IDENTITY], os.environ["HVDTUNE_SECRET"]
        nonces = self.next()["nonce"], "mine"
        proof = messages.proof(secret, "process", self.identity, nonces)
        self.say("hello", id=self.identity, pid=os.getpid(), nonce="mine", proof=proof)
        expected = messages.proof(secret, "driver", self.identity, nonces)
        assert messages.is_proof(self.next()["proof"], expected)

    def say(self, kind: str, **fields: object) -> None:
        self.socket.sendall(messages.encode(kind, **fields))

    def next(self, seconds: float | None = None) -> dict | None:
        """The next message, which is waited for so long; meanwhile this process beats."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self.heard:
            left = 0.5 if deadline is None else min(0.5, deadline - time.monotonic())
            if left < 0:
                return None
            if select.select([self.socket], [], [], left)[0]:
                data = self.socket.recv(65536)
                if not data:
                    raise SystemExit("the driver has gone")
                self.heard += self.reader.feed(data)
            elif hasattr(self, "identity"):
                self.say("beat")
        return self.heard.pop(0)


def main() -> None:
    """Words are JSON objects: {"at": [generation, start rank], "do": …, "seconds": …}.

    "do" is code that is run in that generation after so many seconds; a generation without any
    lasts until the driver ends it.
    """
    plans = [json.loads(word) for word in sys.argv[1:]]
    member = Member()
    generation, reason, function = 0, messages.START, ""
    while True:
        while True:
            member.say(
                "ready", generation=generation, reason=reason, why="a test", function=function
            )
            message = member.next()
            while message["kind"] not in ("leave", "place", "prepare"):
                message = member.next()
            function = "main"
            if message["kind"] == "leave":
                return
            if message["kind"] == "place":
                break
        generation = message["generation"]
        place = [message["environment"][f"HOROVOD_{name}"] for name in PLACES]
        print("place", generation, *place, START_RANK, "pid", os.getpid(), flush=True)
        member.say("joined", generation=generation)
        member.say("begun", function=function)
        plan = next((p for p in plans if p["at"] in ([generation, int(START_RANK)], None)), None)
        reason = ""
        deadline = time.monotonic() + plan.get("seconds", 0) if plan else None
        while not reason:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            message = member.next(left)
            if message is None:
                deadline = None
                exec(plan["do"], {**globals(), "member": member, "generation": generation})
            elif message["kind"] == "cancel" and message["generation"] == generation:
                reason = messages.FAILURE
            elif message["kind"] == "news":
                reason = messages.INTERRUPT
            elif message["kind"] == "leave":
                return


if __name__ == "__main__":
    main()
