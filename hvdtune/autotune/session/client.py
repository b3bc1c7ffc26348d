"""The training process's end of the optimiser service: starts it, asks it, never waits.

Any failure (it does not start, it dies, its answer is invalid or takes too long) is a
`ServiceError` with one sentence. The session then ends tuning and keeps the current settings,
unless a comparison is under way, which can end without the optimiser.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

from hvdtune.autotune.search.question import Answer, Request
from hvdtune.autotune.search.space import Space
from hvdtune.bootstrap import python_command

PATIENCE_S = 120.0  # how long the answer to one question may take on a busy machine
_SINGLE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class ServiceError(RuntimeError):
    """The optimiser cannot be used; the text says why."""


class ServiceClient:
    """One service process. Not thread-safe; nothing here blocks except `close`, briefly."""

    def __init__(
        self,
        space: Space,
        command: Sequence[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the process (`command` replaces it in tests).

        Raises ServiceError if it cannot be started.
        """
        self.computing_ms = 0.0  # computing time of all answers so far
        self.started_s: float | None = None  # how long its process took to start; None: not yet
        self._space = space
        self._clock = clock
        self._buffer = b""
        self._asked_at: float | None = None
        self._began = clock()
        parent = str(os.getpid())
        arguments = command or python_command("hvdtune.autotune.session.service", parent)
        environ = {**os.environ, **dict.fromkeys(_SINGLE_THREAD, "1")}
        self._said = os.memfd_create("hvdtune-optimiser")  # its other output
        try:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                env=environ,
            )
        except OSError as error:
            os.close(self._said)
            raise ServiceError(f"the optimiser cannot be started: {error}") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input = self._process.stdin
        self._output = self._process.stdout.fileno()
        self._answers = select.poll()  # its number may be too high for select()
        self._answers.register(self._output, select.POLLIN)

    def ask(self, request: Request) -> None:
        """Send a question; `poll` returns the answer later. Raises ServiceError."""
        self._asked_at = self._clock()
        self._space = Space.from_json(request.space)
        try:
            self._input.write(json.dumps(request.to_json()).encode() + b"\n")
            self._input.flush()
        except OSError:
            raise ServiceError(self._ended()) from None

    def poll(self) -> Answer | None:
        """The answer, if it has arrived. Raises ServiceError."""
        while True:
            line = self._line()
            if line is None:
                break
            answer = self._read(line)
            if answer is not None:
                self._asked_at = None
                return answer
        if self._asked_at is not None and self._clock() - self._asked_at > PATIENCE_S:
            raise ServiceError(f"the optimiser did not answer within {PATIENCE_S:.0f} s")
        return None

    def close(self) -> None:
        """End the process at once."""
        if self._said >= 0:
            os.close(self._said)
            self._said = -1
        if self._process.poll() is None:
            self._process.kill()
        with contextlib.suppress(OSError):  # unsent data no longer matter
            self._input.close()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process.wait()

    def _line(self) -> bytes | None:
        while b"\n" not in self._buffer:
            if not self._answers.poll(0):
                return None
            received = os.read(self._output, 65536)
            if not received:
                raise ServiceError(self._ended())
            self._buffer += received
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _read(self, line: bytes) -> Answer | None:
        try:
            data: dict[str, Any] = json.loads(line)
            if "error" in data:
                raise ServiceError(f"the optimiser failed: {data['error']}")
            if "ready" in data:
                self.started_s = self._clock() - self._began
                return None
            self.computing_ms += data["computing_ms"]
            return Answer(
                proposals=tuple(self._space.decode(point) for point in data["points"]),
                expected_gain=float(data["expected_gain"]),
                means=tuple(data["means"]),
                deviations=tuple(data["deviations"]),
            )
        except (ValueError, KeyError, TypeError):
            raise ServiceError(
                f"the optimiser's answer cannot be understood: {line[:80]!r}"
            ) from None

    def _ended(self) -> str:
        try:
            status = self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return "the optimiser closed its output"
        if status < 0:
            return f"the optimiser was ended by {signal.Signals(-status).name}"
        size = os.fstat(self._said).st_size
        lines = os.pread(self._said, size, 0).decode(errors="replace").strip().splitlines()
        why = f": {lines[-1]}" if lines else ""
        return f"the optimiser ended with exit status {status}{why}"
