"""How a call and its results travel if the workers share no open files with the caller.

That is so on other hosts and under mpirun. Each worker connects to the caller with a `Link`, asks
for the call, and sends its rank's result.
"""

from __future__ import annotations

import io
import os
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from hvdtune.core.meeting.addresses import addresses_of, reachable
from hvdtune.launch.remote.frames import Frame, Kind
from hvdtune.launch.remote.link import Link, Listener, Peer

#: The variable with the key that admits workers.
KEY = "HVDTUNE_FUNCTION_KEY"
_PIECE = 2**20  # bytes of a frame


def addresses(interfaces: Sequence[str]) -> list[str]:
    """Where workers may reach this host: by the named interfaces if it has one, else by any."""
    own = addresses_of(interfaces) or reachable()
    return list(own.values()) or ["127.0.0.1"]


class Exchange:
    """The caller's end: gives every worker the call, and writes results to their ranks' files.

    In an elastic job several processes may have had a rank; the last complete result counts.
    """

    def __init__(self, call: IO[bytes], results: Sequence[IO[bytes]]) -> None:
        self.key = secrets.token_hex(32)
        self._call, self._results = call, results
        self._lock = threading.Lock()
        self._peers: dict[int, Peer] = {}
        self._pieces: dict[int, list[bytes]] = {}  # of a worker's result
        self._listener = Listener(self.key, self._join, self._take, self._leave)
        self.port = self._listener.port

    def close(self) -> None:
        """End all connections. Results that are not complete by now are lost."""
        self._listener.close()

    def _join(self, worker: int, _facts: Mapping[str, Any], peer: Peer) -> bool:
        with self._lock:
            return self._peers.setdefault(worker, peer) is peer

    def _leave(self, worker: int) -> None:
        with self._lock:
            del self._peers[worker]
            self._pieces.pop(worker, None)

    def _take(self, worker: int, frame: Frame) -> None:
        peer, rank = self._peers[worker], frame.number
        if frame.kind == Kind.CALL:
            place = 0
            while piece := os.pread(self._call.fileno(), _PIECE, place):
                peer.send(Kind.CALL, rank, piece)
                place += len(piece)
            peer.send(Kind.CALL, rank, b"")
        elif frame.kind == Kind.RESULT and frame.payload:
            self._pieces.setdefault(worker, []).append(frame.payload)
        elif frame.kind == Kind.RESULT:
            with self._lock:
                pieces = self._pieces.pop(worker, [])
                if rank < len(self._results):  # in an elastic job, others are not needed
                    self._store(self._results[rank], pieces)
            peer.send(Kind.TAKEN, rank, b"")

    def _store(self, file: IO[bytes], pieces: Sequence[bytes]) -> None:
        file.seek(0)
        file.truncate()
        file.writelines(pieces)
        file.flush()


class Worker:
    """A worker's end."""

    def __init__(self, port: int, addresses: Sequence[str], key: str) -> None:
        """Connect to the caller. Raises OSError if no address answers."""
        self._number = secrets.randbits(32)
        link = Link.open(addresses, port, key, self._number, {})
        if link is None:
            raise OSError(f"the caller of run() answers at none of {', '.join(addresses)}:{port}")
        self._link = link
        self._frames = link.frames()

    def call(self) -> IO[bytes]:
        """The pickled call. Raises OSError if the caller is gone."""
        self._link.send(Kind.CALL, 0, b"")
        return io.BytesIO(b"".join(self._until(Kind.CALL)))

    def send(self, rank: int, result: bytes) -> None:
        """Send a rank's pickled result. Raises OSError if the caller does not have it."""
        for piece in _pieces(result):
            self._link.send(Kind.RESULT, rank, piece)
        list(self._until(Kind.TAKEN))

    def close(self) -> None:
        """End the connection."""
        self._link.close()

    def _until(self, kind: Kind) -> Iterator[bytes]:
        """The caller's next frames of a kind, up to an empty one."""
        for frame in self._frames:
            if frame.kind == kind and not frame.payload:
                return
            yield frame.payload
        raise OSError("the connection to the caller of run() has ended")


def _pieces(data: bytes) -> Iterator[bytes]:
    """Parts of the data, and an empty one at the end."""
    for start in range(0, len(data), _PIECE):
        yield data[start : start + _PIECE]
    yield b""
