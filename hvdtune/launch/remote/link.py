"""The TCP connection on which a task exchanges frames with the program that started the job.

A task is one of Spark's, or a process that calls a function. It and the program prove to each other
that they know the job's key, which is not sent. Then the task says which one it is, and they
exchange frames of `hvdtune.launch.remote.frames`.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hvdtune.launch.remote.frames import Frame, FrameError, FrameReader, Kind, encode

_NONCE = 32
_PROOF = hashlib.sha256().digest_size
_PATIENCE = 10.0  # seconds for a stranger to prove that it knows the key
_TRY = 3.0  # for one address, seconds
_SILENCE = 60  # seconds
_WELCOME, _REFUSED = b"+", b"-"


def _proof(key: str, who: bytes, nonces: bytes) -> bytes:
    return hmac.new(bytes.fromhex(key), who + nonces, hashlib.sha256).digest()


def _receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise OSError("the connection has ended")
        data += more
    return data


def _introduce(connection: socket.socket, key: str) -> None:
    """Prove a task's knowledge of the key, and demand the program's. Raises OSError if it fails."""
    own = os.urandom(_NONCE)
    nonces = _receive(connection, _NONCE) + own
    connection.sendall(own + _proof(key, b"task", nonces))
    if not hmac.compare_digest(_receive(connection, _PROOF), _proof(key, b"program", nonces)):
        raise OSError("somebody else answers there")


class Peer:
    """A connection to a task, for sending to it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._lock.acquire()  # until the task has been welcomed

    def welcome(self) -> None:
        """Tell the task to continue."""
        try:
            self._connection.sendall(_WELCOME)
        finally:  # if the task is gone, nobody may wait to send to it
            self._lock.release()

    def send(self, kind: Kind, number: int, payload: bytes) -> None:
        """Send a frame; if the task is gone, it is dropped."""
        with self._lock, contextlib.suppress(OSError):
            self._connection.sendall(encode(kind, number, payload))


class Listener:
    """The program's end of the connections.

    `join(task, facts, peer)` is called for each task and may refuse it; `facts` is what the task
    says of itself (Spark's: a PlacedProcess as a dictionary). Then `take(task, frame)` gets the
    task's frames, and `leave(task)` is called when its connection has ended. Threads of this class
    call them, one per task.
    """

    def __init__(
        self,
        key: str,
        join: Callable[[int, dict[str, Any], Peer], bool],
        take: Callable[[int, Frame], None],
        leave: Callable[[int], None],
    ) -> None:
        self._key = key
        self._join, self._take, self._leave = join, take, leave
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        self._socket = socket.create_server(("", 0), family=family, dualstack_ipv6=dual)
        self.port: int = self._socket.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False
        self._start(self._accept)

    def close(self) -> None:
        """End all connections and threads."""
        with self._lock:
            self._closed = True
            for each in (self._socket, *self._open):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._socket.close()

    def _start(self, work: Callable[..., None], *args: socket.socket) -> None:
        thread = threading.Thread(target=work, args=args, name="hvdtune-link", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(0.1)  # too many files are open, or the task has gone again
                continue
            with self._lock:
                if self._closed:
                    connection.close()
                    return
                self._open.add(connection)
                self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, FrameError, ValueError, KeyError):
            self._converse(connection)
        with self._lock:
            self._open.discard(connection)

    def _converse(self, connection: socket.socket) -> None:
        connection.settimeout(_PATIENCE)
        nonce = os.urandom(_NONCE)
        connection.sendall(nonce)
        nonces = nonce + _receive(connection, _NONCE)
        proof = _receive(connection, _PROOF)
        if not hmac.compare_digest(proof, _proof(self._key, b"task", nonces)):
            return
        connection.sendall(_proof(self._key, b"program", nonces))
        reader = FrameReader()
        task = None
        try:
            while data := connection.recv(65536):
                for frame in reader.feed(data):
                    if task is not None:
                        self._take(task, frame)
                    elif frame.kind == Kind.START:
                        peer = Peer(connection)
                        if not self._join(frame.number, json.loads(frame.payload), peer):
                            connection.sendall(_REFUSED)
                            return
                        task = frame.number
                        peer.welcome()
                        connection.settimeout(None)
        finally:
            if task is not None:
                self._leave(task)


class Link:
    """A task's end of the connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    @classmethod
    def open(
        cls, addresses: Sequence[str], port: int, key: str, task: int, facts: Mapping[str, Any]
    ) -> Link | None:
        """Connect at the first address that answers; None if none does.

        Raises RuntimeError if the program refuses this task: it has been started before.
        """
        for address in addresses:
            try:
                connection = socket.create_connection((address, port), timeout=_TRY)
            except OSError:
                continue
            try:
                connection.settimeout(_PATIENCE)
                _introduce(connection, key)
                connection.sendall(encode(Kind.START, task, json.dumps(facts).encode()))
                answer = _receive(connection, 1)
            except OSError:
                connection.close()
                continue
            if answer != _WELCOME:
                connection.close()
                raise RuntimeError(f"task {task} has been started before: nothing is run twice")
            connection.settimeout(None)
            # Networks forget connections that are silent for long.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENCE)
            return cls(connection)
        return None

    def send(self, kind: Kind, rank: int, payload: bytes) -> None:
        """Send a frame; if the program is gone, it is dropped."""
        with contextlib.suppress(OSError):
            self._connection.sendall(encode(kind, rank, payload))

    def frames(self) -> Iterator[Frame]:
        """The program's frames, until it closes its end of the connection."""
        reader = FrameReader()
        with contextlib.suppress(OSError, FrameError):
            while data := self._connection.recv(65536):
                yield from reader.feed(data)

    def close(self) -> None:
        """End the connection."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
