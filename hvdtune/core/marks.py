"""Moments that a program tells the recording of: ends of steps, and whatever it likes.

Nothing of this costs more than a call while nobody records.
"""

from __future__ import annotations

import weakref

from hvdtune.core import world

# Numbers of native/observe/capture_records.h.
STALL, AUTOTUNE, STRAGGLER, USER = 4, 5, 6, 7
PROGRAM, CALL_SITE = 10, 11  # known to Python alone
DESCRIBED_EVERY = 256  # steps: another recording may have begun

_owner: weakref.ref[object] | None = None  # whose steps count
_by_hand = False
_described = 0  # steps since a recording was told how gradients are reduced


def mark_step() -> None:
    """A training step of this rank ends here.

    For programs that do not use DistributedOptimizer, whose ``step()`` does it by itself; once a
    program has called this, only its own calls count. Steps are numbered from 1, on every rank by
    itself. Raises ValueError before init.
    """
    global _by_hand
    _by_hand = True
    world.engine().mark_step()


def step_ended(owner: object) -> None:
    """An optimizer's step ends. Only those of one object count: of the first, while it lives."""
    global _owner
    engine = world._engine
    if engine is None or _by_hand:
        return
    counting = None if _owner is None else _owner()
    if counting is None:
        _owner = weakref.ref(owner)
    elif counting is not owner:
        return
    engine.mark_step()


def is_time_to_describe() -> bool:
    """Whether a recording is to be told at the end of this step how the program works."""
    global _described
    if _described == 0 and not are_recorded():
        return False
    _described = (_described + 1) % DESCRIBED_EVERY
    return _described == 1


def mark(text: str, value: int = 0) -> None:
    """Put a moment into this rank's recording, shown with ``text``; nothing if nobody records.

    ``value`` is kept with it. Raises ValueError before init.
    """
    world.engine().mark(USER, int(value), str(text))


def record(kind: int, value: int, text: str) -> None:
    """The same for marks of other kinds (hvdtune.timeline.capture.Mark); nothing before init."""
    engine = world._engine
    if engine is not None:
        engine.mark(kind, value, text)


def counter(name: str, value: float) -> None:
    """Put a counter's reading into this rank's recording; its name tells the unit."""
    engine = world._engine
    if engine is not None:
        engine.counter(name, float(value))


def are_recorded() -> bool:
    """Whether what is told now is recorded on this rank."""
    engine = world._engine
    return engine is not None and engine.takes_records()
