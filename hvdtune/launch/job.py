"""One job from its first process to its last: start, output, failure, end.

    running   all workers live or have exited with 0
    failing   one has failed; the others have a moment to notice and report it themselves
    ending    the workers have been sent SIGTERM
    killed    the workers that were left have been sent SIGKILL

The job moves down this list, never up. One thread waits for everything at once: output, ended
children, signals, deadlines.
"""

from __future__ import annotations

import contextlib
import enum
import os
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
from hvdtune.launch.errors import FAILED, LaunchError
from hvdtune.launch.local import processes
from hvdtune.launch.local.endings import Failure, signal_name
from hvdtune.launch.local.environment import place, worker_environment
from hvdtune.launch.local.guard import ENDING_SIGNALS, FORWARDED_SIGNALS, guarded
from hvdtune.launch.local.relay import Relay, open_files
from hvdtune.launch.local.signals import Signals
from hvdtune.launch.local.spawn import StartError
from hvdtune.launch.worker import Worker
from hvdtune.launch.workers import Workers

if TYPE_CHECKING:
    from hvdtune.launch.remote.connection import Connection

# After a failure the job is over within the sum of the first two, plus the time for killing.
SURVIVORS_SECONDS = 1.0
# Several workers may end within moments; the launcher waits this long for the original failure.
BLAME_SECONDS = 0.1
GRACE_AFTER_FAILURE_SECONDS = 1.0
# After Ctrl-C or SIGTERM a worker may want to save its state.
GRACE_AFTER_SIGNAL_SECONDS = 5.0
# Descendants of ended workers may still hold their pipes; the launcher reads on for this long.
DRAIN_SECONDS = 0.5
# A user who interrupts a job does not wait for its timeline: `timeline merge` can make a long one.
JOIN_AFTER_SIGNAL_SECONDS = 1.5


class Phase(enum.IntEnum):
    """The phases of a job; see the module's text."""

    RUNNING = 0
    FAILING = 1
    ENDING = 2
    KILLED = 3


class JobSpec(NamedTuple):
    """What to run. `environment` is shared by all workers (see `job_environment`).

    `output_setting` is the caller's name for `output_directory`.
    The workers inherit the open files `descriptors`. `explain` is given the sentence on why the
    job failed, instead of stderr. `remote` has, for every other host, the command that runs the
    agent there (see `launch.remote.ssh`); the agent has `start_timeout` seconds to start workers.
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
    """Runs a `JobSpec` once. Must own its process, as it reaps every child there is."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._phase = Phase.RUNNING
        self._deadline: float | None = None
        self._failed: list[Worker] = []
        self._blame_at = 0.0
        self._failure: Failure | None = None
        self._stop_status = 0
        self._selector = selectors.DefaultSelector()
        self._relay = Relay(self._selector, self._is_ending, self._lose_reader)
        self._workers = Workers(self._selector, self._relay, self, spec.timestamps)
        self._signals: Signals | None = None
        self._start_by: float | None = None  # until all workers elsewhere have started
        self._parent = 0

    def run(self) -> int:
        """Start the workers, wait for the last to end, and return the launcher's exit status.

        It is 0 if every worker returned 0, otherwise the first failing worker's exit code, or
        128 + N if signal N killed it. It is also 128 + N if signal N told the launcher to end the
        job, and 126 or 127 if the command cannot be started, as in a shell.
        """
        self._parent = os.getppid()
        self._signals = Signals(self._selector)
        try:
            self._start_all()
            while self._anything_left():
                self._workers.register_input()
                for key, _ in self._selector.select(self._time_left()):
                    key.data()
                self._handle_signals()
                self._workers.collect()
                self._advance()
        except (StartError, LaunchError) as error:
            self._explain(f"{error}\n")
            return error.status if isinstance(error, StartError) else 2
        finally:
            processes.kill_descendants()
            # Nobody writes to the pipes any more.
            for worker in self._workers.all.values():
                self._workers.flush(worker)
        if self._failed and not self._failure:
            self._blame()
        if self._failure:
            self._explain_failure(self._failure)
            return self._failure.status
        return self._stop_status

    def _explain(self, text: str) -> None:
        if self._spec.explain is not None:
            self._spec.explain(text)
        else:
            self._say(2, f"hvdtune run: {text}")

    def _explain_failure(self, failure: Failure) -> None:
        text = failure.describe()
        self._explain(text if self._spec.explain is None else f"{FAILED}: {text}")

    def _say(self, descriptor: int, text: str) -> None:
        self._relay.say(descriptor, text)

    # -- starting --

    def _start_all(self) -> None:
        elsewhere: dict[str, list[Slot]] = {}
        for slot in self._spec.slots:
            if slot.hostname in self._spec.remote:
                elsewhere.setdefault(slot.hostname, []).append(slot)
        here = [slot for slot in self._spec.slots if slot.hostname not in elsewhere]
        files = capacity.PIPES * len(here) + capacity.CONNECTION_PIPES * len(elsewhere)
        if self._spec.output_directory is not None:
            files += capacity.OUTPUT_FILES * len(self._spec.slots)
        open_files = capacity.allow_files(files)
        if elsewhere:
            self._start_by = time.monotonic() + self._spec.start_timeout
        for hostname, slots in elsewhere.items():
            connection = self._workers.connect(hostname, self._spec.remote[hostname])
            for slot in slots:
                self._workers.expect(slot.rank, slot, connection, self._output_files(slot))
            places = {slot.rank: place(slot) for slot in slots}
            connection.start(self._spec.command, self._spec.environment, places)
        for slot in here:
            self._workers.start(
                slot.rank,
                slot,
                self._spec.command,
                worker_environment(self._spec.environment, slot),
                self._output_files(slot),
                self._spec.descriptors,
                open_files,
            )
            # Many take seconds to start. Messages to all workers wait until all have started.
            assert self._signals is not None
            if self._signals.ask_to_end:
                self._handle_signals()
                return

    def _output_files(self, slot: Slot) -> Sequence[BinaryIO | None]:
        if self._spec.output_directory is None:
            return [None, None]
        name = f"rank.{slot.rank:0{len(str(slot.size - 1))}d}"
        return open_files(self._spec.output_directory, name, self._spec.output_setting)

    def started(self, worker: Worker) -> None:
        """A worker runs."""
        if self._spec.verbose:
            import shlex

            words = f"started rank {worker.slot.rank} on {worker.slot.hostname} as pid {worker.pid}"
            self._say(2, f"hvdtune run: {words}: {shlex.join(self._spec.command)}\n")

    def not_started(self, worker: Worker, error: StartError) -> None:
        """A worker of another host could not be started: the job ends."""
        raise error

    def introduced(self, connection: Connection, facts: bytes) -> None:
        """Not used: agents of this kind of job do not introduce themselves."""

    def lost(self, connection: Connection) -> None:
        """Nothing to do: the ends of its workers have been reported already."""

    def _require_started(self) -> None:
        """Raise `LaunchError` if workers on another host have not started in time."""
        if self._start_by is None:
            return
        waiting = (w for w in self._workers.running() if w.connection and not w.pid)
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

    # -- ending --

    def _is_ending(self) -> bool:
        asked = self._signals is not None and self._signals.ask_to_end
        return self._phase >= Phase.ENDING or asked

    def _lose_reader(self) -> None:
        self._stop(128 + signal.SIGPIPE)

    def _anything_left(self) -> bool:
        if any(self._workers.running()):
            return True
        if self._deadline is None or self._phase < Phase.KILLED:
            # All workers have ended by themselves: wait for what their descendants still print.
            self._phase, self._deadline = Phase.KILLED, time.monotonic() + DRAIN_SECONDS
        return self._workers.open_streams() and time.monotonic() < self._deadline

    def _time_left(self) -> float | None:
        unsettled = self._failed and not self._failure
        dues = (self._deadline, self._start_by, self._blame_at if unsettled else None)
        due = min((due for due in dues if due is not None), default=None)
        return None if due is None else max(0.0, due - time.monotonic())

    def _handle_signals(self) -> None:
        assert self._signals is not None
        while self._signals.noted:
            number = self._signals.noted.pop(0)
            if number in FORWARDED_SIGNALS:
                for worker in self._workers.running():
                    worker.signal(number)
            elif self._stop_status:
                self._kill()  # the user asks again: no further grace
            else:
                self._say(2, f"hvdtune run: ending the job after {signal_name(number)}\n")
                self._stop(128 + number)

    def _stop(self, status: int) -> None:
        """End the job with SIGTERM; it has not failed."""
        if self._stop_status or self._phase >= Phase.ENDING:
            return
        self._stop_status = status
        # After our parent's death nobody waits for us: be quick.
        orphaned = os.getppid() != self._parent
        self._terminate(GRACE_AFTER_FAILURE_SECONDS if orphaned else GRACE_AFTER_SIGNAL_SECONDS)

    def ended(self, worker: Worker) -> None:
        """Take note of a worker's end; the first failure ends the job."""
        if self._spec.verbose:
            words = worker.loss or f"ended with exit code {worker.code}"
            self._say(2, f"hvdtune run: rank {worker.slot.rank} {words}\n")
        if worker.code != 0 and self._phase <= Phase.FAILING:
            self._workers.flush(worker)
            self._note_failure(worker)

    def _note_failure(self, worker: Worker) -> None:
        """Remember a suspect, and how long to wait for a better one.

        The effect may be seen before its cause: when a worker dies, its connections close, and the
        others may fail before the worker itself has ended.
        """
        now = time.monotonic()
        if self._phase == Phase.RUNNING:
            self._phase, self._deadline = Phase.FAILING, now + SURVIVORS_SECONDS
            self._blame_at = self._deadline
        self._failed.append(worker)
        wait = (0.0, BLAME_SECONDS, SURVIVORS_SECONDS)[worker.innocence()]
        self._blame_at = min(self._blame_at, now + wait)

    def _blame(self) -> None:
        """Decide which failure ends the job, and report it."""
        worker = min(self._failed, key=lambda worker: worker.innocence())  # the first of equals
        slot, self._failure = worker.slot, worker.failure()
        words = f"Process {slot.rank} exit with status code {self._failure.status}.\n"
        if slot.size > 1:
            words += f"Terminating remaining workers after failure of Process {slot.rank}.\n"
        self._say(1, words)

    def _advance(self) -> None:
        """Do what is due."""
        self._require_started()
        unsettled = self._failed and not self._failure
        all_ended = not any(self._workers.running())
        if unsettled and (all_ended or time.monotonic() >= self._blame_at):
            self._blame()
        if self._deadline is None or time.monotonic() < self._deadline:
            return
        if self._phase == Phase.FAILING:
            self._terminate(GRACE_AFTER_FAILURE_SECONDS)
        elif self._phase == Phase.ENDING or any(self._workers.running()):
            self._kill()

    def _terminate(self, grace: float) -> None:
        self._phase, self._deadline = Phase.ENDING, time.monotonic() + grace
        for worker in self._workers.running():
            worker.signal(signal.SIGTERM, group=True)

    def _kill(self) -> None:
        if self._phase == Phase.KILLED:
            for text in self._workers.leave():
                self._say(2, f"hvdtune run: {text}\n")
        self._phase, self._deadline = Phase.KILLED, time.monotonic() + DRAIN_SECONDS
        for pid in processes.descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def run_job(spec: JobSpec) -> int:
    """Run a job guarded (see `hvdtune.launch.local.guard`); return the launcher's exit status."""
    return run_guarded(lambda: Job(spec).run(), spec.environment)


def run_guarded(work: Callable[[], int], environment: Mapping[str, str]) -> int:
    """Run `work`, a job with these variables, in a guarded process; return its exit status.

    If the job failed, its rank 0 may not have joined the ranks' timelines; another guarded process
    joins them afterwards. A signal ends that process, and after a signal it gets little time.
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
    """Join the ranks' recordings; with `seconds`, only if that takes no longer."""
    asked = 0

    def end(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked += 1
        signal.setitimer(signal.ITIMER_REAL, 0.2)  # repeatedly, in case the first has no effect
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
