"""Tuning of this process's job: started when the engine is up, ended before it shuts down.

Only this module of the package touches the engine: it gives the engine to the session, whose thread
it starts. The engine may start again in the same process (an elastic reset, a second `init`). The
findings of the earlier tuning are then verified instead of searched again, and its cost counts
against the same limit.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hvdtune.autotune.memory import identity
from hvdtune.autotune.memory.recall import Found, open_memory
from hvdtune.autotune.messages import Messenger
from hvdtune.autotune.report import log
from hvdtune.autotune.search.space import Value
from hvdtune.autotune.session.agent import Agent
from hvdtune.autotune.session.session import Session
from hvdtune.autotune.statistics.cycle import Part

STOP_S = 2.0
MOST_HELD = 500  # steps


@dataclass(frozen=True)
class _Before:
    """What an earlier session leaves to this process's next one, for a job of `size` ranks."""

    size: int
    found: Found | None
    harm_steps: float = 0.0


class _SharedEngine:
    """The engine of this process for the tuner, which never overwrites what the program changes.

    Both may ask for a change at the same time. The tuner's is then dropped, and the tuner learns of
    the program's change from the steps that ran under it.
    """

    def __init__(self) -> None:
        from hvdtune.core import tuning

        self.EngineStopped = tuning.EngineStopped
        self._tuning = tuning
        self._began = self._changes = tuning.changes()
        self._epoch = 0
        self._steps_read = self._steps_held = 0

    def read_steps(self, timeout_s: float) -> Sequence[Part]:
        """Steps since the last call, without those in which something else is being tried.

        The first step is always returned, because it tells the settings in force. At most MOST_HELD
        steps are left out.
        """
        held = self._tuning.is_held() and self._steps_held < MOST_HELD
        steps = self._tuning.read_steps(timeout_s)
        if held:
            self._steps_held += len(steps)
            steps = [] if self._steps_read else steps[:1]
        self._steps_read += len(steps)
        return steps

    def current(self) -> Mapping[str, Value]:
        """The settings in force; the caller then knows all changes so far, and may change them."""
        self._changes = self._tuning.changes()
        return self._tuning.current()

    def peek(self) -> Mapping[str, Value]:
        """The settings in force, without taking note of new changes (see `current`)."""
        return self._tuning.current()

    def asked(self) -> Mapping[str, Value]:
        """What the program has changed since tuning began; takes note of it, like `current`."""
        self._changes = self._tuning.changes()
        return self._tuning.asked_since(self._began)

    def apply(self, values: Mapping[str, Value]) -> int:
        """Apply settings; returns the new epoch's number, an earlier one if others were first."""
        epoch = self._tuning.apply_unless_changed(values, self._changes)
        if epoch is not None:
            self._changes += 1
            self._epoch = epoch
        return self._epoch


_running: tuple[Session | Agent, threading.Thread] | None = None
_before: _Before | None = None
_logs_begun: set[str] = set()


def start() -> None:
    """Begin tuning the job (on rank 0, when the engine is up)."""
    from hvdtune.core import tuning, world
    from hvdtune.core.driver import member
    from hvdtune.core.libraries import machine

    if _running is not None:
        stop()
    settings = world.settings()
    messenger = Messenger(settings.log_level, settings.log_hide_time, world.rank(), _record)
    if settings.autotune_driver:
        try:
            _run(Agent(tuning, settings.autotune_driver))
        except OSError as error:
            messenger.warn(f"Autotuner: hvdtune tune cannot be reached: {error}")
        return
    writer = None
    if settings.autotune_log:
        # A second init continues the log instead of overwriting it; in an elastic job,
        # another process may have begun it.
        append = settings.autotune_log in _logs_begun or member.is_reformed()
        writer = log.LogWriter(settings.autotune_log, messenger.warn, append)
        _logs_begun.add(settings.autotune_log)
    try:
        program = identity.program_name(sys.argv)
        memory = open_memory(
            settings, messenger, program, world.size(), world.local_size(), machine.usable_cpus()
        )
        session = Session(
            _SharedEngine(), settings, world.size(), messenger, writer, memory=memory,
            before=_found_before(world.size(), member.is_reformed()),
            harm_steps=_before.harm_steps if _before else 0.0,
        )  # fmt: skip
    except Exception as error:
        messenger.warn(f"Autotuner: tuning did not start: {type(error).__name__}: {error}")
        return
    _run(session)


def _found_before(size: int, is_reformed: bool) -> Found | None:
    """What was found before; with another number of ranks, only in a re-formed elastic job."""
    return _before.found if _before and (_before.size == size or is_reformed) else None


def keep_what_is_in_force() -> None:
    """Call this on ranks other than 0 before the engine stops: one may be the next rank 0."""
    global _before
    from hvdtune.core import tuning, world

    _before = _Before(world.size(), Found(dict(tuning.current()), "the job's last generation"))


def _record(text: str) -> None:
    from hvdtune.core.observation import marks

    marks.record(marks.AUTOTUNE, 0, text)


def _run(worker: Session | Agent) -> None:
    from hvdtune.core import tuning

    global _running

    def work() -> None:
        worker.run()
        if _running is not None:  # not if the engine stops
            tuning.stop_watching()

    thread = threading.Thread(target=work, name="hvdtune-autotune", daemon=True)
    _running = worker, thread
    thread.start()


def end_search(reason: str) -> None:
    """If this process is tuning, end the search but still compare: time is short.

    `reason` becomes part of the verdict. May be called from any thread.
    """
    if _running is not None and isinstance(_running[0], Session):
        _running[0].end_search_soon(reason)


def stop() -> None:
    """End tuning, finished or not, before the engine stops.

    Takes a tenth of a second; at most STOP_S, if a change or the memory's file takes long.
    """
    global _running, _before
    if _running is None:
        return
    worker, thread = _running
    _running = None
    worker.stop_soon()
    thread.join(STOP_S)
    if isinstance(worker, Session):
        _before = _Before(worker.size, worker.result, worker.harm_steps)
