"""What a program tells the recording of: ends of steps, what it does just now, whatever it likes.

Nothing of this costs more than a call while nobody records.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

import hvdtune._native as _native
from hvdtune.core import world

STALL, AUTOTUNE, STRAGGLER, USER, PHASE = (
    _native.MARKS[kind] for kind in ("stall", "autotune", "straggler", "user", "phase")
)
PROGRAM, CALL_SITE = 11, 12  # known to Python alone
DESCRIBED_EVERY = 256  # steps: another recording may have begun

_owner: weakref.ref[object] | None = None  # whose steps count
_by_hand = False
_told = 0  # steps that graphs have told of, when one ended last that Python knows of
_after_steps: list[Callable[[], None]] = []
spans_left = 0  # so often a phase of the user's has ended, and with it what went on inside
_decision = ""  # what a recording that begins later should have as well
_is_recorded = False  # it is in the one that runs
_described = 0  # steps since a recording was told how gradients are reduced


def mark_step() -> None:
    """A training step of this rank ends here.

    For programs that do not use DistributedOptimizer, whose ``step()`` does it by itself; once a
    program has called this, only its own calls count. Steps are numbered from 1, on every rank by
    itself. Raises ValueError before init.
    """
    global _by_hand
    if not _by_hand:
        _native.leave_steps_to_program()
    _by_hand = True
    engine = world.engine_if_joined()
    if engine is not None:
        engine.mark_step()
    _tell_of_step()


def step_ended(owner: object, mark: Callable[[], None] | None = None) -> None:
    """An optimizer's step ends. Only those of one object count: of the first, while it lives.

    ``mark``: marks it, for a framework that only computes the step later. Where the step's own
    graph has told of an end since this was called last, it is that one.
    """
    global _owner, _told
    engine = world.running.engine
    if engine is None:
        return
    if _decision:
        _record_decision()
    if _by_hand:
        return
    told, _told = _told, _native.steps_ended()
    if told != _told:
        _tell_of_step()
        return
    counting = None if _owner is None else _owner()
    if counting is None:
        _owner = weakref.ref(owner)
    elif counting is not owner:
        return
    (mark or engine.mark_step)()
    _tell_of_step()


def after_each_step(call: Callable[[], None]) -> None:
    """Have ``call`` called behind every step of this rank that counts."""
    _after_steps.append(call)


def _tell_of_step() -> None:
    for call in _after_steps:
        call()


class Span:
    """What ``mark`` returns: in a ``with`` statement, the time in it is recorded as a phase."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __enter__(self) -> None:
        phase(self._text, 1)

    def __exit__(self, *_error: object) -> None:
        global spans_left
        spans_left += 1
        phase(self._text, 0)


def is_time_to_describe() -> bool:
    """Whether a recording is to be told at the end of this step how the program works."""
    global _described
    if _described == 0 and not are_recorded():
        return False
    _described = (_described + 1) % DESCRIBED_EVERY
    return _described == 1


def mark(text: str, value: int = 0) -> Span:
    """Put a moment into this rank's recording, shown with ``text``; nothing if nobody records.

    ``with mark("evaluation"):`` also records how long the program is in there: the report then says
    how much of each step that takes, and on which rank it takes longer. What is marked "input",
    "forward", "backward", "update", "evaluation" or "checkpoint" is judged as such. ``value`` is
    kept with the moment. Raises ValueError before init.
    """
    text = str(text)
    engine = world.engine_if_joined()
    if engine is not None:
        engine.mark(USER, int(value), text)
    return Span(text)


def phase(text: str, value: int) -> None:
    """The main thread begins (1; 2: on a device) or ends (0) something; nothing before init."""
    engine = world.running.engine
    if engine is not None and threading.get_ident() == threading.main_thread().ident:
        engine.mark(PHASE, value, text)


def record(kind: int, value: int, text: str) -> None:
    """The same for marks of other kinds (`timeline.record.layout.Mark`); nothing before init."""
    engine = world.running.engine
    if engine is not None:
        engine.mark(kind, value, text)


def counter(name: str, value: float) -> None:
    """Put a counter's reading into this rank's recording; its name tells the unit."""
    engine = world.running.engine
    if engine is not None:
        engine.counter(name, float(value))


def are_recorded() -> bool:
    """Whether what is told now is recorded on this rank."""
    engine = world.running.engine
    return engine is not None and engine.takes_records()


def record_decision(text: str) -> None:
    """Record what hvdtune has decided by itself, in place of what it had decided before.

    Recordings that begin later have it, too, if steps end in them.
    """
    global _decision, _is_recorded
    _decision, _is_recorded = text, False
    _record_decision()


def forget_decision() -> None:
    """Nothing is decided in this job so far."""
    global _decision
    _decision = ""


def _record_decision() -> None:
    global _is_recorded
    if are_recorded() and not _is_recorded:
        record(AUTOTUNE, 0, _decision)
    _is_recorded = are_recorded()
