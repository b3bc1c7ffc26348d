"""The driver's connections to its job's processes: their identities, messages and silence.

A client that connects has some seconds to prove that it knows the job's secret. Until then the
driver keeps only a few bytes of it and waits for nothing. See `hvdtune.core.driver.messages`.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import secrets
import selectors
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from hvdtune.core.driver import messages
from hvdtune.core.driver.messages import Message

INTRODUCTION_SECONDS = 10.0
# At a time; one more, and the oldest connection is dropped.
_MOST_STRANGERS = 256
_MOST_OF_STRANGERS = 4096  # bytes
# Unsent bytes to a process.
_MOST_UNSENT = 2**20
_UNANSWERED_MS = 20_000

Hear = Callable[[str, Message], None]


class _Peer:
    """One connection; `identity` is "" until the other end has proved it."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.nonce = secrets.token_hex(16)
        self.identity = ""
        self.reader = messages.Reader()
        self.unsent = bytearray()
        self.received = 0
        self.until = time.monotonic() + INTRODUCTION_SECONDS


class Control:
    """Serves the connections in `selector`, whose keys' data are called when they are ready.

    `hear` is called with a process's identity and message, once `expect` has announced the process.
    """

    def __init__(self, selector: selectors.BaseSelector, secret: str, hear: Hear) -> None:
        self._selector = selector
        self._secret = secret
        self._hear = hear
        self._listeners: list[socket.socket] = []
        self._strangers: list[_Peer] = []  # the oldest first
        self._peers: dict[str, _Peer] = {}  # by identity
        self._expected: dict[str, int] = {}  # by identity, the process's pid; 0: not connected yet
        self._heard_at: dict[str, float] = {}

    def listen(self, address: str) -> int:
        """Accept connections at an address of this host, "" for all; return the port.

        Raises OSError if that is impossible.
        """
        if address:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            listener = socket.create_server((address, 0), family=family, backlog=512)
        elif socket.has_dualstack_ipv6():
            listener = socket.create_server(
                ("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=512
            )
        else:
            listener = socket.create_server(("", 0), backlog=512)
        listener.setblocking(False)
        self._listeners.append(listener)
        self._selector.register(listener, selectors.EVENT_READ, partial(self._accept, listener))
        return int(listener.getsockname()[1])

    def expect(self, identity: str) -> None:
        """A process with this identity may connect."""
        self._expected[identity] = 0

    def forget(self, identity: str) -> None:
        """The process with this identity has ended."""
        self._expected.pop(identity, None)
        self._heard_at.pop(identity, None)
        peer = self._peers.pop(identity, None)
        if peer is not None:
            self._close(peer)

    def send(self, identity: str, kind: str, **fields: Any) -> None:
        """Tell a process something; does nothing if it is no longer connected."""
        peer = self._peers.get(identity)
        if peer is not None:
            peer.unsent += messages.encode(kind, **fields)
            self._pump(peer)

    def silent(self, seconds: float, now: float) -> list[str]:
        """Connected processes that have been silent for this long; each is named once."""
        late = [name for name, heard in self._heard_at.items() if now - heard >= seconds]
        for identity in late:
            # Its messages may wait to be read: something else may have held the driver up.
            if identity in self._peers:
                self._serve(self._peers[identity])
        found = [name for name in late if now - self._heard_at.get(name, now) >= seconds]
        for identity in found:
            del self._heard_at[identity]
        return found

    def silence_due(self, seconds: float) -> float | None:
        """When `silent` may next find a process."""
        return min(self._heard_at.values()) + seconds if self._heard_at else None

    def excuse(self, seconds: float) -> None:
        """The driver could hear nothing for so long: do not count that time as silence."""
        self._heard_at = {name: heard + seconds for name, heard in self._heard_at.items()}

    def drop_strangers(self, now: float) -> None:
        """Close connections that have not introduced themselves in time."""
        while self._strangers and self._strangers[0].until <= now:
            stranger = self._strangers[0]
            self._serve(stranger)  # its introduction may wait to be read
            if stranger in self._strangers:
                self._drop(stranger)

    def introductions_due(self) -> float | None:
        """When to call `drop_strangers`."""
        return self._strangers[0].until if self._strangers else None

    def hear_last_words(self, identity: str) -> None:
        """Take the messages that a process sent before it ended."""
        peer = self._peers.get(identity)
        while peer is not None and self._peers.get(identity) is peer:
            before = peer.received
            self._serve(peer)
            if peer.received == before:
                return

    def close(self) -> None:
        """End all connections."""
        for listener in self._listeners:
            self._selector.unregister(listener)
            listener.close()
        for peer in [*self._strangers, *self._peers.values()]:
            self._close(peer)

    # ---- connections -----------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError as error:  # it went away, or this process may not open more files
            if error.errno in (errno.EMFILE, errno.ENFILE) and self._strangers:
                self._drop(self._strangers[0])
            return
        peer = _Peer(connection)
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MS)
        except OSError:
            connection.close()
            return
        self._strangers.append(peer)
        self._selector.register(connection, selectors.EVENT_READ, partial(self._serve, peer))
        peer.unsent += messages.encode("challenge", nonce=peer.nonce)
        self._pump(peer)
        if len(self._strangers) > _MOST_STRANGERS:
            self._drop(self._strangers[0])

    def _serve(self, peer: _Peer) -> None:
        """Called by the selector: read what has arrived, send what is unsent."""
        if peer.socket.fileno() < 0:
            return  # closed a moment ago
        self._pump(peer)
        try:
            data = peer.socket.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(peer)
            return
        peer.received += len(data)
        try:
            if not peer.identity and peer.received > _MOST_OF_STRANGERS:
                raise ValueError("a long introduction")
            for message in peer.reader.feed(data):
                if peer.socket.fileno() < 0:
                    return
                self._take(peer, message)
        except (ValueError, RecursionError):
            self._drop(peer)

    def _take(self, peer: _Peer, message: Message) -> None:
        if not peer.identity:
            self._introduce(peer, message)
            return
        self._heard_at[peer.identity] = time.monotonic()
        if message["kind"] != "beat":
            self._hear(peer.identity, message)

    def _introduce(self, peer: _Peer, message: Message) -> None:
        """Accept a client that proves to be a process of the job; raise ValueError for others."""
        identity, nonce, pid = message.get("id"), message.get("nonce"), message.get("pid")
        if message["kind"] != "hello" or not isinstance(identity, str) or not nonce:
            raise ValueError("no introduction")
        if not isinstance(pid, int) or pid <= 0:
            raise ValueError("no process")
        nonces = peer.nonce, str(nonce)
        expected = messages.proof(self._secret, "process", identity, nonces)
        if identity not in self._expected or not messages.is_proof(message.get("proof"), expected):
            raise ValueError("a stranger")
        if first := self._expected[identity]:
            # A child has its parent's environment, and with it the identity.
            peer.unsent += messages.encode("refused", pid=first)
            self._pump(peer)
            raise ValueError("a process that is no part of the job")
        self._strangers.remove(peer)
        self._expected[identity] = pid
        peer.identity, self._peers[identity] = identity, peer
        self._heard_at[identity] = time.monotonic()
        answer = messages.proof(self._secret, "driver", identity, nonces)
        peer.unsent += messages.encode("welcome", proof=answer)
        self._pump(peer)

    def _pump(self, peer: _Peer) -> None:
        """Send what the connection accepts; close it if the other end accepts nothing any more."""
        try:
            while peer.unsent:
                del peer.unsent[: peer.socket.send(peer.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(peer)
            return
        if len(peer.unsent) > _MOST_UNSENT:
            self._drop(peer)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.unsent else 0)
        key = self._selector.get_key(peer.socket)
        if key.events != events:
            self._selector.modify(peer.socket, events, key.data)

    def _drop(self, peer: _Peer) -> None:
        """A connection has ended. If it was a process's, the process soon counts as silent."""
        if peer in self._strangers:
            self._strangers.remove(peer)
        if self._peers.get(peer.identity) is peer:
            del self._peers[peer.identity]
        self._close(peer)

    def _close(self, peer: _Peer) -> None:
        if peer.socket.fileno() >= 0:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(peer.socket)
            peer.socket.close()


def endpoint(address: str, port: int) -> str:
    """ "ADDRESS:PORT", IPv6 addresses in brackets."""
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(address.partition("%")[0]).version == 6:
            return f"[{address}]:{port}"
    return f"{address}:{port}"
