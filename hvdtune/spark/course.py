"""The course of a job, as the tasks report it to the program that started it."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from hvdtune.launch.allocation.hosts import Slot
from hvdtune.launch.local.endings import Failure
from hvdtune.launch.local.output import WorkerStream
from hvdtune.launch.remote.frames import Frame, Kind
from hvdtune.launch.remote.link import Peer
from hvdtune.launch.worker import Worker
from hvdtune.spark.task import LOST, blame_seconds


class Output:
    """The ranks' output: to two streams of text or of bytes, by default this program's."""

    def __init__(self, stdout: Any = None, stderr: Any = None) -> None:
        self._streams = {Kind.STDOUT: stdout, Kind.STDERR: stderr}
        self._given_up: set[Kind] = set()

    def write(self, kind: Kind, lines: bytes) -> None:
        """Write whole lines. After a stream has failed, it is not used again: the ranks go on."""
        stream: Any = self._streams[kind]
        if stream is None:
            stream = sys.stdout if kind == Kind.STDOUT else sys.stderr
        if not lines or stream is None or kind in self._given_up:
            return
        try:
            text = lines.decode("utf-8", "replace")
            try:
                stream.write(text)
            except UnicodeEncodeError:  # its encoding lacks a character
                encoding = getattr(stream, "encoding", None) or "ascii"
                stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            except TypeError:  # a stream of bytes
                stream.write(lines)
            with contextlib.suppress(AttributeError):
                stream.flush()
        except Exception:
            self._given_up.add(kind)

    def say(self, sentence: str) -> None:
        """Write a line from hvdtune itself."""
        self.write(Kind.STDERR, f"hvdtune.spark: {sentence}\n".encode())


class Course:
    """Takes the tasks' reports, from any thread, and finds the failure that ended the job."""

    def __init__(self, size: int, output: Output, timestamps: bool, verbose: int) -> None:
        self._size = size
        self._output = output
        self._timestamps = timestamps
        self._verbose = verbose
        self._changed = threading.Condition()
        self._tasks: dict[int, str] = {}  # the hosts of tasks that have connected
        self._workers: dict[int, Worker] = {}  # by task
        self._suspect: Worker | None = None
        self._blame_at = 0.0
        self._left = 0
        self._over = False
        self.not_started = ""  # the reason, if a rank could not be started

    @property
    def started(self) -> int:
        """How many tasks have connected."""
        return len(self._tasks)

    def await_all(self, until: float) -> bool:
        """Wait until all tasks have connected, or the job is over; False if neither has happened by
        that time (monotonic seconds)."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._over or self.started == self._size, max(0.0, until - time.monotonic())
            )

    def drain(self, seconds: float) -> None:
        """Wait until all tasks have reported everything, at most this long."""
        with self._changed:
            self._changed.wait_for(lambda: self._left == self.started, seconds)

    def release(self) -> None:
        """End all waiting for tasks, because the job is over."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def join(self, task: int, facts: Mapping[str, Any], peer: Peer) -> bool:
        """A task has connected; returns whether it may run: each may run only once."""
        with self._changed:
            if task in self._tasks or not 0 <= task < self._size:
                return False
            self._tasks[task] = facts["hostname"]
            self._changed.notify_all()
            return True

    def take(self, task: int, frame: Frame) -> None:
        """Handle a task's report."""
        with self._changed:
            if frame.kind == Kind.NOT_STARTED:
                self.not_started = frame.payload.decode("utf-8", "replace")
                self._changed.notify_all()
                return
            worker = self._workers.get(task)
            if worker is None:
                worker = self._workers[task] = self._new_worker(task, frame.number)
            if frame.kind in (Kind.STDOUT, Kind.STDERR):
                stream = worker.streams[frame.kind == Kind.STDERR]
                self._output.write(frame.kind, stream.take(frame.payload))
            elif frame.kind == Kind.STARTED:
                worker.pid = int(frame.payload)
                self._tell(f"rank {frame.number} started on {self._tasks[task]}, pid {worker.pid}")
            elif frame.kind == Kind.EXIT:
                self._finish(worker)
                self._end(worker, int(frame.payload))

    def leave(self, task: int) -> None:
        """A task's connection has ended."""
        with self._changed:
            self._left += 1
            self._changed.notify_all()
            worker = self._workers.get(task) or self._new_worker(task, task)
            if worker.running:
                self._finish(worker)
                worker.loss = LOST
                self._end(worker, 255)

    def failure(self, hopeless: bool) -> Failure | None:
        """The failure that ended the job, once that is clear; None if no rank has failed.

        If the job is `hopeless`, a rank must have failed: wait for the report.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._suspect is not None or self.not_started, 1.0 if hopeless else 0.0
            )
            while (left := self._blame_at - time.monotonic()) > 0 and not self.not_started:
                self._changed.wait(left)
            worker = self._suspect
            return worker.failure() if worker is not None else None

    def _new_worker(self, task: int, rank: int) -> Worker:
        worker = Worker(task, Slot(self._tasks[task], rank, self._size, 0, 1, 0, 1))
        worker.streams = [
            WorkerStream(rank, name, None, worker.tail, timestamps=self._timestamps)
            for name in ("stdout", "stderr")
        ]
        return worker

    def _finish(self, worker: Worker) -> None:
        for kind, stream in zip((Kind.STDOUT, Kind.STDERR), worker.streams, strict=True):
            self._output.write(kind, stream.finish())

    def _end(self, worker: Worker, code: int) -> None:
        worker.code = code
        self._tell(f"rank {worker.slot.rank} {worker.loss or f'ended with exit code {code}'}")
        if code == 0:
            return
        due = time.monotonic() + blame_seconds(worker)
        if self._suspect is None:
            self._suspect, self._blame_at = worker, due
        elif time.monotonic() < self._blame_at:
            self._blame_at = min(self._blame_at, due)
            if worker.innocence() < self._suspect.innocence():
                self._suspect = worker
        self._changed.notify_all()

    def _tell(self, text: str) -> None:
        if self._verbose >= 2:
            self._output.say(text)
