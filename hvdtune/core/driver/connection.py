"""A process's connection to the driver of its elastic job.

Both prove that they know the job's secret (see `messages`). One thread reads the driver's messages,
notes them and wakes the threads that wait. The connection ends with the process.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import hvdtune._native as _native
from hvdtune.core.driver import messages
from hvdtune.core.driver.place import Place

#: Takes the number and the change (a HostUpdateResult) of news.
Hear = Callable[[int, int], None]
#: Returns the fields of a message `lateness`, None if this process is not in the job now.
Measure = Callable[[], "messages.Message | None"]
#: Takes a sentence for people.
Cancel = Callable[[str], None]

_CANCELLED = "the job's driver has ended this generation of the job"
_CONNECT_S = 30.0  # the driver listens before it starts a process
_MOST_WHY = 1000  # characters
_UNANSWERED_MS = 20_000  # data that the driver's machine does not acknowledge within this is lost


class Gone(Exception):
    """There is no driver, or no longer one; the text is a sentence for people."""


class Left(Exception):
    """The job goes on without this process; the text is the driver's reason."""


class Connection:
    """Connected, and known to the driver, from its construction on.

    hear, measure: called by the thread that reads. address: "HOST:PORT".

    Raises ValueError for a malformed address, for a driver that does not know the secret, and if
    another process with this identity has connected before; Gone if nobody answers.
    """

    def __init__(
        self,
        hear: Hear,
        address: str,
        identity: str,
        secret: str,
        *,
        measure: Measure | None = None,
    ) -> None:
        self.address = address
        self._hear = hear
        self._measure = measure
        self._changed = threading.Condition()
        self._place: Place | None = None  # not yet taken by `ask`
        self._prepares = False  # there is no place yet; it will follow
        self._news = 0, 0
        self._cancelled = 0  # generations up to this one are over
        self._why_cancelled = ""
        self._on_cancel: tuple[int, Cancel] | None = None
        self._left: str | None = None
        self._gone = ""
        self._writing = threading.Lock()
        reader = messages.Reader()
        host, port = _split(address)
        try:
            self._socket = socket.create_connection((host, port), _CONNECT_S)
        except OSError as error:
            raise self._no_answer(error) from None
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MS)
            pending = self._introduce(reader, identity, secret)
            self._socket.settimeout(None)
        except BaseException as error:
            self._socket.close()
            if isinstance(error, OSError):
                raise self._no_answer(error) from None
            raise
        self._beats = _native.Beats(
            self._socket.fileno(), messages.encode("beat"), messages.BEAT_SECONDS
        )
        self._reading = threading.Thread(
            target=self._read, args=(reader, pending), name="hvdtune-elastic", daemon=True
        )
        self._reading.start()

    # ---- the process's messages ------------------------------------------------------------------

    def ask(self, generation: int, reason: str, why: str, function: str) -> Place | None:
        """Ask for a place for this process, and wait for it.

        generation: that of its last place, 0 if none. function: the elastic function that it is
        in, "" before the first.

        Returns None, before the first function, if the job runs already: the process must ask
        again in its function.

        Raises Left or Gone if there will be no place.
        """
        with self._changed:
            self._place, self._on_cancel, self._prepares = None, None, False
            self._say(
                "ready",
                generation=generation, reason=reason, why=why[:_MOST_WHY], function=function,
            )  # fmt: skip
            while self._left is None:
                if self._place or (self._prepares and not function):
                    return self._place
                if self._gone:
                    raise Gone(self._gone)
                self._changed.wait()
            raise Left(self._left)

    def say_joined(self, generation: int) -> None:
        """The processes of a generation have come together."""
        self._say("joined", generation=generation)

    def say_begun(self, function: str) -> None:
        """An elastic function begins, in the present place."""
        self._say("begun", function=function)

    def say_synchronised(self) -> None:
        """This process has the job's state."""
        self._say("synchronised")

    def say_finished(self) -> None:
        """The elastic function has returned."""
        self._say("finished")

    # ---- the driver's messages -------------------------------------------------------------------

    def on_cancel(self, generation: int, cancel: Cancel) -> None:
        """Call `cancel(why)` if the driver cancels `generation`, or has already.

        Holds until another `cancel` is given, or `ask` is called.
        """
        with self._changed:
            self._on_cancel = generation, cancel
            self._cancel_what_is_over()

    def news(self) -> tuple[int, int]:
        """Number and change of the news since the last place; (0, 0) if there are none."""
        return self._news

    def is_cancelled(self, generation: int) -> bool:
        """Whether `generation` will not come together, or has ended."""
        return generation <= self._cancelled

    def stop_listening(self) -> None:
        """At the process's end: a thread that calls native code must not outlive the interpreter.

        The beats go on until the process has ended, which may take long.
        """
        self._beats.keep()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)
        self._reading.join()

    def forget(self) -> None:
        """In a fork, which is not part of the job: leave the connection to the parent."""
        with contextlib.suppress(OSError):
            os.close(self._socket.detach())
        del self._beats  # they have their own descriptor; their thread is not in the fork

    # ---- helpers ---------------------------------------------------------------------------------

    def _no_answer(self, error: OSError) -> Gone:
        return Gone(f"the driver of this elastic job at {self.address} does not answer: {error}")

    def _introduce(
        self, reader: messages.Reader, identity: str, secret: str
    ) -> Iterator[messages.Message]:
        """Prove this process's identity and check the driver's; return its other messages."""
        heard = self._messages(reader)
        challenge, own = next(heard), secrets.token_hex(16)
        nonces = str(challenge.get("nonce")), own
        self._say(
            "hello", id=identity, pid=os.getpid(), nonce=own,
            proof=messages.proof(secret, "process", identity, nonces),
        )  # fmt: skip
        welcome = next(heard)
        if welcome["kind"] == "refused":
            raise ValueError(
                f"Horovod initialization failed: process {welcome.get('pid')} has this place in "
                "the elastic job, and a process that was started or forked by it is no part of "
                'the job: call init() only in the main program (`if __name__ == "__main__":`), '
                f"or start the process without {messages.DRIVER} in its environment"
            )
        expected = messages.proof(secret, "driver", identity, nonces)
        if challenge["kind"] != "challenge" or not messages.is_proof(
            welcome.get("proof"), expected
        ):
            raise ValueError(
                "Horovod initialization failed: the process that listens at "
                f"{messages.DRIVER}={self.address} is not this job's driver: it does not know the "
                "job's secret"
            )
        return heard

    def _messages(self, reader: messages.Reader) -> Iterator[messages.Message]:
        """The driver's messages, one after another. Raises OSError when there are no more."""
        while True:
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionError("the connection was closed")
            try:
                yield from reader.feed(data)
            except ValueError as error:
                raise ConnectionError(f"its message cannot be read: {error}") from None

    def _say(self, kind: str, **fields: Any) -> None:
        """Send a message. If the driver has gone, the thread that reads will notice."""
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

    def _take(self, message: messages.Message) -> None:
        kind = message["kind"]
        if kind == "measure":
            if self._measure is not None and (found := self._measure()) is not None:
                self._say("lateness", **found)
            return
        if kind == "news":
            number, change = int(message["number"]), int(message["change"])
            self._news = number, self._news[1] | change
            self._hear(number, change)
            return
        with self._changed:
            if kind == "place":
                self._news = 0, 0
                self._place = Place(
                    int(message["generation"]),
                    {str(k): v if v is None else str(v) for k, v in message["environment"].items()},
                    frozenset(map(int, message["newcomers"])),
                    bool(message["synchronise"]),
                )
            elif kind == "prepare":
                self._prepares = True
            elif kind == "cancel":
                self._cancelled = max(self._cancelled, int(message["generation"]))
                self._why_cancelled = str(message.get("why") or _CANCELLED)
                self._cancel_what_is_over()
            elif kind == "leave":
                self._left = str(message.get("why", ""))
            self._changed.notify_all()

    def _cancel_what_is_over(self) -> None:
        if self._on_cancel is not None and self.is_cancelled(self._on_cancel[0]):
            _, cancel = self._on_cancel
            self._on_cancel = None
            cancel(self._why_cancelled)


def _split(address: str) -> tuple[str, int]:
    """The host and the port of "HOST:PORT"; an IPv6 address may be in brackets."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(
            f"Horovod initialization failed: {messages.DRIVER}={address!r} is no address; it is "
            "ADDRESS:PORT, which the driver of an elastic job sets"
        )
    return host.removeprefix("[").removesuffix("]"), int(port)
