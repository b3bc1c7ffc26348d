"""A driver of elastic jobs that does what a test says, for processes and for connections alone."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from hvdtune.core.driver import messages

TIMEOUT = 60.0

Message = dict[str, Any]


def place_variables(rank: int, size: int) -> dict[str, str]:
    """The environment's variables of a place, all on one host."""
    return {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(size),
        "HOROVOD_LOCAL_RANK": str(rank),
        "HOROVOD_LOCAL_SIZE": str(size),
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_HOSTNAME": "localhost",
    }


class ElasticDriver:
    """Listens, lets in who knows the secret, and keeps what each process says.

    A context manager; leaving it closes all connections.
    """

    def __init__(self, secret: str | None = None) -> None:
        self.secret = secrets.token_hex(16) if secret is None else secret
        self.job = secrets.token_hex(6)
        self.beats: dict[str, int] = {}
        self.ended: set[str] = set()  # whose connection has ended
        self._said: list[tuple[str, Message]] = []
        self._changed = threading.Condition()
        self._clients: dict[str, socket.socket] = {}
        self._pids: dict[str, int] = {}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> ElasticDriver:
        return self

    def __exit__(self, *exception: object) -> None:
        # Closing alone would not wake the thread that accepts.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for client in list(self._clients.values()):
            client.close()

    def environment(self, identity: str) -> dict[str, str]:
        """What a process gets to find this driver."""
        return {
            messages.DRIVER: self.address,
            messages.IDENTITY: identity,
            "HVDTUNE_SECRET": self.secret,
            "HVDTUNE_JOB_ID": self.job,
            "HOROVOD_ELASTIC": "1",
        }

    # ---- what the driver says ----

    def send(self, identity: str, kind: str, **fields: Any) -> None:
        """A message to one process."""
        self._clients[identity].sendall(messages.encode(kind, **fields))

    def drop(self, identity: str) -> None:
        """End the connection to one process."""
        self._clients[identity].shutdown(socket.SHUT_RDWR)

    def place(
        self,
        generation: int,
        members: Sequence[str],
        newcomers: Sequence[str] = (),
        synchronise: bool = True,
        **environment: str | None,
    ) -> None:
        """Give ``members``, in the order of their ranks, places on one host."""
        for rank, identity in enumerate(members):
            place = {
                **place_variables(rank, len(members)),
                "HVDTUNE_JOB_ID": f"{self.job}-{generation}",
                **environment,
            }
            with contextlib.suppress(OSError):  # it may have died
                self.send(
                    identity, "place", generation=generation, environment=place,
                    newcomers=[members.index(new) for new in newcomers], synchronise=synchronise,
                )  # fmt: skip

    # ---- what the processes say ----

    def wait_for(
        self, kind: str, *identities: str, timeout: float = TIMEOUT, **fields: Any
    ) -> list[Message]:
        """The next message of this kind, and with these fields, of each; taken out."""
        deadline = time.monotonic() + timeout
        return [self._next(kind, identity, fields, deadline) for identity in identities]

    def said(self, kind: str) -> list[tuple[str, Message]]:
        """All messages of a kind that nobody has taken."""
        with self._changed:
            return [(who, message) for who, message in self._said if message["kind"] == kind]

    def _next(self, kind: str, who: str, fields: Message, deadline: float) -> Message:
        with self._changed:
            while True:
                for number, (identity, message) in enumerate(self._said):
                    given = {name: message.get(name) for name in fields}
                    if (identity, message["kind"], given) == (who, kind, fields):
                        return self._said.pop(number)[1]
                left = deadline - time.monotonic()
                assert left > 0, f"{who} did not say {kind} {fields}; there is {self._said}"
                assert who not in self.ended, f"{who} ended without {kind} {fields}: {self._said}"
                self._changed.wait(left)

    # ---- connections ----

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        identity = ""
        with contextlib.suppress(OSError), client:
            heard = self._messages(client)
            nonce = secrets.token_hex(16)
            client.sendall(messages.encode("challenge", nonce=nonce))
            hello = next(heard, None)
            if hello is None:
                return
            nonces = nonce, hello["nonce"]
            expected = messages.proof(self.secret, "process", hello["id"], nonces)
            if not messages.is_proof(hello["proof"], expected):
                return
            with self._changed:
                if first := self._pids.get(hello["id"]):
                    client.sendall(messages.encode("refused", pid=first))
                    return
                identity = hello["id"]
                self._clients[identity], self._pids[identity] = client, hello["pid"]
            own = messages.proof(self.secret, "driver", identity, nonces)
            client.sendall(messages.encode("welcome", proof=own))
            for message in heard:
                with self._changed:
                    if message["kind"] == "beat":
                        self.beats[identity] = self.beats.get(identity, 0) + 1
                    else:
                        self._said.append((identity, message))
                    self._changed.notify_all()
        with self._changed:
            self.ended.add(identity)  # "": of a stranger
            self._changed.notify_all()

    @staticmethod
    def _messages(client: socket.socket) -> Iterator[Message]:
        reader = messages.Reader()
        while data := client.recv(65536):
            yield from reader.feed(data)
