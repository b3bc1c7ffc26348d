"""The messages between launcher and agent, and on a `link`: frames of (kind, number, bytes).

A frame is a header (length of the payload: 4 bytes; kind: 1 byte; the worker's number in the job:
4 bytes; big-endian) and its payload. A login shell may print something before the agent runs, so
the agent's output begins with `MARK`, and everything before it is ignored.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import NamedTuple

MARK = b"\0hvdtune agent 1\n"
LONGEST = 16 * 2**20  # bytes of a payload; an environment is at most a few MiB
_MOST_NOISE = 2**20
_HEADER = struct.Struct(">IBI")


class Kind(enum.IntEnum):
    """The meaning of a frame."""

    START = 1  # to the agent, at first and later: JSON, what to start (see `remote.agent`)
    SIGNAL = 2  # to the agent: send the worker the signal whose number is the payload's text
    SIGNAL_GROUP = 3  # the same for the worker's process group
    STARTED = 4  # from the agent: the worker runs; its pid
    STDOUT = 5  # the worker's output
    STDERR = 6
    EXIT = 7  # it has ended: its exit code, or -N for signal N. All its output has been sent
    NOT_STARTED = 8  # "126 …" or "127 …": exit status, and why
    ALIVE = 9  # from the agent, now and then: if nobody reads it, the connection ends
    FACTS = 10  # from an agent that serves, as its first frame: JSON (see `remote.identity.facts`)
    RESULT = 11  # from a task: a part of its function's result
    CALL = 12  # from a task: it asks for the function; to it: a part of that, at last an empty one
    TAKEN = 13  # to a task: its result is complete


class Frame(NamedTuple):
    """One message; `number` is the worker it concerns."""

    kind: Kind
    number: int
    payload: bytes


class FrameError(ValueError):
    """The data that arrived is not a sequence of frames."""


def encode(kind: Kind, number: int, payload: bytes = b"") -> bytes:
    """A frame as bytes."""
    assert len(payload) <= LONGEST
    return _HEADER.pack(len(payload), kind, number) + payload


class FrameReader:
    """Makes frames from a stream of bytes, in whatever pieces it arrives.

    With `after_mark`, everything up to the first `MARK` is skipped.
    """

    def __init__(self, *, after_mark: bool = False) -> None:
        self._waits_for_mark = after_mark
        self._data = b""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take the next bytes; return the frames that are now complete.

        Raises `FrameError` for a frame that is too long or of no known kind, and if the mark is
        missing.
        """
        self._data += data
        if self._waits_for_mark and not self._find_mark():
            return
        while len(self._data) >= _HEADER.size:
            length, kind, number = _HEADER.unpack_from(self._data)
            if length > LONGEST or kind not in Kind._value2member_map_:
                raise FrameError(f"a frame of kind {kind} and {length} bytes")
            end = _HEADER.size + length
            if len(self._data) < end:
                return
            payload, self._data = self._data[_HEADER.size : end], self._data[end:]
            yield Frame(Kind(kind), number, payload)

    def _find_mark(self) -> bool:
        place = self._data.find(MARK)
        if place >= 0:
            self._data = self._data[place + len(MARK) :]
            self._waits_for_mark = False
            return True
        if len(self._data) > _MOST_NOISE:
            raise FrameError("no mark")
        return False
