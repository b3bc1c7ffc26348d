"""Response surfaces: the step time as a function of the settings, from the measured grids.

Measurements contain noise, and the least of some hundred noisy figures is lower than any step time
that can be reached: regret against it would measure the noise. So a surface consists of what the
measurements have in common: the mean, the effect of every setting, of every pair of settings, and
so on, each shrunk by as much as noise of the size of the residuals would have made it (James and
Stein). The amount of noise to assume was chosen with rounds that were left out (CAUTION), and the
weight of a round depends on its own noise. A few rounds on a busy machine give a flat surface, on
which a tuner can only lose: that errs on the side of caution.

Between grid points a surface is a monotone cubic (Fritsch and Carlson) in the logarithms of sizes
and times, so that its least value is at a grid point and it has no kinks at the others; zero is a
grid point of its own. So the least value of the grid points that a tuner may choose
(`Surface.best`) is the true optimum of the replayed job, and can be reached.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from job import STEP_BYTES
from scipy.interpolate import PchipInterpolator

from hvdtune.bench.workloads.gradient_sets import WORKLOADS

FOLDER = Path(__file__).resolve().parent / "surfaces"
MIB = 2**20
DEFAULTS = {"fusion_threshold": 128 * MIB, "cycle_time": 1.0, "chunk_size": 0, "one_shot_limit": 0}
# Zero is "off" for a threshold: below its least other value the axis continues to here.
_OFF = 64 * 1024
_OUTLIER = 3.0  # residuals beyond this many robust standard deviations are clipped
LEAST_NOISE = 0.005
ITERATIONS = 6
# How much more noise (variance) is assumed than visits show, since a disturbance lasts for several.
# In rounds that were left out of a surface, its five best points were then 0.3 % slower than the
# surface says (1.2 % with a factor of 2, 2.8 % with 1.5); 2.5 to 4 predict those rounds best.
CAUTION = 2.5


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
        """ln(step time / the reference's) at settings; those without an axis have no effect."""
        return self._at(tuple(float(values[key]) for key in self.axes))

    def best(self, largest_cycle_ms: float = 25.0) -> float:
        """The least value of a grid point that a tuner may choose."""
        at = list(self.axes).index("cycle_time")
        allowed = [i for i, ms in enumerate(self.axes["cycle_time"]) if ms <= largest_cycle_ms]
        return float(np.take(self.log_ratio, allowed, axis=at).min())

    @functools.lru_cache(maxsize=1024)  # noqa: B019 (surfaces live as long as the program)
    def _at(self, values: tuple[float, ...]) -> float:
        left = self.log_ratio
        for (key, axis), value in zip(self.axes.items(), values, strict=True):
            left = _along(key, axis, value, left)
        return float(left)

    @property
    def step_bytes(self) -> int:
        """Bytes that a step allreduces: all gradients of the model, 4 bytes each."""
        workload = WORKLOADS.get(self.name.partition("-np")[0])
        return 4 * workload.elements() if workload else STEP_BYTES

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return self is other


def _along(key: str, axis: tuple[float, ...], value: float, grid: Any) -> Any:
    """The grid at a value of its first axis: an array without that axis."""
    if value in axis:
        return grid[axis.index(value)]
    zero_is_off = key == "fusion_threshold"
    known = [index for index, at in enumerate(axis) if at > 0 or zero_is_off]
    places = [math.log(axis[index] or _OFF) for index in known]
    place = min(max(math.log(value or _OFF), places[0]), places[-1])
    if len(known) == 1:
        return grid[known[0]]
    return PchipInterpolator(places, grid[known], axis=0)(place)


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
    # The defaults were visited once a round as a grid point, and all the time as the reference.
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
    """The common part of repeated measurements of a grid (rounds, *grid), as an array (*grid).

    A round that was measured on a busy machine scatters several times as much as a quiet one, so a
    round's weight is the inverse variance of its own residuals; single residuals that are far off
    are clipped (Huber).
    """
    axes = rounds.ndim - 1
    subsets = [
        set(subset)
        for size in range(axes + 1)
        for subset in itertools.combinations(range(axes), size)
    ]
    known = np.median(rounds, axis=0)
    for _ in range(ITERATIONS):
        explained = _sum(_effects(known, subsets), subsets, most=2, shape=known.shape)
        residuals = _drawn_in(rounds - explained)
        noises = np.maximum(LEAST_NOISE, np.sqrt(_mean_of_rounds(residuals**2)))
        weights = noises**-2.0
        known = explained + (weights * residuals).sum(axis=0) / weights.sum()
    noise = CAUTION / float(weights.sum())
    total = np.zeros_like(known)
    for subset, effect in zip(subsets, _effects(known, subsets), strict=True):
        energy = float(np.sum(np.broadcast_to(effect, known.shape) ** 2))
        # The mean is not shrunk.
        own = math.prod(known.shape[axis] - 1 for axis in subset) if subset else 0
        if energy > 0:
            total = total + effect * max(0.0, 1.0 - own * noise / energy)
    return total


def _drawn_in(residuals: Any) -> Any:
    """Residuals (rounds, *grid), those that are far off for their round clipped."""
    axes = tuple(range(1, residuals.ndim))
    limits = _OUTLIER * 1.4826 * np.median(np.abs(residuals), axis=axes, keepdims=True)
    return np.clip(residuals, -limits, limits)


def _mean_of_rounds(values: Any) -> Any:
    return values.mean(axis=tuple(range(1, values.ndim)), keepdims=True)


def _effects(known: Any, subsets: list[set[int]]) -> list[Any]:
    """The analysis of variance: one array of effects for every set of axes (broadcastable)."""
    effects: list[Any] = []
    for subset in subsets:
        others = tuple(axis for axis in range(known.ndim) if axis not in subset)
        mean = known.mean(axis=others, keepdims=True) if others else known
        effects.append(mean - sum(e for s, e in zip(subsets, effects, strict=False) if s < subset))
    return effects


def _sum(effects: list[Any], subsets: list[set[int]], most: int, shape: tuple[int, ...]) -> Any:
    """The sum of the effects of at most that many settings together."""
    total = np.zeros(shape)
    for subset, effect in zip(subsets, effects, strict=True):
        if len(subset) <= most:
            total = total + effect
    return total
