"""One job from its first process to its last: start, output, failure, end.

    running   all workers live or have exited with 0
    failing   one has failed; the others have a moment to notice and say so themselves
    ending    the workers have been sent SIGTERM
    killed    all that was left has been sent SIGKILL

The job moves down this list, never up. One thread waits for everything at once: output, ended
children, signals, deadlines.
"""

from __future__ import annotations

import contextlib
import enum
import os
import select
import selectors
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from hvdtune.core.observation import recording
from hvdtune.launch.allocation import capacity
from hvdtune.launch.allocation.hosts import Slot
from hvdtune.launch.errors import LaunchError
from hvdtune.launch.local import processes
from hvdtune.launch.local.endings import Failure, signal_name
from hvdtune.launch.local.environment import worker_environment
from hvdtune.launch.local.guard import ENDING_SIGNALS, FORWARDED_SIGNALS, guarded
from hvdtune.launch.local.output import Console, ConsoleClosedError, WorkerStream
from hvdtune.launch.local.spawn import StartError, start_worker
from hvdtune.launch.remote.frames import Frame, Kind
from hvdtune.launch.worker import Worker

if TYPE_CHECKING:
    from hvdtune.launch.remote.connection import Connection

# After a failure the job is over within the sum of the first two, plus what killing takes.
SURVIVORS_SECONDS = 1.0
# Several workers may end within moments; this long the launcher looks for the one that began it.
BLAME_SECONDS = 0.1
GRACE_AFTER_FAILURE_SECONDS = 1.0
# After Ctrl-C or SIGTERM a worker may want to save its state.
GRACE_AFTER_SIGNAL_SECONDS = 5.0
# Descendants of ended workers may still hold their pipes; their output is awaited this long.
DRAIN_SECONDS = 0.5
# Who interrupts a job does not wait for its timeline: a long one is left to `timeline merge`.
JOIN_AFTER_SIGNAL_SECONDS = 1.5
# When a connection is lost, ssh says why, a moment later.
COMPLAINT_SECONDS = 0.2


class Phase(enum.IntEnum):
    """Where a job is on its way; see the module's text."""

    RUNNING = 0
    FAILING = 1
    ENDING = 2
    KILLED = 3


class JobSpec(NamedTuple):
    """What to run. `environment` is shared by all workers (see `job_environment`).

    `output_setting` is what whoever asked for the job calls `output_directory`.
    The workers inherit the open files `descriptors`. `explain` is given the sentence on why the
    job failed, instead of stderr. `remote` has, for every other host, the command that runs the
    agent there (see `launch.remote.ssh`); it has `start_timeout` seconds to start its workers.
    """

    command: Sequence[str]
    slots: Sequence[Slot]
    environment: Mapping[str, str]
    output_directory: str | None = None
    output_setting: str = "--output-filename"
    timestamps: bool = False
    verbose: bool = False
    descriptors: Sequence[int] = ()
    explain: Callable[[str], None] | None = None
    remote: Mapping[str, Sequence[str]] = MappingProxyType({})
    start_timeout: float = 30.0


class Job:
    """Runs a `JobSpec` once. Must own its process: it collects every child there is."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._phase = Phase.RUNNING
        self._deadline: float | None = None
        self._failed: list[Worker] = []
        self._blame_at = 0.0
        self._failure: Failure | None = None
        self._stop_status = 0
        self._signals: list[int] = []
        self._console = Console(give_up=self._is_ending)
        self._unwritable: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self._workers: dict[int, Worker] = {}  # by rank
        self._connections: list[Connection] = []
        self._open_files: tuple[int, int] | None = None  # the workers' limit, if not ours
        self._start_by: float | None = None  # until all workers elsewhere have started
        self._parent = 0

    def run(self) -> int:
        """Start the workers, stay until the last has ended, return the launcher's exit status.

        That is 0 when every worker returned 0; the first failing worker's exit code, or 128 + N
        when signal N killed it; 128 + N when signal N told the launcher to end the job; 126 or
        127 when the command cannot be started, as in a shell.
        """
        self._parent = os.getppid()
        wakeup = self._watch_signals()
        try:
            self._start_all()
            while self._anything_left():
                self._register_input()
                for key, _ in self._selector.select(self._time_left()):
                    if key.data is None:
                        _drain(wakeup)
                    else:
                        key.data()
                self._handle_signals()
                self._collect()
                self._advance()
        except (StartError, LaunchError) as error:
            self._explain(f"{error}\n")
            return error.status if isinstance(error, StartError) else 2
        finally:
            processes.kill_descendants()
            self._flush()
        if self._failed and not self._failure:
            self._blame()
        if self._failure:
            self._explain(self._failure.describe())
            return self._failure.status
        return self._stop_status

    def _explain(self, text: str) -> None:
        if self._spec.explain is not None:
            self._spec.explain(text)
        else:
            self._say(2, f"hvdtune run: {text}")

    # -- starting --

    def _watch_signals(self) -> int:
        """Note signals and have each wake the selector; returns the end it is woken by."""
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        self._selector.register(read_end, selectors.EVENT_READ)

        def note(number: int, _frame: FrameType | None) -> None:
            self._signals.append(number)

        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        handled = (*ENDING_SIGNALS, *FORWARDED_SIGNALS)
        signals = {n for n in handled if signal.getsignal(n) != signal.SIG_IGN}
        signals.add(signal.SIGTERM)  # even if ignored: it tells us of our parent's death
        for number in signals:
            signal.signal(number, note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        return read_end

    def _start_all(self) -> None:
        elsewhere: dict[str, list[Slot]] = {}
        for slot in self._spec.slots:
            if slot.hostname in self._spec.remote:
                elsewhere.setdefault(slot.hostname, []).append(slot)
        if elsewhere:
            self._start_by = time.monotonic() + self._spec.start_timeout
        for hostname, slots in elsewhere.items():
            self._connect(hostname, slots)
        here = [slot for slot in self._spec.slots if slot.hostname not in elsewhere]
        files = capacity.PIPES * (1 if self._spec.output_directory is None else 2)
        self._open_files = capacity.allow_files(len(here), files)
        for slot in here:
            self._start(slot)
            # Many take seconds to start. What is to be told to all waits until all are there.
            if any(number in ENDING_SIGNALS for number in self._signals):
                self._handle_signals()
                return

    def _start(self, slot: Slot) -> None:
        """Start a worker on this host."""
        files = self._output_files(slot)
        process = start_worker(
            self._spec.command,
            worker_environment(self._spec.environment, slot),
            self._spec.descriptors,
            self._open_files,
        )
        worker = self._workers[slot.rank] = Worker(slot, process)
        for pipe, file in zip((process.stdout, process.stderr), files, strict=True):
            assert pipe is not None
            try:
                descriptor = os.dup(pipe.fileno())
                stream = self._add_stream(worker, descriptor, file)
                self._selector.register(
                    descriptor, selectors.EVENT_READ, partial(self._pass_on, stream)
                )
            except OSError as error:
                raise StartError.of_rank(slot.rank, slot.size, error) from None
            pipe.close()
        self._tell_started(worker)

    def _connect(self, hostname: str, slots: Sequence[Slot]) -> None:
        """Have the workers of another host started there."""
        from hvdtune.launch.remote.connection import Connection

        connection = Connection(hostname, self._spec.remote[hostname])
        self._connections.append(connection)
        for slot in slots:
            worker = self._workers[slot.rank] = Worker(slot, connection=connection)
            for file in self._output_files(slot):
                self._add_stream(worker, None, file)
        connection.start(self._spec.command, self._spec.environment, slots)
        for descriptor, do in (
            (connection.output, self._hear),
            (connection.errors, self._complain),
        ):
            self._selector.register(descriptor, selectors.EVENT_READ, partial(do, connection))

    def _add_stream(
        self, worker: Worker, descriptor: int | None, file: BinaryIO | None
    ) -> WorkerStream:
        name = ("stdout", "stderr")[len(worker.streams)]
        stream = WorkerStream(
            worker.slot.rank, name, descriptor, worker.tail,
            timestamps=self._spec.timestamps, file=file,
        )  # fmt: skip
        worker.streams.append(stream)
        return stream

    def _tell_started(self, worker: Worker) -> None:
        if self._spec.verbose:
            import shlex

            words = f"started rank {worker.slot.rank} on {worker.slot.hostname} as pid {worker.pid}"
            self._say(2, f"hvdtune run: {words}: {shlex.join(self._spec.command)}\n")

    def _output_files(self, slot: Slot) -> list[BinaryIO | None]:
        if self._spec.output_directory is None:
            return [None, None]
        digits = len(str(slot.size - 1))
        folder = os.path.join(self._spec.output_directory, f"rank.{slot.rank:0{digits}d}")
        try:
            os.makedirs(folder, exist_ok=True)
            return [
                open(os.path.join(folder, name), "wb", buffering=0) for name in ("stdout", "stderr")
            ]
        except OSError as error:
            raise LaunchError(
                f"{self._spec.output_setting}: {error.filename} cannot be written: "
                f"{error.strerror}."
            ) from None

    # -- other hosts --

    def _register_input(self) -> None:
        """Wait for connections to take what is to be sent."""
        for connection in self._connections:
            registered = connection.input in self._selector.get_map()
            if connection.has_unsent and not registered:
                self._selector.register(connection.input, selectors.EVENT_WRITE, connection.pump)
            elif registered and not connection.has_unsent:
                self._selector.unregister(connection.input)

    def _hear(self, connection: Connection) -> None:
        frames = connection.frames()
        for frame in frames or ():
            worker = self._workers.get(frame.rank)
            if worker is None or worker.connection is not connection:
                continue
            try:
                self._take(worker, frame)
            except ValueError as error:
                connection.complain(f"what came from the host is not the agent's: {error}")
                frames = None
                break
        if frames is None:
            self._selector.unregister(connection.output)
            self._lose(connection)

    def _take(self, worker: Worker, frame: Frame) -> None:
        if frame.kind in (Kind.STDOUT, Kind.STDERR):
            stream = worker.streams[frame.kind == Kind.STDERR]
            self._print(stream, stream.take(frame.payload))
        elif frame.kind == Kind.STARTED:
            worker.pid = int(frame.payload)
            self._tell_started(worker)
        elif frame.kind == Kind.EXIT:
            self._note_end(worker, int(frame.payload))
        elif frame.kind == Kind.NOT_STARTED:
            status, _, why = frame.payload.decode("utf-8", "replace").partition(" ")
            raise StartError(int(status), f"on {worker.slot.hostname}: {why}")

    def _require_started(self) -> None:
        """Raise `LaunchError` when workers on another host have not started in time."""
        if self._start_by is None:
            return
        waiting = (w for w in self._workers.values() if w.connection and w.running and not w.pid)
        late = next(waiting, None)
        if late is None or self._phase > Phase.RUNNING:
            self._start_by = None
        elif time.monotonic() >= self._start_by:
            assert late.connection is not None
            said = late.connection.said
            raise LaunchError(
                f"host {late.slot.hostname}: nothing was started there within "
                f"{self._spec.start_timeout:g} s (HOROVOD_START_TIMEOUT): ssh runs, but the login "
                f"shell, or what it starts, hangs{f' ({said})' if said else ''}."
            )

    def _complain(self, connection: Connection) -> bool:
        """Pass on what ssh and the agent say; whether they may say more."""
        if connection.errors not in self._selector.get_map():
            return False  # it ended a moment ago
        lines, goes_on = connection.complaints()
        self._write(2, lines)
        if not goes_on:
            self._selector.unregister(connection.errors)
        return goes_on

    def _lose(self, connection: Connection) -> None:
        """The connection has ended, and with it the workers that still ran."""
        workers = [w for w in self._workers.values() if w.connection is connection]
        deadline = time.monotonic() + COMPLAINT_SECONDS
        while any(w.running for w in workers):
            left = deadline - time.monotonic()
            # select() knows no descriptor above 1023.
            ready = select.poll()
            ready.register(connection.errors, select.POLLIN)
            if not ready.poll(1000 * max(0.0, left)) or not self._complain(connection):
                break
        for worker in workers:
            if worker.running:
                worker.loss = connection.lost()
                self._note_end(worker, 255)
            for stream in worker.streams:
                if not stream.closed:
                    self._print(stream, stream.finish())
                    stream.close()

    # -- output --

    def _pass_on(self, stream: WorkerStream) -> None:
        lines, goes_on = stream.read()
        self._print(stream, lines)
        if not goes_on:
            self._close(stream)

    def _print(self, stream: WorkerStream, lines: bytes) -> None:
        if stream.file is not None and lines:
            try:
                stream.file.write(lines)
            except OSError as error:
                name = stream.file.name
                stream.file = None
                self._say(2, f"hvdtune run: {name} is given up: {error.strerror}\n")
        self._write(stream.console_descriptor, lines)

    def _write(self, descriptor: int, data: bytes) -> None:
        try:
            self._console.write(descriptor, data)
        except ConsoleClosedError:
            # As for any program whose reader goes away.
            self._stop(128 + signal.SIGPIPE)
        except OSError as error:
            # A full disk must not end a training.
            if descriptor not in self._unwritable:
                self._unwritable.add(descriptor)
                self._say(2, f"hvdtune run: output cannot be written: {error.strerror}\n")

    def _say(self, descriptor: int, text: str) -> None:
        self._write(descriptor, text.encode("utf-8", "replace"))

    def _close(self, stream: WorkerStream) -> None:
        if stream.descriptor is not None:
            self._selector.unregister(stream.descriptor)
        stream.close()

    def _flush(self) -> None:
        """Print what is left in the pipes; nobody writes to them any more."""
        for worker in self._workers.values():
            for stream in worker.streams:
                self._flush_stream(stream)

    def _flush_stream(self, stream: WorkerStream) -> None:
        while not stream.closed:
            lines, goes_on = stream.read()
            self._print(stream, lines)
            if not goes_on:
                self._close(stream)
                return
            if not lines:
                self._print(stream, stream.finish())
                return

    # -- ending --

    def _is_ending(self) -> bool:
        return self._phase >= Phase.ENDING or any(n in ENDING_SIGNALS for n in self._signals)

    def _anything_left(self) -> bool:
        if any(worker.running for worker in self._workers.values()):
            return True
        if self._deadline is None or self._phase < Phase.KILLED:
            # All workers have ended by themselves: wait for what their descendants still print.
            self._phase, self._deadline = Phase.KILLED, time.monotonic() + DRAIN_SECONDS
        streams = (stream for worker in self._workers.values() for stream in worker.streams)
        is_open = any(not stream.closed for stream in streams)
        return is_open and time.monotonic() < self._deadline

    def _time_left(self) -> float | None:
        unsettled = self._failed and not self._failure
        dues = (self._deadline, self._start_by, self._blame_at if unsettled else None)
        due = min((due for due in dues if due is not None), default=None)
        return None if due is None else max(0.0, due - time.monotonic())

    def _handle_signals(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            if number in FORWARDED_SIGNALS:
                self._signal_workers(number)
            elif self._stop_status:
                self._kill()  # the user asks again: no more grace
            else:
                self._say(2, f"hvdtune run: ending the job after {signal_name(number)}\n")
                self._stop(128 + number)

    def _stop(self, status: int) -> None:
        """End the job, which has not failed, by SIGTERM."""
        if self._stop_status or self._phase >= Phase.ENDING:
            return
        self._stop_status = status
        # Our parent's death leaves nobody to wait for us: be quick.
        orphaned = os.getppid() != self._parent
        self._terminate(GRACE_AFTER_FAILURE_SECONDS if orphaned else GRACE_AFTER_SIGNAL_SECONDS)

    def _signal_workers(self, number: int) -> None:
        for worker in self._workers.values():
            if worker.running:
                worker.signal(number)

    def _collect(self) -> None:
        """Take note of the workers that have ended; the first failure ends the job."""
        ended = processes.reap_all()
        if not ended:
            return
        by_pid = {worker.pid: worker for worker in self._workers.values() if worker.process}
        for pid, code in ended:
            worker = by_pid.get(pid)
            if worker is not None and worker.process is not None:  # and no orphan of a worker's
                worker.process.returncode = code
                self._note_end(worker, code)

    def _note_end(self, worker: Worker, code: int) -> None:
        worker.code = code
        if self._spec.verbose:
            words = worker.loss or f"ended with exit code {code}"
            self._say(2, f"hvdtune run: rank {worker.slot.rank} {words}\n")
        if code != 0 and self._phase <= Phase.FAILING:
            for stream in worker.streams:
                self._flush_stream(stream)
            self._note_failure(worker)

    def _note_failure(self, worker: Worker) -> None:
        """Remember a suspect, and how long to wait for a better one.

        The effect may be seen before its cause: a worker's connections close, and the others fail,
        some time before the worker itself has ended.
        """
        now = time.monotonic()
        if self._phase == Phase.RUNNING:
            self._phase, self._deadline = Phase.FAILING, now + SURVIVORS_SECONDS
            self._blame_at = self._deadline
        self._failed.append(worker)
        wait = (0.0, BLAME_SECONDS, SURVIVORS_SECONDS)[worker.innocence()]
        self._blame_at = min(self._blame_at, now + wait)

    def _blame(self) -> None:
        """Settle which failure ends the job, and say so."""
        worker = min(self._failed, key=lambda worker: worker.innocence())  # the first of equals
        slot, code = worker.slot, worker.code
        assert code is not None
        self._failure = Failure(
            slot.rank, slot.hostname, worker.pid, code, [*worker.tail], worker.loss
        )
        words = f"Process {slot.rank} exit with status code {self._failure.status}.\n"
        if slot.size > 1:
            words += f"Terminating remaining workers after failure of Process {slot.rank}.\n"
        self._say(1, words)

    def _advance(self) -> None:
        """Do what is due."""
        self._require_started()
        if self._failed and not self._failure:
            all_ended = not any(worker.running for worker in self._workers.values())
            if all_ended or time.monotonic() >= self._blame_at:
                self._blame()
        if self._deadline is None or time.monotonic() < self._deadline:
            return
        if self._phase == Phase.FAILING:
            self._terminate(GRACE_AFTER_FAILURE_SECONDS)
        elif self._phase == Phase.ENDING or any(w.running for w in self._workers.values()):
            self._kill()

    def _terminate(self, grace: float) -> None:
        self._phase, self._deadline = Phase.ENDING, time.monotonic() + grace
        for worker in self._workers.values():
            if worker.running:
                worker.signal(signal.SIGTERM, group=True)

    def _kill(self) -> None:
        self._phase, self._deadline = Phase.KILLED, time.monotonic() + DRAIN_SECONDS
        for pid in processes.descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _drain(descriptor: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(descriptor, 4096):
            pass


def run_job(spec: JobSpec) -> int:
    """Run a job guarded (see `hvdtune.launch.local.guard`); return the launcher's exit status."""
    return run_guarded(lambda: Job(spec).run(), spec.environment)


def run_guarded(work: Callable[[], int], environment: Mapping[str, str]) -> int:
    """Run what runs a job with these variables in a guarded process; return its exit status.

    Of a job that failed, the ranks' timelines are joined afterwards, in a guarded process, too: its
    rank 0 may not have come to it. A signal ends that, and after a signal it gets little time.
    """
    began = time.time()
    status = guarded(work)
    if status != 0 and recording.unfinished(environment):
        told = status - 128 in ENDING_SIGNALS
        guarded(partial(_join, environment, JOIN_AFTER_SIGNAL_SECONDS if told else 0.0))
    outcome = recording.outcome(environment, began)
    if outcome:
        print(f"hvdtune run: {outcome}", file=sys.stderr)
    return status


def _join(environment: Mapping[str, str], seconds: float) -> int:
    """Join what the ranks recorded; with `seconds`, only if that takes no longer."""
    asked = 0

    def end(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked += 1
        signal.setitimer(signal.ITIMER_REAL, 0.2)  # again, should it not have begun, or not hear
        for pid in processes.descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if asked < 4 else signal.SIGKILL)

    for number in (*ENDING_SIGNALS, signal.SIGALRM):
        if signal.getsignal(number) != signal.SIG_IGN or number == signal.SIGTERM:
            signal.signal(number, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
    problem = recording.finish_after_failure(environment)
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    if problem:
        print(f"hvdtune run: {problem}", file=sys.stderr)
    return 0
