"""The messages between an elastic job's driver and its processes: JSON objects, one per line.

A process connects to `DRIVER`. Before anything else both prove that they know the job's secret:

    driver   {"kind": "challenge", "nonce": …}
    process  {"kind": "hello", "id": …, "pid": …, "nonce": …, "proof": …}
    driver   {"kind": "welcome", "proof": …}

A process connects only once. A second hello with its "id", such as from a child with its
environment, is answered with {"kind": "refused", "pid": …} and the pid of the first.

Then the process may say, at any time:

    ready     it wants a place: "generation" is the last it was in (0: none), "reason" one of
              `START`, `FAILURE`, `INTERRUPT`, "why" a sentence for people; "function" names the
              elastic function that it is in, "" before the first
    joined    the processes of "generation" have come together
    begun     it has a place, and begins the elastic function "function"
    synchronised  for the first time: it has the job's state
    finished  the elastic function has returned; the process will end, or say `begun`
    beat      it lives; sent by a thread that needs no GIL, every `BEAT_SECONDS`
    lateness  rank 0's answer to `measure`: which ranks are late in "generation" (see `lateness`)

and the driver:

    place     "generation"; "environment": the variables of its place; "newcomers": the ranks that
              were not in the generation before; "synchronise": whether states may differ
    prepare   the job runs already: the process gets its place when it asks in its elastic function
    cancel    "generation" will not come together, or has ended: ask again; "why", if given, is a
              sentence for people, without its full stop
    news      "number" grows; "change" is a HostUpdateResult
    leave     the job goes on without this process, which ends with exit code 0, with "why"
    measure   to rank 0: say `lateness`
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

#: In a process's environment: where the driver listens, "ADDRESS:PORT", and the process's id.
DRIVER = "HVDTUNE_ELASTIC_DRIVER"
IDENTITY = "HVDTUNE_ELASTIC_ID"

BEAT_SECONDS = 1.0

START, FAILURE, INTERRUPT = "start", "failure", "interrupt"

_MOST = 2**20  # bytes of a line

Message = dict[str, Any]


def encode(kind: str, **fields: Any) -> bytes:
    """A message as a line."""
    line = json.dumps({"kind": kind, **fields}, separators=(",", ":")).encode() + b"\n"
    assert len(line) <= _MOST
    return line


class Reader:
    """Makes messages from a stream of bytes, in whatever pieces it arrives."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> Iterator[Message]:
        """Take the next bytes; return the messages that are now complete.

        Raises ValueError for a line that is too long or not a message.
        """
        *lines, self._data = (self._data + data).split(b"\n")
        if max(map(len, (*lines, self._data))) > _MOST:
            raise ValueError("a line that is too long")
        for line in lines:
            message = json.loads(line)
            if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
                raise ValueError("a line that is no message")
            yield message


def proof(secret: str, who: str, identity: str, nonces: tuple[str, str]) -> str:
    """A text that only the holders of the secret can compute.

    `who` is "driver" or "process"; `nonces` are the driver's and the process's.
    """
    import hashlib  # only here and below: it loads OpenSSL
    import hmac

    text = "\n".join((who, identity, *nonces))
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()


def is_proof(given: object, expected: str) -> bool:
    """Compares in constant time."""
    import hmac

    return isinstance(given, str) and hmac.compare_digest(given.encode(), expected.encode())
