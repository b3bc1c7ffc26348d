"""After tuning: has the step time changed for good? A two-sided CUSUM on robust block medians.

    m_j     median duration of block j, BLOCK training steps
    r       reference: the median of ln m over the first REFERENCE blocks
    s       their spread, 1.4826 times the median absolute deviation, at least LEAST_SPREAD
    z_j     (ln m_j - r) / s, at most CLIP in size, so that no single block can decide
    S+, S-  max(0, S + z - SLACK), max(0, S - z - SLACK)

A change is reported when S+ or S- passes LIMIT and the median of the last RECENT blocks is off by
LEAST_CHANGE or more: changes too small to matter are ignored (Page, Biometrika 41, 1954). Steps
that move a very different number of bytes are other work (evaluation) and are left out. If only
other work arrives, the training itself has changed, which is also reported.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from hvdtune.autotune.statistics.score import OTHER_WORK, Step

BLOCK = 10
REFERENCE = 30
RECENT = 4
SLACK = 1.0
LIMIT = 12.0
CLIP = 4.0
LEAST_SPREAD = 0.01
LEAST_CHANGE = 0.05
OTHER_STEPS = 5 * BLOCK  # this many steps of other work in a row are not an exception


@dataclass(frozen=True)
class Change:
    """The step time before and after, ms; `work`: the steps move a different number of bytes."""

    before_ms: float
    after_ms: float
    work: bool = False

    def words(self) -> str:
        """For a person."""
        times = f"from {self.before_ms:.4g} to {self.after_ms:.4g} ms"
        if self.work:
            return f"the training steps differ from before ({times})"
        share = 100 * (self.after_ms / self.before_ms - 1)
        return f"the step time has changed {times} ({share:+.1f} %)"


class Watch:
    """Takes steps; `add` returns a change once. Make a new one to continue watching."""

    def __init__(self) -> None:
        self._block: list[Step] = []
        self._logs: list[float] = []
        self._bytes: float | None = None
        self._other: list[Step] = []
        self._above = self._below = 0.0

    def add(self, step: Step) -> Change | None:
        """Take a step; returns the change if the step made one certain."""
        if not (math.isfinite(step.duration_ns) and step.duration_ns > 0):
            return None
        if self._is_other_work(step.bytes):
            self._other.append(step)
            if len(self._other) < OTHER_STEPS:
                return None
            return Change(self._reference_ms(), _median_ns(self._other) / 1e6, work=True)
        self._other.clear()
        self._block.append(step)
        if len(self._block) < BLOCK:
            return None
        self._logs.append(math.log(_median_ns(self._block)))
        if self._bytes is None:
            self._bytes = statistics.median(step.bytes for step in self._block)
        self._block = []
        return self._look()

    def _look(self) -> Change | None:
        if len(self._logs) <= REFERENCE:
            return None
        reference = statistics.median(self._logs[:REFERENCE])
        deviations = [abs(log - reference) for log in self._logs[:REFERENCE]]
        spread = max(LEAST_SPREAD, 1.4826 * statistics.median(deviations))
        z = max(-CLIP, min(CLIP, (self._logs[-1] - reference) / spread))
        self._above = max(0.0, self._above + z - SLACK)
        self._below = max(0.0, self._below - z - SLACK)
        # Only the reference and recent steps are used again.
        del self._logs[REFERENCE:-RECENT]
        recent = statistics.median(self._logs[REFERENCE:][-RECENT:])
        if max(self._above, self._below) <= LIMIT or abs(recent - reference) < LEAST_CHANGE:
            return None
        return Change(math.exp(reference) / 1e6, math.exp(recent) / 1e6)

    def _is_other_work(self, size: int) -> bool:
        if not self._bytes:
            return False
        return not (self._bytes / OTHER_WORK <= size <= self._bytes * OTHER_WORK)

    def _reference_ms(self) -> float:
        return math.exp(statistics.median(self._logs[:REFERENCE])) / 1e6


def _median_ns(steps: Sequence[Step]) -> float:
    return statistics.median(step.duration_ns for step in steps)
