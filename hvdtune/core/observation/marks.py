"""Marks that a program puts into the recording: ends of steps, its phases, whatever it likes.

While nobody records, each of these costs no more than a call.
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
PROGRAM, CALL_SITE = 11, 12  # known only to Python
DESCRIBED_EVERY = 256  # steps: another recording may have begun

_owner: weakref.ref[object] | None = None  # whose steps count
_by_hand = False
_told = 0  # steps that graphs had reported at the last end of a step that Python knows of
_after_steps: list[Callable[[], None]] = []
spans_left = 0  # how often a user's phase has ended, and with it what went on inside
_decision = ""  # a later recording should have it as well
_is_recorded = False  # it is in the current recording
_described = 0  # steps since a recording was told how gradients are reduced


def mark_step() -> None:
    """A training step of this rank ends here.

    For programs that do not use DistributedOptimizer, whose ``step()`` does this itself. Once a
    program has called this, only its own calls count. Each rank numbers its steps from 1. Raises
    ValueError before init.
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
    """An optimizer's step ends. Only the steps of the first optimizer count, while it lives.

    ``mark``: marks the end, for a framework that computes the step later. If the step's own graph
    has reported an end since the last call, that is the end of this step.
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
    """Have ``call`` called after every step of this rank that counts."""
    _after_steps.append(call)


def _tell_of_step() -> None:
    for call in _after_steps:
        call()


class Span:
    """The result of ``mark``: in a ``with`` statement, the time in it is recorded as a phase."""

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
    """Whether, at the end of this step, to tell the recording how the program works."""
    global _described
    if _described == 0 and not are_recorded():
        return False
    _described = (_described + 1) % DESCRIBED_EVERY
    return _described == 1


def mark(text: str, value: int = 0) -> Span:
    """Put a moment into this rank's recording, shown with ``text``; does nothing if nobody records.

    ``with mark("evaluation"):`` also records how long the program is in the block: the report then
    says how much of each step that takes, and on which rank it takes longer. The report knows the
    meaning of "input", "forward", "backward", "update", "evaluation" and "checkpoint". ``value`` is
    stored with the moment. Raises ValueError before init.
    """
    text = str(text)
    engine = world.engine_if_joined()
    if engine is not None:
        engine.mark(USER, int(value), text)
    return Span(text)


def phase(text: str, value: int) -> None:
    """The main thread begins (1; 2: on a device) or ends (0) a phase; ignored before init."""
    engine = world.running.engine
    if engine is not None and threading.get_ident() == threading.main_thread().ident:
        engine.mark(PHASE, value, text)


def record(kind: int, value: int, text: str) -> None:
    """The same for marks of other kinds (`timeline.record.layout.Mark`); ignored before init."""
    engine = world.running.engine
    if engine is not None:
        engine.mark(kind, value, text)


def counter(name: str, value: float) -> None:
    """Put a counter's reading into this rank's recording; its name includes the unit."""
    engine = world.running.engine
    if engine is not None:
        engine.counter(name, float(value))


def are_recorded() -> bool:
    """Whether marks are recorded on this rank now."""
    engine = world.running.engine
    return engine is not None and engine.takes_records()


def record_decision(text: str) -> None:
    """Record a decision that hvdtune has made by itself; it replaces the previous one.

    Recordings that begin later also have it, if steps end in them.
    """
    global _decision, _is_recorded
    _decision, _is_recorded = text, False
    _record_decision()


def forget_decision() -> None:
    """Nothing has been decided in this job so far."""
    global _decision
    _decision = ""


def _record_decision() -> None:
    global _is_recorded
    if are_recorded() and not _is_recorded:
        record(AUTOTUNE, 0, _decision)
    _is_recorded = are_recorded()
