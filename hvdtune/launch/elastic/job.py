"""An elastic job of `hvdtune run`, from its first look at the hosts to its last process.

One thread waits for everything at once: processes' output, ends and messages, the discovery script,
signals, deadlines.
"""

from __future__ import annotations

import enum
import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from hvdtune.launch.allocation import capacity
from hvdtune.launch.allocation.hosts import Host
from hvdtune.launch.elastic import wording
from hvdtune.launch.elastic.driver.driver import Driver
from hvdtune.launch.elastic.driver.errands import Errands
from hvdtune.launch.elastic.driver.processes import Processes, Program, Reach
from hvdtune.launch.elastic.driver.script import Script
from hvdtune.launch.elastic.exclusion import Exclusion
from hvdtune.launch.elastic.limits import MOST_PROCESSES, Limits
from hvdtune.launch.elastic.membership import Membership
from hvdtune.launch.errors import LaunchError
from hvdtune.launch.job import (
    DRAIN_SECONDS,
    GRACE_AFTER_FAILURE_SECONDS,
    GRACE_AFTER_SIGNAL_SECONDS,
    run_guarded,
)
from hvdtune.launch.local import processes
from hvdtune.launch.local.endings import signal_name
from hvdtune.launch.local.environment import without_place
from hvdtune.launch.local.guard import FORWARDED_SIGNALS
from hvdtune.launch.local.relay import Relay
from hvdtune.launch.local.signals import Signals
from hvdtune.launch.remote.interfaces import Interfaces
from hvdtune.launch.remote.ssh import Ssh
from hvdtune.launch.worker import Worker
from hvdtune.launch.workers import Workers

# In a small job, room for the driver's other files: pipes of errands, connections that end.
_FEWEST = 64
# A failure within this time before the job's end may be its reason.
_REASON_SECONDS = 2.0


class ElasticSpec(NamedTuple):
    """What to run.

    `environment` is shared by all processes (see `job_environment`). Hosts are those that `script`
    prints, with `slots` if it prints none; without a script they are `hosts`. `cooldown` is the
    range of seconds that a host stays excluded, None for ever. `health_check` is a command for
    hosts. Other hosts are reached with `ssh`. `heartbeat`: see `Driver`.
    The rest is as in `hvdtune.launch.job.JobSpec`.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    limits: Limits
    hosts: Sequence[Host] = ()
    script: str | None = None
    slots: int | None = None
    cooldown: tuple[float, float] | None = None
    health_check: str | None = None
    ssh: Ssh = Ssh()
    interfaces: Interfaces = Interfaces()
    heartbeat: float = 5.0
    output_directory: str | None = None
    output_setting: str = "--output-filename"
    timestamps: bool = False
    verbose: bool = False
    descriptors: Sequence[int] = ()
    explain: Callable[[str], None] | None = None


class _Phase(enum.IntEnum):
    """The phases of a job, in order; it never goes back."""

    RUNNING = 0
    ENDING = 1  # its processes have been sent SIGTERM
    KILLED = 2


class ElasticJob:
    """Runs an `ElasticSpec` once. Must own its process, as it reaps every child there is."""

    def __init__(self, spec: ElasticSpec) -> None:
        self._spec = spec
        self._phase = _Phase.RUNNING
        self._deadline: float | None = None
        self._status = 0
        self._text = ""
        self._signals: Signals | None = None
        self._parent = os.getppid()
        self._failed: list[tuple[float, Worker]] = []
        self._selector = selectors.DefaultSelector()
        self._relay = Relay(self._selector, self._is_ending, self._lose_reader)
        self._errands = Errands(self._selector, self._relay)
        self._driver = Driver(
            self._selector,
            Membership(spec.limits, Exclusion(spec.cooldown)),
            job=spec.environment["HVDTUNE_JOB_ID"],
            secret=spec.environment["HVDTUNE_SECRET"],
            heartbeat=spec.heartbeat,
            say=self._say,
        )
        digits = len(str(spec.limits.processes - 1))
        self._processes = Processes(
            Program(
                spec.command, without_place(spec.environment), spec.output_directory,
                spec.output_setting, digits, spec.descriptors, spec.verbose,
            ),
            Reach(spec.ssh, spec.interfaces, spec.health_check, spec.limits.start_timeout),
            self._errands,
            self._driver,
            self._say,
            self._note_end,
        )  # fmt: skip
        self._driver.starter = self._processes
        self._workers = Workers(self._selector, self._relay, self._processes, spec.timestamps)
        self._processes.workers = self._workers
        self._script: Script | None = None
        if spec.script is not None:
            self._script = Script(
                self._errands, spec.script, spec.slots,
                self._driver.hosts, self._driver.discovery_failed,
            )  # fmt: skip

    def run(self) -> int:
        """Run until the job and its last process have ended; return the exit status.

        It is 0 if the job has succeeded, 1 if it has failed, and 128 + N if signal N told the
        launcher to end it.
        """
        self._signals = Signals(self._selector)
        self._processes.open_files = capacity.allow_files(_most_files(self._spec))
        try:
            if self._script is None:
                self._warn_of_one_host()
                self._driver.hosts(self._spec.hosts)
            while self._anything_left():
                self._workers.register_input()
                for key, _ in self._selector.select(self._time_left()):
                    key.data()
                self._handle_signals()
                for child in self._workers.collect():
                    self._errands.collect(*child)
                self._advance(time.monotonic())
        except LaunchError as error:
            self._status, self._text = 1, f"{error}"
        finally:
            processes.kill_descendants()
            # Nobody writes to the pipes any more.
            for worker in self._workers.all.values():
                self._workers.flush(worker)
        self._explain()
        return self._status

    def _warn_of_one_host(self) -> None:
        spec = self._spec
        is_lost = spec.limits.replaces_failed is False and spec.cooldown is None
        if is_lost and len(spec.hosts) == 1 and spec.hosts[0].slots > 1:
            self._say(wording.one_host(spec.hosts[0].name))

    def _say(self, text: str) -> None:
        self._relay.say(2, f"hvdtune run: {text}\n")

    def _explain(self) -> None:
        """Say how the job ended, if there is something to say."""
        text = f"{self._text}\n" if self._text else ""
        reasons = [w for at, w in self._failed if at >= self._failed[-1][0] - _REASON_SECONDS]
        if self._status == 1 and reasons:
            text += min(reasons, key=lambda worker: worker.innocence()).failure().describe()
        if self._spec.explain is not None:
            self._spec.explain(text)
        elif text:
            self._relay.say(2, f"hvdtune run: {text}")

    def _note_end(self, worker: Worker) -> None:
        if worker.code and self._phase == _Phase.RUNNING:
            self._failed = [*self._failed[-100:], (time.monotonic(), worker)]

    # -- the loop --

    def _anything_left(self) -> bool:
        if self._phase == _Phase.RUNNING or any(self._workers.running()):
            return True
        if self._phase < _Phase.KILLED or self._deadline is None:
            # All have ended by themselves: wait for what their descendants still print.
            self._phase, self._deadline = _Phase.KILLED, time.monotonic() + DRAIN_SECONDS
        return self._workers.open_streams() and time.monotonic() < self._deadline

    def _time_left(self) -> float | None:
        dues = [self._deadline, self._driver.next_due(), self._processes.next_due()]
        if self._phase == _Phase.RUNNING:
            dues += [self._errands.next_due(), self._script.due if self._script else None]
        due = min((due for due in dues if due is not None), default=None)
        return None if due is None else max(0.0, due - time.monotonic())

    def _advance(self, now: float) -> None:
        """Do what is due."""
        self._driver.advance(now)
        self._processes.advance(now)
        if self._phase == _Phase.RUNNING:
            self._errands.advance(now)
            if self._script is not None:
                self._script.advance(now)
            end = self._driver.end
            if end is not None:
                self._text = end.text
                self._stop(end.status, GRACE_AFTER_FAILURE_SECONDS)
        elif self._deadline is not None and now >= self._deadline:
            self._kill()

    # -- ending --

    def _is_ending(self) -> bool:
        asked = self._signals is not None and self._signals.ask_to_end
        return self._phase > _Phase.RUNNING or asked

    def _lose_reader(self) -> None:
        if self._phase == _Phase.RUNNING:
            self._stop(128 + signal.SIGPIPE, GRACE_AFTER_SIGNAL_SECONDS)

    def _handle_signals(self) -> None:
        assert self._signals is not None
        while self._signals.noted:
            number = self._signals.noted.pop(0)
            if number in FORWARDED_SIGNALS:
                for worker in self._workers.running():
                    worker.signal(number)
            elif self._phase > _Phase.RUNNING:
                self._kill()  # the user asks again: no further grace
            else:
                self._say(f"ending the job after {signal_name(number)}")
                # After our parent's death nobody waits for us: be quick.
                orphaned = os.getppid() != self._parent
                self._stop(
                    128 + number,
                    GRACE_AFTER_FAILURE_SECONDS if orphaned else GRACE_AFTER_SIGNAL_SECONDS,
                )

    def _stop(self, status: int, grace: float) -> None:
        """End the job: its processes get SIGTERM; everything else that runs ends at once."""
        self._phase, self._deadline = _Phase.ENDING, time.monotonic() + grace
        self._status = status
        self._driver.stop()
        self._errands.close()
        for worker in self._workers.running():
            worker.signal(signal.SIGTERM, group=True)

    def _kill(self) -> None:
        if self._phase == _Phase.KILLED:
            for text in self._workers.leave():
                self._say(text)
        self._phase, self._deadline = _Phase.KILLED, time.monotonic() + DRAIN_SECONDS
        for pid in processes.descendants(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue


def _most_files(spec: ElasticSpec) -> int:
    """How many files the driver may have open for the processes, each on a host of its own."""
    limits = spec.limits
    count = max(_FEWEST, (limits.most or MOST_PROCESSES) + limits.spares)
    kept = 0 if spec.output_directory is None else capacity.OUTPUT_FILES
    # The process's own connection, and ssh's pipes, which are more than those of a process here.
    return count * (1 + capacity.CONNECTION_PIPES + kept)


def run_elastic_job(spec: ElasticSpec) -> int:
    """Run a job guarded (see `hvdtune.launch.local.guard`); return the launcher's exit status."""
    return run_guarded(lambda: ElasticJob(spec).run(), spec.environment)
