"""How much a change is expected to save, and the interval of it.

| symbol | meaning |
|---|---|
| g | share of the recorded steps' time that the replay says the change saves |
| s | standard error of g: the sampled stretches of steps differ (jackknife) |
| r | relative error of the replay of the unchanged steps |
| ρ, α | errors of the replay for other reasons: RELATIVE, ABSOLUTE |

Half the width of the interval is √((ρ g)² + α² + (2 s)² + (r / 2)²). If a cure may mean several
things (a late rank's work vanishes, or others take over a part of it), the interval covers all of
them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hvdtune.timeline.evidence.case import Case
from hvdtune.timeline.evidence.finding import ABSOLUTE, RELATIVE
from hvdtune.timeline.replay import changes


@dataclass(frozen=True)
class Expected:
    """Shares of the recorded steps' time, at most 1: the expected gain, and the interval that
    contains it in nine of ten cases."""

    gain: float
    between: tuple[float, float]

    def beyond(self, other: float) -> Expected:
        """What it saves beyond another change, which saves `other`."""
        least, most = self.between
        return Expected(self.gain - other, (max(0.0, least - other), max(0.0, most - other)))


def saved(
    case: Case,
    change: changes.Change,
    bench: changes.Bench | None = None,
    relative: float = RELATIVE,
) -> Expected:
    """The gain of a change in the steps of `bench` (by default the case's usual ones, for which it
    is also remembered). `relative`: ρ."""
    sample = case.sample if bench is None else bench
    gain, error = sample.gain_and_error(change)
    if bench is None:
        case.fixes.append((gain, change))
    off = case.replay_error(sample)
    off = 0.0 if not np.isfinite(off) else off * sample.weight
    parts = relative * gain, ABSOLUTE, 2 * error, off / 2
    width = float(np.sqrt(sum(part**2 for part in parts)))
    return Expected(gain, _shares(gain - width, gain + width))


def one_of(gain: float, meanings: Iterable[Expected]) -> Expected:
    """The cure may mean any of `meanings`; `gain` is the most likely gain."""
    intervals = [one.between for one in meanings]
    least, most = min(low for low, _ in intervals), max(high for _, high in intervals)
    return Expected(gain, (min(least, max(gain, 0.0)), max(most, min(gain, 1.0))))


def _shares(least: float, most: float) -> tuple[float, float]:
    return min(max(0.0, least), 1.0), min(max(0.0, most), 1.0)
