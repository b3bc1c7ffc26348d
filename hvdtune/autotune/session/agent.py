"""The job's end of offline tuning: reports steps to `hvdtune tune`, and applies settings.

The driver (`offline.RemoteEngine`) listens on a Unix socket; the agent on rank 0 connects when the
engine is up. The socket has an abstract name (a Linux feature) instead of a path, which could be
too long and would leave a file behind. Messages are JSON objects, one per line:

    agent → driver   {"settings": {key: value}}                     first: the settings in force
                     {"more": {key: value}}                         settings that can act only now
                     {"steps": [[duration_ns, bytes, tensors, number, named], …], "gpus": bool}
                     {"error": "…"}                                 a change was refused
    driver → agent   {"apply": {key: value}, "number": n}

`number` is that of the last `apply` under which a step ran, -1 before the first; `gpus` is whether
rank 0 uses GPUs.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hvdtune.autotune.search.space import Value

READ_TIMEOUT_S = 0.05
# A check takes half a millisecond of rank 0's time, which matters in short steps.
BETWEEN_LOOKS_S = 0.05
ABSTRACT = "@"  # stands for the zero byte with which an abstract name begins


def address_of(name: str) -> str:
    """The socket's address for a value of HVDTUNE_AUTOTUNE_DRIVER."""
    return "\0" + name[1:] if name.startswith(ABSTRACT) else name


class Step(Protocol):
    """What the driver must know about a step."""

    duration_ns: int
    bytes: int
    tensors: int
    epoch: int
    named: bool


class Engine(Protocol):
    """What the agent needs of the engine (`hvdtune.core.tuning` has it)."""

    @property
    def EngineStopped(self) -> type[Exception]:
        """Raised by `read_steps` when the engine is shut down."""

    def read_steps(self, timeout_s: float) -> Sequence[Any]:
        """The steps since the last call; waits for one, at most `timeout_s` seconds."""

    def apply(self, values: Mapping[str, Value]) -> int:
        """Apply settings on all ranks; returns the number of the epoch that begins."""

    def current(self) -> Mapping[str, Value]:
        """The settings in force."""

    def uses_gpus(self) -> bool:
        """Whether this process has begun to use GPUs."""


class Lines:
    """JSON objects, one per line, over a connected socket. Raises EOFError if it is closed."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = b""

    def fileno(self) -> int:
        """The socket's file descriptor, for `select`."""
        return self._connection.fileno()

    def send(self, data: Mapping[str, Any]) -> None:
        """Send one object. Raises OSError."""
        self._connection.sendall(json.dumps(data).encode() + b"\n")

    def received(self) -> list[dict[str, Any]]:
        """The objects that have arrived; none if nothing has."""
        try:
            data = self._connection.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        if not data:
            raise EOFError
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Close the socket."""
        with contextlib.suppress(OSError):
            self._connection.close()


class Agent:
    """Serves one driver until it, or the engine, ends. Call `run` in a thread of rank 0."""

    def __init__(self, engine: Engine, name: str) -> None:
        """Connect to the driver called `name`. Raises OSError if there is none."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(address_of(name))
        except OSError:
            connection.close()
            raise
        self._engine = engine
        self._lines = Lines(connection)
        self._stop = threading.Event()
        self._changes: list[tuple[int, int]] = []  # (epoch of the engine, the driver's number)
        self._gpus = False
        self._looked = -BETWEEN_LOOKS_S  # for GPUs, on the monotonic clock

    def stop_soon(self) -> None:
        """Make `run` return within READ_TIMEOUT_S. May be called from any thread."""
        self._stop.set()

    def run(self) -> None:
        """Serve. Raises nothing: training goes on even if the driver fails."""
        try:
            known = dict(self._engine.current())
            self._lines.send({"settings": known})
            while not self._stop.is_set():
                steps = self._engine.read_steps(READ_TIMEOUT_S)
                for request in self._lines.received():
                    self._apply(request)
                if steps:
                    now = self._engine.current()
                    if more := {key: now[key] for key in now if key not in known}:
                        known |= more
                        self._lines.send({"more": more})
                    told = [self._told(step) for step in steps]
                    self._lines.send({"steps": told, "gpus": self._uses_gpus()})
        except self._engine.EngineStopped:
            pass
        except (OSError, EOFError, ValueError, KeyError):
            pass  # the driver has gone, or uses another protocol
        finally:
            self._lines.close()

    def _uses_gpus(self) -> bool:
        """Check now and then; a process that has begun to use GPUs keeps using them."""
        if not self._gpus and time.monotonic() - self._looked >= BETWEEN_LOOKS_S:
            self._gpus = self._engine.uses_gpus()
            self._looked = time.monotonic()
        return self._gpus

    def _apply(self, request: Mapping[str, Any]) -> None:
        wanted: dict[str, Value] = request["apply"]
        in_force = self._engine.current()
        epoch = 0
        if any(in_force.get(key) != value for key, value in wanted.items()) or self._changes:
            try:
                epoch = self._engine.apply(wanted)
            except Exception as error:
                self._lines.send({"error": f"{type(error).__name__}: {error}"})
                return
        self._changes.append((epoch, request["number"]))

    def _told(self, step: Step) -> list[int | bool]:
        numbers = [number for epoch, number in self._changes if epoch <= step.epoch]
        number = numbers[-1] if numbers else -1
        return [step.duration_ns, step.bytes, step.tensors, number, step.named]
