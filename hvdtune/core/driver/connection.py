"""A process's connection to the driver of its elastic job.

Both prove that they know the job's secret (see `messages`). One thread reads; it notes what the
driver says, and whoever waits is woken. The connection ends with the process.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from hvdtune import _native
from hvdtune.core.driver import messages

Hear = Callable[[int, int], None]

_CONNECT_S = 30.0  # the driver listens before it starts a process
_UNANSWERED_MS = 20_000  # what the driver's machine has not received for so long, it never will


class Place(NamedTuple):
    """A process's place in one generation of its job.

    `environment` has the variables of the place, None for those that must not be set. `newcomers`
    are the ranks that were not in the generation before. `synchronise`: states may differ.
    """

    generation: int
    environment: Mapping[str, str | None]
    newcomers: frozenset[int]
    synchronise: bool


class Gone(Exception):
    """There is no driver, or none any more; the text is a sentence for people."""


class Left(Exception):
    """The job goes on without this process; the text is the driver's reason."""


class Connection:
    """Connected, and known to the driver, from its construction on.

    address: "HOST:PORT". hear: called with the number and the change (a HostUpdateResult) of news,
    by the thread that reads.

    Raises ValueError for an address that is none and for a driver that does not know the secret,
    Gone if nobody answers.
    """

    def __init__(self, address: str, identity: str, secret: str, hear: Hear) -> None:
        self.address = address
        self._hear = hear
        self._changed = threading.Condition()
        self._place: Place | None = None  # that nobody has taken yet
        self._cancelled = 0  # no generation up to this one comes together any more
        self._cancellation: tuple[int, Any] | None = None
        self._left: str | None = None
        self._gone = ""
        self._writing = threading.Lock()
        reader = messages.Reader()
        host, port = _split(address)
        try:
            self._socket = socket.create_connection((host, port), _CONNECT_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MS)
            pending = self._introduce(reader, identity, secret)
            self._socket.settimeout(None)
        except OSError as error:
            raise Gone(f"the driver of this elastic job at {address} does not answer: {error}") from None
        self._beats = _native.Beats(
            self._socket.fileno(), messages.encode("beat"), messages.BEAT_SECONDS
        )
        threading.Thread(
            target=self._read, args=(reader, pending), name="hvdtune-elastic", daemon=True
        ).start()

    # ---- what the process says -------------------------------------------------------------------

    def ask(self, generation: int, reason: str, why: str) -> Place:
        """Say that this process, last in `generation` (0: none), wants a place; wait for it.

        Raises Left or Gone if there will be none.
        """
        with self._changed:
            self._place = None
        self._say("ready", generation=generation, reason=reason, why=why[:1000])
        with self._changed:
            while True:
                if self._left is not None:
                    raise Left(self._left)
                if self._place is not None and self._place.generation > self._cancelled:
                    return self._place
                if self._place is not None:
                    self._place = None
                    self._say("ready", generation=generation, reason=reason, why=why[:1000])
                if self._gone:
                    raise Gone(self._gone)
                self._changed.wait()

    def say_joined(self, generation: int) -> None:
        """The processes of a generation have come together."""
        self._say("joined", generation=generation)

    def say_finished(self) -> None:
        """The elastic function has returned."""
        self._say("finished")

    # ---- what the driver has said ----------------------------------------------------------------

    @contextlib.contextmanager
    def cancelling(self, generation: int, cancellation: Any) -> Iterator[None]:
        """Inside the block, if the driver cancels `generation`: `cancellation.cancel(why)`."""
        with self._changed:
            self._cancellation = generation, cancellation
            self._cancel_what_is_over()
        try:
            yield
        finally:
            with self._changed:
                self._cancellation = None

    def is_cancelled(self, generation: int) -> bool:
        """Whether `generation` will not come together, or has ended."""
        return generation <= self._cancelled

    def forget(self) -> None:
        """In a fork, which is no part of the job: leave the connection to its parent."""
        with contextlib.suppress(OSError):
            os.close(self._socket.detach())

    # ---- helpers ---------------------------------------------------------------------------------

    def _introduce(
        self, reader: messages.Reader, identity: str, secret: str
    ) -> Iterator[messages.Message]:
        """Prove who this is, and have the driver prove it; what it has said beyond that."""
        heard = self._messages(reader)
        challenge, own = next(heard), secrets.token_hex(16)
        nonces = str(challenge.get("nonce")), own
        self._say(
            "hello", id=identity, pid=os.getpid(), nonce=own,
            proof=messages.proof(secret, "process", identity, nonces),
        )  # fmt: skip
        welcome = next(heard)
        expected = messages.proof(secret, "driver", identity, nonces)
        if challenge["kind"] != "challenge" or not messages.is_proof(
            welcome.get("proof"), expected
        ):
            raise ValueError(
                f"Horovod initialization failed: who listens at {messages.DRIVER}={self.address} "
                "is not this job's driver: it does not know the job's secret"
            )
        return heard

    def _messages(self, reader: messages.Reader) -> Iterator[messages.Message]:
        """What the driver says, one after another. Raises OSError when it says no more."""
        while True:
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionError("the connection was closed")
            try:
                yield from reader.feed(data)
            except ValueError as error:
                raise ConnectionError(f"what it says is no message: {error}") from None

    def _say(self, kind: str, **fields: Any) -> None:
        """Send a message. A driver that is gone is for the thread that reads to find."""
        if kind != "hello" and self._gone:
            return
        line = messages.encode(kind, **fields)
        try:
            with self._writing:
                self._socket.sendall(line)
        except OSError:
            if kind == "hello":
                raise

    def _read(self, reader: messages.Reader, heard: Iterator[messages.Message]) -> None:
        try:
            for message in heard:
                self._take(message)
        except (OSError, KeyError, TypeError, ValueError) as error:
            with self._changed:
                self._gone = (
                    f"the driver of this elastic job at {self.address} has gone: {error}; this "
                    "process cannot get a place in the job any more"
                )
                self._changed.notify_all()
            self._beats.stop()

    def _take(self, message: messages.Message) -> None:
        kind = message["kind"]
        if kind == "news":
            self._hear(int(message["number"]), int(message["change"]))
            return
        with self._changed:
            if kind == "place":
                self._place = Place(
                    int(message["generation"]),
                    {str(k): v if v is None else str(v) for k, v in message["environment"].items()},
                    frozenset(map(int, message["newcomers"])),
                    bool(message["synchronise"]),
                )
            elif kind == "cancel":
                self._cancelled = max(self._cancelled, int(message["generation"]))
                self._cancel_what_is_over()
            elif kind == "leave":
                self._left = str(message.get("why", ""))
            self._changed.notify_all()

    def _cancel_what_is_over(self) -> None:
        if self._cancellation is not None:
            generation, cancellation = self._cancellation
            if generation <= self._cancelled:
                cancellation.cancel("the job's driver has cancelled this start")


def _split(address: str) -> tuple[str, int]:
    """The host and the port of "HOST:PORT"; an IPv6 address may be in brackets."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(
            f"Horovod initialization failed: {messages.DRIVER}={address!r} is no address; it is "
            "ADDRESS:PORT, which the driver of an elastic job sets"
        )
    return host.removeprefix("[").removesuffix("]"), int(port)
