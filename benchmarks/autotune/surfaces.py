"""Response surfaces: the step time as a function of the settings, from the measured grids.

What is measured holds noise, and the least of some hundred noisy figures is lower than anything
that can be reached. So a surface is what the measurements have in common: the mean, the effect of
every setting, of every pair of settings, and what is left, each shrunk by as much as noise of the
size of the residual would have made it (James and Stein). Between grid points a surface is linear
in the logarithms of sizes and times; zero is a grid point of its own.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).resolve().parent / "surfaces"
MIB = 2**20
DEFAULTS = {"fusion_threshold": 128 * MIB, "cycle_time": 1.0, "chunk_size": 0, "one_shot_limit": 0}
# Zero is "off" for a threshold: below its least other value the axis goes on to here.
_OFF = 64 * 1024
_OUTLIER = 3.0  # residuals beyond so many robust standard deviations are drawn in


@dataclass(frozen=True)
class Surface:
    """`log_ratio`: ln(step time / the reference's), one axis of the array for each of `axes`."""

    name: str
    ranks: int
    rounds: int
    reference_ms: float
    axes: Mapping[str, tuple[float, ...]]
    log_ratio: Any

    def __call__(self, values: Mapping[str, float]) -> float:
        """ln(step time / the reference's) at settings; those without an axis do nothing."""
        return self._at(tuple(float(values[key]) for key in self.axes))

    def best(self, largest_cycle_ms: float = 25.0) -> float:
        """The least value of a grid point that a tuner may choose."""
        at = list(self.axes).index("cycle_time")
        allowed = [i for i, ms in enumerate(self.axes["cycle_time"]) if ms <= largest_cycle_ms]
        return float(np.take(self.log_ratio, allowed, axis=at).min())

    @functools.lru_cache(maxsize=1024)  # noqa: B019 (surfaces live as long as the program)
    def _at(self, values: tuple[float, ...]) -> float:
        sides = [
            _between(key, axis, value)
            for (key, axis), value in zip(self.axes.items(), values, strict=True)
        ]
        total = 0.0
        for corner in itertools.product(*sides):
            weight = math.prod(share for _, share in corner)
            if weight:
                total += weight * float(self.log_ratio[tuple(index for index, _ in corner)])
        return total

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return self is other


def _between(key: str, axis: tuple[float, ...], value: float) -> list[tuple[int, float]]:
    """The grid points around a value on an axis, with their weights."""
    if value in axis:
        return [(axis.index(value), 1.0)]
    zero_is_off = key == "fusion_threshold"
    known = [
        (math.log(at or _OFF), index)
        for index, at in enumerate(axis)
        if at > 0 or (zero_is_off and at == 0)
    ]
    place = min(max(math.log(value or _OFF), known[0][0]), known[-1][0])
    for (left, low), (right, high) in itertools.pairwise(known):
        if place <= right:
            share = (place - left) / (right - left)
            return [(low, 1 - share), (high, share)]
    return [(known[-1][1], 1.0)]


def load_all(only: str = "", folder: Path = FOLDER) -> list[Surface]:
    """The surfaces whose names contain `only`, by name. Raises ValueError if there is none."""
    paths = [path for path in sorted(folder.glob("*.json")) if only in path.stem]
    found = [load(path) for path in paths if json.loads(path.read_text())["rounds"]]
    if not found:
        raise ValueError(f"no surface in {folder} has {only!r} in its name")
    return found


def load(path: Path) -> Surface:
    """The surface in a file that measure_surfaces.py wrote."""
    stored = json.loads(path.read_text())
    axes = {key: tuple(values) for key, values in stored["axes"].items()}
    shape = tuple(len(values) for values in axes.values())
    rounds = np.array(stored["rounds"]).reshape(-1, *shape)
    # As a point of the grid it was visited once a round, as the reference all the time.
    rounds[(..., *(values.index(DEFAULTS[key]) for key, values in axes.items()))] = 0.0
    return Surface(
        name=path.stem,
        ranks=stored["ranks"],
        rounds=len(rounds),
        reference_ms=float(np.median(stored["reference_ms"])),
        axes=axes,
        log_ratio=smooth(rounds),
    )


def smooth(rounds: Any) -> Any:
    """What repeated measurements of a grid (rounds, *grid) have in common, as an array (*grid)."""
    known = np.median(rounds, axis=0)
    subsets = [
        set(subset)
        for size in range(known.ndim + 1)
        for subset in itertools.combinations(range(known.ndim), size)
    ]
    alone = len(rounds) == 1
    for _ in range(4):  # draw outliers in towards what the pairs of settings explain
        effects = _effects(known, subsets)
        explained = _sum(effects, subsets, lambda subset: len(subset) < 3, known.shape)
        left = known - explained
        limit = _OUTLIER * 1.4826 * np.median(np.abs(left))
        known = explained + np.clip(left, -limit, limit)
    freedom = {
        frozenset(subset): math.prod(known.shape[axis] - 1 for axis in subset) for subset in subsets
    }
    if alone:
        # What the pairs leave unexplained is taken for noise.
        unexplained = sum(own for subset, own in freedom.items() if len(subset) >= 3)
        noise = float(np.sum((known - explained) ** 2)) / unexplained
    else:
        noise = _noise_of_median(rounds)
    # Until a median has outvoted the disturbances the noise is larger than it looks.
    caution = 2.0 if len(rounds) < 3 else 1.0
    total = np.zeros_like(known)
    for subset, effect in zip(subsets, effects, strict=True):
        energy = float(np.sum(np.broadcast_to(effect, known.shape) ** 2))
        own = freedom[frozenset(subset)] if subset else 0  # the mean is not shrunk
        if energy > 0 and not (alone and len(subset) >= 3):
            total = total + effect * max(0.0, 1.0 - caution * own * noise / energy)
    return total


def _effects(known: Any, subsets: list[set[int]]) -> list[Any]:
    """The analysis of variance: one array of effects for every set of axes (broadcastable)."""
    effects: list[Any] = []
    for subset in subsets:
        others = tuple(axis for axis in range(known.ndim) if axis not in subset)
        mean = known.mean(axis=others, keepdims=True) if others else known
        effects.append(mean - sum(e for s, e in zip(subsets, effects, strict=False) if s < subset))
    return effects


def _sum(
    effects: list[Any],
    subsets: list[set[int]],
    wanted: Callable[[set[int]], bool],
    shape: tuple[int, ...],
) -> Any:
    total = np.zeros(shape)
    for subset, effect in zip(subsets, effects, strict=True):
        if wanted(subset):
            total = total + effect
    return total


def _noise_of_median(rounds: Any) -> float:
    """Variance of the noise that the median of the rounds has at a grid point."""
    spread = rounds - np.median(rounds, axis=0)
    if not spread.any():
        return 0.0
    limit = _OUTLIER * 1.4826 * float(np.median(np.abs(spread[spread != 0])))
    variance = float(np.mean(np.clip(spread, -limit, limit) ** 2))
    count = len(rounds)
    # A median varies pi / 2 times as much as a mean; of two rounds it is the mean.
    return (math.pi / 2 if count > 2 else 1.0) * variance * count / (count - 1) / count
