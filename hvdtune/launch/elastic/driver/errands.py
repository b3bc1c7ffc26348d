"""Short programs that run alongside the job: discovery script, health checks, look-ups of names.

None can block the job: their output is read as it arrives, and each has a deadline.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from hvdtune.launch.local import processes
from hvdtune.launch.local.output import LinePrefixer
from hvdtune.launch.local.relay import Relay
from hvdtune.launch.local.spawn import StartError

# Processes started by an errand may hold its pipes; they are read for this long after its end.
_DRAIN_SECONDS = 0.2
_MOST_OUTPUT = 16 * 2**20


class Outcome(NamedTuple):
    """How an errand ended: what it printed, its last words on stderr, and its exit code.

    `failure` is the end of a sentence that begins with its name, "" if the exit code is 0.
    """

    code: int
    output: bytes
    said: str
    failure: str


Done = Callable[[Outcome], None]


class _Errand:
    def __init__(self, process: subprocess.Popen[bytes], seconds: float, done: Done) -> None:
        self.process = process
        self.seconds = seconds
        self.done = done
        self.due = time.monotonic() + seconds
        self.ended = ""  # why it was killed before it ended by itself
        self.code: int | None = None
        self.pipes = {1: process.stdout, 2: process.stderr}
        self.output = bytearray()
        self.said = ""

    def end(self, why: str) -> None:
        """Kill it; `why` ends a sentence that begins with its name."""
        self.ended = self.ended or why
        self.due = time.monotonic() + self.seconds
        self.output.clear()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)


class Errands:
    """Runs errands in `selector`; `relay` passes their stderr to the console."""

    def __init__(self, selector: selectors.BaseSelector, relay: Relay) -> None:
        self._selector = selector
        self._relay = relay
        self._running: dict[int, _Errand] = {}  # by pid
        self._not_started: list[tuple[Done, Outcome]] = []

    def run(
        self,
        name: str,
        command: Sequence[str],
        seconds: float,
        done: Done,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start a command; `done` is called later, when it has ended or its time is over.

        `name` precedes each line of its stderr.
        """
        parent = os.getpid()

        def in_child() -> None:
            os.setsid()
            processes.die_with_parent(signal.SIGKILL, parent)

        try:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, bufsize=0, preexec_fn=in_child,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            why = (
                str(StartError.of(command[0], error)) if isinstance(error, OSError) else f"{error}"
            )
            self._not_started.append((done, Outcome(126, b"", "", why)))
            return
        errand = self._running[process.pid] = _Errand(process, seconds, done)
        prefixer = LinePrefixer(lambda: f"hvdtune run: {name}: ".encode())
        for number, pipe in errand.pipes.items():
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(
                pipe, selectors.EVENT_READ, partial(self._read, errand, number, prefixer)
            )

    def collect(self, pid: int, code: int) -> None:
        """A child has ended, perhaps an errand."""
        errand = self._running.get(pid)
        if errand is not None:
            errand.process.returncode = errand.code = code
            errand.due = time.monotonic() + _DRAIN_SECONDS

    def next_due(self) -> float | None:
        """When to call `advance`."""
        if self._not_started:
            return 0.0
        return min((errand.due for errand in self._running.values()), default=None)

    def advance(self, now: float) -> None:
        """End errands whose time is over; call `done` of those that have ended."""
        while self._not_started:
            done, outcome = self._not_started.pop(0)
            done(outcome)
        for errand in [*self._running.values()]:
            if errand.code is None and now >= errand.due and errand.ended:
                self._finish(errand)  # it may not be killed: nobody waits for it any longer
            elif errand.code is None and now >= errand.due:
                errand.end(f"was ended after {errand.seconds:g} s without an answer")
            elif errand.code is not None and (now >= errand.due or not any(errand.pipes.values())):
                self._finish(errand)

    def close(self) -> None:
        """Forget all errands; ending the job kills them."""
        for errand in self._running.values():
            for number in errand.pipes:
                self._close(errand, number)
        self._running.clear()
        self._not_started.clear()

    def _read(self, errand: _Errand, number: int, prefixer: LinePrefixer) -> None:
        pipe = errand.pipes[number]
        if pipe is None:
            return
        try:
            data = os.read(pipe.fileno(), 65536)
        except BlockingIOError:
            return
        if number == 1:
            errand.output += data
            if len(errand.output) > _MOST_OUTPUT:
                errand.end(f"printed more than {_MOST_OUTPUT >> 20} MiB")
        else:
            lines = prefixer.feed(data) if data else prefixer.finish()
            self._relay.write(2, lines)
            said = [line for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
            errand.said = said[-1].strip() if said else errand.said
        if not data:
            self._close(errand, number)

    def _finish(self, errand: _Errand) -> None:
        del self._running[errand.process.pid]
        for number in errand.pipes:
            self._close(errand, number)
        code = errand.code or 0
        failure = errand.ended
        if code and not failure:
            failure = (
                f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}"
            )
        if failure and errand.said:
            failure += f" ({errand.said.rstrip('.')})"
        errand.done(Outcome(code, bytes(errand.output), errand.said, failure))

    def _close(self, errand: _Errand, number: int) -> None:
        pipe = errand.pipes[number]
        if pipe is not None:
            self._selector.unregister(pipe)
            pipe.close()
            errand.pipes[number] = None
