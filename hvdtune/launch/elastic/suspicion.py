"""Ranks that hold the others up in a generation of an elastic job, and for how long in a row."""

from __future__ import annotations

from typing import NamedTuple

WINDOW = 40  # steps that a measurement covers
_MOST_STEPS = 0.6  # in this share of them the same rank must be waited for, as in a report


class Lateness(NamedTuple):
    """A measurement by rank 0: see `hvdtune.core.driver.lateness`."""

    ranks: tuple[int, ...]
    late_s: float
    share: float
    last_share: float
    steps: int
    step_s: float


class Suspicion:
    """Measurements of one generation, as long as they all name the same ranks.

    It counts the time that steps took, not the time between measurements: nobody waits for a rank
    while the job evaluates or writes a checkpoint.
    """

    def __init__(self) -> None:
        self.spared: tuple[int, ...] = ()  # late ranks that stay, as the user has been told
        self._ranks: tuple[int, ...] = ()
        self._first = self._last = 0  # steps of the job at the first and the last measurement
        self._seconds = 0.0

    def note(self, found: Lateness) -> float:
        """Take a measurement; return the seconds of steps that named its ranks, 0.0 if none.

        The steps of the first measurement do not count, so that a second one must confirm it with
        other steps.
        """
        if not found.ranks or found.last_share < _MOST_STEPS or found.ranks != self._ranks:
            self._ranks = found.ranks if found.last_share >= _MOST_STEPS else ()
            self._first, self._seconds = found.steps, 0.0
        else:
            self._seconds += (found.steps - self._last) * found.step_s
        self._last = found.steps
        return self._seconds if found.steps - self._first >= WINDOW else 0.0
