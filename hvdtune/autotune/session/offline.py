"""The engine of a job that is started again and again, for the tuner's session.

`hvdtune tune` uses the session of a training run (`session.Session`) in a process that outlives the
job. Settings that the engine can change while running are changed in the running job (`agent`);
others are changed by starting the job again. A job that has ended is also started again, so that a
script too short for a search still serves. The first steps of every start are left out.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hvdtune.autotune.report.words import as_environment
from hvdtune.autotune.search.space import Value, Values
from hvdtune.autotune.session.agent import ABSTRACT, Lines, address_of
from hvdtune.settings.knobs import KNOBS, to_text

END_PATIENCE_S = 15.0  # the launcher ends its ranks within about ten
MOST_FRUITLESS = 2  # starts in a row without a measurable step

StartJob = Callable[[Mapping[str, str]], "subprocess.Popen[bytes]"]


class JobsEnded(Exception):
    """There will be no more steps; the text tells a person why."""


@dataclass(frozen=True)
class RemoteStep:
    """A step of the job; `epoch` is the driver's number of the settings it ran under."""

    duration_ns: int
    bytes: int
    tensors: int
    epoch: int
    named: bool = True


class RemoteEngine:
    """Starts jobs and passes on their steps. Not thread-safe; `close` ends the job.

    `start_job` starts the job with these variables added to its environment; `restart` holds the
    settings that only a new start can change, with their values; `skip` is how many steps are left
    out after every start.
    """

    EngineStopped = JobsEnded

    def __init__(
        self,
        start_job: StartJob,
        restart: Mapping[str, Value] | None = None,
        skip: int = 3,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.starts = 0
        self.failure: str | None = None
        self._start_job = start_job
        self._skip = skip
        self._clock = clock
        self._name = f"{ABSTRACT}hvdtune/tune/{os.getuid()}/{secrets.token_hex(8)}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(address_of(self._name))
        self._listener.listen(1)
        self._restart: Values = dict(restart or {})
        self._online: Values = {}
        self._left_alone: Values = {}  # every start has them, but they are not searched
        self._job: subprocess.Popen[bytes] | None = None
        self._lines: Lines | None = None
        self._number = 0
        self._tensors = 0  # in a step, the maximum so far
        self._gpus = False
        self._skipped = 0
        self._useful = 0  # steps passed on since this start
        self._fruitless = 0

    def start(self, deadline: float) -> None:
        """Start the job and wait for its first step. Raises JobsEnded, also at the deadline.

        Settings that cannot act on such steps are removed from the search.
        """
        self._launch()
        while not self._tensors:
            if self._clock() > deadline:
                what = "called init()" if not self._online else "made a training step"
                self._fail(f"the program had not {what} when the time was over")
            self.read_steps(0.1)
        if self._tensors <= self._restart.get("cache_capacity", 0):
            # All tensors fit: more room changes nothing, less can only hurt.
            self._left_alone["cache_capacity"] = self._restart.pop("cache_capacity")
        if not self._gpus:
            self._restart = {k: v for k, v in self._restart.items() if not KNOBS[k].on_gpus}

    def current(self) -> Values:
        """The settings in force."""
        return {**self._online, **self._restart}

    def peek(self) -> Values:
        """The same as `current`: nobody else changes settings here."""
        return self.current()

    def asked(self) -> Values:
        """Nothing: the program's own changes are not reported by its process."""
        return {}

    def apply(self, values: Mapping[str, Value]) -> int:
        """Apply settings, with a new start if needed; returns the number that steps will carry."""
        self._number += 1
        wanted = {key: values[key] for key in self._restart if key in values}
        self._online.update({key: values[key] for key in self._online if key in values})
        if any(self._restart[key] != value for key, value in wanted.items()):
            self._restart.update(wanted)
            self._end_job()
            self._launch()
        else:
            self._tell()
        return self._number

    def read_steps(self, timeout_s: float) -> list[RemoteStep]:
        """Steps since the last call; waits for one, at most `timeout_s` seconds.

        Starts the job again if it has ended. Raises JobsEnded if that is pointless.
        """
        deadline = self._clock() + timeout_s
        while True:
            watched: list[socket.socket | Lines] = [self._listener]
            if self._lines is not None:
                watched.append(self._lines)
            left = max(0.0, deadline - self._clock())
            ready = select.select(watched, [], [], min(0.1, left))[0]
            if self._listener in ready:
                self._accept()
            steps = self._receive() if self._lines is not None and self._lines in ready else []
            if not ready and self._job is not None and self._job.poll() is not None:
                self._job_has_ended(self._job.returncode)
            if steps or self._clock() >= deadline:
                return steps

    def close(self) -> None:
        """End the job and the socket."""
        self._end_job()
        self._listener.close()

    # -- the job --

    def _launch(self) -> None:
        self.starts += 1
        self._skipped = self._useful = 0
        environment = {
            "HOROVOD_AUTOTUNE": "1",
            KNOBS["autotune_driver"].env: self._name,
            **as_environment({**self._left_alone, **self._restart}),
        }
        if self._online:
            start = KNOBS["autotune_start"]
            environment[start.env] = to_text(start, tuple(self._online.items()))
        self._job = self._start_job(environment)

    def _job_has_ended(self, status: int) -> None:
        self._disconnect()
        self._job = None
        if status != 0:
            self._fail(f"the program ended with exit status {status}")
        self._fruitless = 0 if self._useful else self._fruitless + 1
        if self._fruitless >= MOST_FRUITLESS:
            self._fail(
                f"the program ended {self._fruitless} times without a training step to measure: a "
                f"step ends when a tensor is allreduced again, and the first {self._skip} of "
                "every start are left out"
            )
        self._launch()

    def _end_job(self) -> None:
        self._disconnect()
        job, self._job = self._job, None
        if job is None or job.poll() is not None:
            return
        job.terminate()
        try:
            job.wait(END_PATIENCE_S)
        except subprocess.TimeoutExpired:
            job.kill()
            job.wait()

    def _disconnect(self) -> None:
        if self._lines is not None:
            self._lines.close()
            self._lines = None

    def _fail(self, why: str) -> None:
        self.failure = why
        raise JobsEnded(why)

    # -- the agent --

    def _accept(self) -> None:
        connection = self._listener.accept()[0]
        # An abstract name has no file permissions: any process that guesses it may connect.
        if _user_at(connection) != os.getuid():
            connection.close()
            return
        self._lines = Lines(connection)

    def _receive(self) -> list[RemoteStep]:
        assert self._lines is not None
        steps: list[RemoteStep] = []
        try:
            for message in self._lines.received():
                if "settings" in message:
                    self._online = self._online or dict(message["settings"])
                    self._tell()
                elif "more" in message:
                    self._online = {**message["more"], **self._online}
                elif "error" in message:
                    self._fail(f"the engine refused settings: {message['error']}")
                else:
                    steps += [RemoteStep(*fields) for fields in message["steps"]]
                    self._gpus = self._gpus or bool(message["gpus"])
        except (EOFError, OSError):
            self._disconnect()
        return self._without_first(steps)

    def _without_first(self, steps: list[RemoteStep]) -> list[RemoteStep]:
        kept = []
        for step in steps:
            self._tensors = max(self._tensors, step.tensors)
            if self._skipped < self._skip or step.epoch < 0:
                self._skipped += 1
            else:
                kept.append(step)
        self._useful += len(kept)
        return kept

    def _tell(self) -> None:
        if self._lines is not None:
            try:
                self._lines.send({"apply": self._online, "number": self._number})
            except OSError:
                self._disconnect()  # the job is ending; the next start uses these


def _user_at(connection: socket.socket) -> int:
    """The user id of the process at the other end."""
    layout = struct.Struct("iII")  # struct ucred: pid, uid, gid
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, layout.size)
    return int(layout.unpack(data)[1])
