"""How a number changes over the run: not at all, little by little, at one step, or for a while.

| symbol | meaning | shape, unit |
|---|---|---|
| y | the number, per step | [S] s |
| z | medians of y over up to BLOCKS blocks of neighbouring steps | [B] s |
| b | mean absolute residual of z from a model: robust against single slow steps | s |
| φ | correlation of neighbouring residuals; they count as B · (1 − φ) / (1 + φ) | |

Models are compared by the likelihood of Laplace noise: 2 B log b + (parameters) log B; the lowest
is the best. The best model is accepted if it explains far more than the constant (ENOUGH), counting
only as many blocks as correlated residuals are worth.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

#: At most this many blocks: more steps than this are grouped.
BLOCKS = 100
#: Recordings with fewer steps show no course.
FEWEST = 24
#: Twice the log-likelihood that a course must gain over the constant: one in a thousand by chance,
#: with hundreds of places for a change.
ENOUGH = 26.0
#: A level lasts at least this share of the run, and this many blocks.
SHORTEST, FEWEST_BLOCKS = 0.1, 5
#: Steps have become longer if they grew by this share. A drift must also grow from each quarter of
#: the run to the next.
GROWN = {"drift": 0.1, "shift": 0.2, "interval": 0.2}
#: Something explains a change if it changed by at least this share of it …
RESPONSIBLE = 0.5
#: … and all ranks do if each changed by this share of the largest change.
ALIKE = 0.25
#: How a growing number grows, as a function of the place x in the run, 0 … 1.
_SHAPES = {"linear": 1.0, "faster": 2.0, "slower": 0.5}
#: Noise below this share of the level is ignored.
_FLOOR = 1e-3


@dataclass(frozen=True)
class Course:
    """How a number changes. kind: "steady", "drift", "shift" (from a step on) or "interval".

    level: [S] s, the model's value for each step. first, final: indices of the first and last step
    of a shift or an interval; for other kinds, of all steps.
    """

    kind: str
    level: np.ndarray
    first: int
    final: int

    @cached_property
    def growth(self) -> float:
        """How much larger it is at the end of a drift, or in the interval, than before, s."""
        if self.kind == "drift":
            return float(self.level[-1] - self.level[0])
        return float(self.level[self.first] - self.level[0])


def course(values: np.ndarray) -> Course:
    """The course of `values` ([S] s, one per step): steady unless another is significant."""
    count = len(values)
    steady = Course("steady", np.full(count, np.median(values) if count else 0.0), 0, count - 1)
    if count < FEWEST:
        return steady
    edges = np.linspace(0, count, min(count, BLOCKS) + 1).round().astype(int)
    blocks = np.array([np.median(values[a:b]) for a, b in pairwise(edges)])
    size = len(blocks)
    floor = _FLOOR * max(float(np.median(blocks)), 1e-9)

    def noise(level: np.ndarray) -> float:
        return max(float(np.abs(blocks - level).mean()), floor)

    found = [
        (noise(level), parameters, kind, level, where)
        for kind, parameters, level, where in _models(blocks)
    ]
    best = min(found, key=lambda one: 2 * size * np.log(one[0]) + one[1] * np.log(size))
    b, parameters, kind, level, (first, final) = best
    worth = size / inflation(persistence(blocks - level, size))
    constant = noise(np.full(size, np.median(blocks)))
    if 2 * worth * np.log(constant / b) < ENOUGH + parameters * np.log(size):
        return steady
    place = (np.arange(count) + 0.5) / count
    if kind == "drift":
        whole = np.interp(place, (np.arange(size) + 0.5) / size, level)
        return Course(kind, whole, 0, count - 1)
    return Course(
        kind, np.repeat(level, np.diff(edges)), int(edges[first]), int(edges[final + 1]) - 1
    )


def _models(blocks: np.ndarray) -> list[tuple[str, int, np.ndarray, tuple[int, int]]]:
    """Kind, number of parameters, level [B], and the first and last block of the other level."""
    size = len(blocks)
    x = (np.arange(size) + 0.5) / size
    whole = (0, size - 1)
    found = []
    for power in _SHAPES.values():
        slope = slope_of(x**power, blocks)
        level = slope * x**power
        found.append(("drift", 3, level + np.median(blocks - level), whole))
    least = max(FEWEST_BLOCKS, round(SHORTEST * size))
    shifts = [(at, size) for at in range(least, size - least + 1)]
    found.append(("shift", 3, *_two_levels(blocks, shifts)))
    stride = max(1, size // 50)
    intervals = [
        (first, behind)
        for first in range(least, size - least, stride)
        for behind in range(first + least, size - least + 1, stride)
    ]
    if intervals:
        found.append(("interval", 4, *_two_levels(blocks, intervals)))
    return found


def _two_levels(
    blocks: np.ndarray, intervals: list[tuple[int, int]]
) -> tuple[np.ndarray, tuple[int, int]]:
    """The best model with one level in the blocks first … behind − 1 and another in all others,
    over the `intervals` (first, behind). Its level [B], and the interval's first and last block."""
    at, (first, behind) = np.arange(len(blocks)), np.array(intervals).T[:, :, None]
    inside = (at >= first) & (at < behind)
    levels = np.where(inside, _medians(blocks, inside), _medians(blocks, ~inside))
    best = int(np.abs(blocks - levels).sum(axis=1).argmin())
    return levels[best], (intervals[best][0], intervals[best][1] - 1)


def _medians(values: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """[M, 1] medians of the `values`, [B], that each row of `chosen`, [M, B] bool, selects."""
    order = np.argsort(values, kind="stable")
    upto = np.cumsum(chosen[:, order], axis=1)
    middle = upto[:, -1:]
    lower = (upto > (middle - 1) // 2).argmax(axis=1)
    upper = (upto > middle // 2).argmax(axis=1)
    ordered = values[order]
    medians: np.ndarray = (ordered[lower] + ordered[upper])[:, None] / 2
    return medians


def slope_of(x: np.ndarray, y: np.ndarray) -> float:
    """The Theil–Sen slope: the median of the slopes between any two points. x: ascending."""
    at, to = np.triu_indices(len(x), 1)
    return float(np.median((y[to] - y[at]) / (x[to] - x[at])))


def persistence(residuals: np.ndarray, count: int) -> float:
    """φ of `residuals`, 0 … 0.99, estimated from their order and corrected for the bias of an
    estimate from `count` of them."""
    if len(residuals) < 4 or np.ptp(residuals) == 0:
        return 0.0
    import pandas as pd

    ordered = pd.Series(residuals).rank().to_numpy()
    ordered = ordered - ordered.mean()
    own = float((ordered[1:] * ordered[:-1]).sum() / (ordered**2).sum())
    return float(np.clip(own + (1 + 3 * own) / count, 0.0, 0.99))


def inflation(correlation: float) -> float:
    """How many neighbours with φ = `correlation` say as much as one independent value."""
    return (1 + correlation) / (1 - correlation)


@dataclass(frozen=True)
class Change:
    """A change of the steps' length and its cause: `ranks` compute longer, or, if there are none,
    communication takes longer. each: rank → s by which it computes longer."""

    course: Course
    ranks: tuple[int, ...]
    everywhere: bool
    each: dict[int, float]


def change(
    durations: np.ndarray, computing: dict[int, np.ndarray], communicating: np.ndarray
) -> Change | None:
    """How the steps become longer; None if they do not, or if it is unclear what grows. All [S] s:
    `durations` of the steps, `computing` of each rank, and `communicating`, without late ranks."""
    common = _of_all(durations, computing)
    found = common or course(durations)
    if found.kind == "steady" or found.growth < GROWN[found.kind] * found.level[0]:
        return None
    if found.kind == "drift" and not common:
        quarters = [float(np.median(part)) for part in np.array_split(durations, 4)]
        if quarters != sorted(quarters):
            return None
    each = {rank: _grown(own, found) for rank, own in computing.items()}
    much = RESPONSIBLE * found.growth
    named = tuple(rank for rank, own in each.items() if own >= much)
    if not named:
        waiting = _grown(communicating, found)
        return Change(found, (), False, each) if waiting >= much else None
    if min(each.values()) >= ALIKE * max(each.values()):
        return Change(found, tuple(each), True, each)
    if found.kind != "drift" or any(course(computing[r]).kind != "drift" for r in named):
        return None  # single ranks: a straggler for a while
    return Change(found, named, False, each)


def _of_all(durations: np.ndarray, computing: dict[int, np.ndarray]) -> Course | None:
    """The drift of the steps if every rank computes longer and longer, else None. Ranks' waiting
    for each other may hide it in the length of the steps."""
    if not computing or any(course(own).kind != "drift" for own in computing.values()):
        return None
    least = np.min(list(computing.values()), axis=0)
    found = course(least)
    quarters = [float(np.median(part)) for part in np.array_split(least, 4)]
    if found.kind != "drift" or quarters != sorted(quarters):
        return None
    return replace(found, level=found.level + np.median(durations - found.level))


def _grown(values: np.ndarray, found: Course) -> float:
    """How much `values` ([S] s) grow with the steps, s."""
    if found.kind == "drift":
        stride = max(1, len(values) // 200)
        return slope_of(found.level[::stride], values[::stride]) * found.growth
    inside = np.zeros(len(values), bool)
    inside[found.first : found.final + 1] = True
    return float(np.median(values[inside]) - np.median(values[~inside]))
