"""The cost of noise alone in a number of steps: the regret of tuners that know more than any can.

  python benchmarks/autotune/bound.py       seconds; prints a table

    proves     knows the best grid point and spends all STEPS on comparing it with the defaults in
               pairs; keeps the defaults if the gain is not shown at CONFIDENCE
    finds      has the best grid point among CANDIDATES, the others being settings at random, and
               knows the defaults' step time exactly; shares SEARCH_STEPS among them, takes the
               fastest, and compares it in PAIRS pairs
    draws      the same without the luck: all CANDIDATES are settings at random
    halves     draws settings at random, measures all, drops the worse half, and so on, with all
               SEARCH_STEPS; then as above. It uses the number of settings (COUNTS) that is best for
               this noise, which a real tuner cannot know. A look at a setting takes SETTLE steps in
               addition to those that count, which are LEAST or more
    by turns   the same with half of the steps: the other half measures the settings that the run
               began with in between, so that drift cancels, as hvdtune does
    near       the share of all settings that are within NEAR of the best grid point

    e          standard error of a sample: TRIM_LOSS noise / sqrt(SAMPLE)
    n          pairs; their mean's standard error is s = e sqrt(2 / n)
    margin     z s, z the normal quantile of CONFIDENCE: a true gain as large is shown half the time
    shown      Phi((gain - margin) / s)

Regret is counted as in simulate.py: how much slower than the best grid point a run ends, over all
surfaces. Drift, outliers, and looks before the end are left out: all of them only make it worse. So
`proves` is a limit for every tuner that adopts only settings shown to be faster at CONFIDENCE. The
other rows are no limits, because a model learns about one point from others: they show how much a
tuner attains without that, and how much of the regret is bad luck (`finds` against `draws`).
"""

from __future__ import annotations

import functools
import math
import random
import sys
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from methods import full_space
from surfaces import DEFAULTS, Surface, load_all

NOISES = (0.01, 0.02, 0.04, 0.08)
STEPS = 1500
FIRST_STEPS = 40  # warm-up and baseline
SAMPLE = 10
PAIR_STEPS = 22  # two samples and the steps that settle, in the order C I I C
CONFIDENCE = 0.99
CANDIDATES = 20
SEARCH_STEPS = 720
SAMPLE_STEPS = 12
PAIRS = 32
DRAWS = 4000
TRIM_LOSS = 1.026  # of a mean without the shortest and the longest tenth, for normal noise
DRAWN = 500
COUNTS = (2, 4, 8, 16, 32, 64)
SETTLE = SAMPLE_STEPS - SAMPLE
LEAST = 3
NEAR = 0.03
NAMES = ("proves", "finds", "draws", "halves", "by turns")
FIGURES = {"median": 0.5, "95th": 0.95}
_NORMAL = NormalDist()


def main() -> int:
    """Print the table."""
    surfaces = load_all()
    every_pair = (STEPS - FIRST_STEPS) // PAIR_STEPS
    heads = ["noise", "margin"]
    heads += [f"{name}, {figure}" for name in NAMES for figure in FIGURES]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for noise in NOISES:
        columns = []
        for regrets in (
            [proving(surface, noise, every_pair) for surface in surfaces],
            [finding(surface, noise, lucky=True) for surface in surfaces],
            [finding(surface, noise, lucky=False) for surface in surfaces],
            best_halving(surfaces, noise, SEARCH_STEPS),
            best_halving(surfaces, noise, SEARCH_STEPS / 2),
        ):
            together = np.concatenate(regrets)
            columns += [f"{np.quantile(together, share):.2%}" for share in FIGURES.values()]
        print(f"| {noise:.0%} | {margin(noise, PAIRS):.1%} | {' | '.join(columns)} |")
    print("\n| surface | could be gained | near |\n|---|---|---|")
    for surface in surfaces:
        gain = -math.expm1(surface.best() - surface(DEFAULTS))
        near = np.mean(np.expm1(drawn(surface)) < NEAR)
        print(f"| {surface.name} | {gain:.1%} | {near:.0%} |")
    return 0


def pair_error(noise: float, pairs: int) -> float:
    """Standard error of the mean of `pairs` pairs, as a logarithm."""
    return TRIM_LOSS * noise / math.sqrt(SAMPLE) * math.sqrt(2 / pairs)


def margin(noise: float, pairs: int) -> float:
    """The size that a gain must exceed to be shown."""
    return _NORMAL.inv_cdf(CONFIDENCE) * pair_error(noise, pairs)


def proving(surface: Surface, noise: float, pairs: int) -> np.ndarray:
    """Regrets of many runs of an oracle that only has to prove the best grid point."""
    gain = surface(DEFAULTS) - surface.best()
    error = pair_error(noise, pairs)
    seen = gain + error * np.random.default_rng(0).standard_normal(DRAWS)
    return np.expm1(np.where(seen > margin(noise, pairs), 0.0, gain))


@functools.cache
def drawn(surface: Surface) -> np.ndarray:
    """How much slower than the best grid point settings at random are (logarithms, DRAWN)."""
    rng = random.Random(0)
    space = full_space()
    points = [[rng.random() for _ in range(space.width)] for _ in range(DRAWN)]
    return np.array([surface(space.decode(point)) for point in points]) - surface.best()


def finding(surface: Surface, noise: float, lucky: bool) -> np.ndarray:
    """Regrets of many runs with random candidates; `lucky`: the best grid point is one of them."""
    rng = np.random.default_rng(1)
    true = drawn(surface)[rng.integers(DRAWN, size=(DRAWS, CANDIDATES))]
    if lucky:
        true[:, 0] = 0.0
    steps = SEARCH_STEPS / CANDIDATES * SAMPLE / SAMPLE_STEPS
    error = TRIM_LOSS * noise / math.sqrt(steps)
    chosen = np.argmin(true + error * rng.standard_normal(true.shape), axis=1)
    return compared(surface, true[np.arange(DRAWS), chosen], noise, rng)


def compared(
    surface: Surface, left: np.ndarray, noise: float, rng: np.random.Generator
) -> np.ndarray:
    """Regrets when candidates that lack `left` of the best are compared with the defaults."""
    gain = surface(DEFAULTS) - surface.best()
    seen = gain - left + pair_error(noise, PAIRS) * rng.standard_normal(DRAWS)
    return np.expm1(np.where(seen > margin(noise, PAIRS), left, gain))


def best_halving(surfaces: Sequence[Surface], noise: float, steps: float) -> list[np.ndarray]:
    """Regrets with the number of settings whose 95th percentile over all surfaces is least.

    If two are equal, as the regret of keeping the defaults is, their mean decides.
    """
    counts = [count for count in COUNTS if look_steps(count, steps) >= LEAST]
    tried = [[halving(surface, noise, count, steps) for surface in surfaces] for count in counts]

    def cost(regrets: list[np.ndarray]) -> tuple[float, float]:
        together = np.concatenate(regrets)
        return float(np.quantile(together, 0.95)), float(together.mean())

    return min(tried, key=cost)


def look_steps(count: int, steps: float, left: int = 0) -> float:
    """The counted steps of a look if `left` of `count` settings share an equal part of `steps`."""
    return steps / math.log2(count) / (left or count) - SETTLE


def halving(surface: Surface, noise: float, count: int, steps: float) -> np.ndarray:
    """Regrets of runs that halve `count` (a power of 2) random candidates until one is left."""
    rng = np.random.default_rng(2)
    true = drawn(surface)[rng.integers(DRAWN, size=(DRAWS, count))]
    total, looked = np.zeros_like(true), 0.0
    while true.shape[1] > 1:
        more = look_steps(count, steps, true.shape[1])
        error = TRIM_LOSS * noise * math.sqrt(more)
        total = total + more * true + error * rng.standard_normal(true.shape)
        looked += more
        kept = np.argsort(total / looked, axis=1)[:, : true.shape[1] // 2]
        true, total = (np.take_along_axis(of, kept, axis=1) for of in (true, total))
    return compared(surface, true[:, 0], noise, rng)


if __name__ == "__main__":
    sys.exit(main())
