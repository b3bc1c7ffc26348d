"""Where to measure next: Bayesian optimisation with scikit-optimize, from numbers to numbers.

    x_i      point i of the unit cube (`space.encode`), i = 1 … n
    y_i      ln(step time at x_i / step time of the incumbent): -0.05 is five per cent faster
    e_i      standard error of y_i
    z_i      y_i warped: min y + c ln(1 + (y_i - min y) / c); the same order and, near the best,
             the same distances, but the badness of bad points does not shape the model
    s        scale of z: its standard deviation, at least LEAST_SCALE
    f        the Gaussian process (`model`): z_i / s = f(x_i) + noise of variance
             (e_i z'(y_i) / s)^2 + v, v fitted
    m, d     posterior mean and standard deviation of s f; reported ones are unwarped again
    EI(x)    E[max(0, m_best - s f(x))], m_best the least posterior mean at the points measured

The best so far is the *model's* best, not the luckiest measurement (Letham et al., Constrained
Bayesian Optimization with Noisy Experiments, 2019). EI is maximised over Halton points and over
neighbours of the best points, which suits both flags and axes. The same arguments give the same
proposal.

This module imports SciPy, which takes over a second: only `service` and tests load it.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats.qmc import Halton
from threadpoolctl import ThreadpoolController

from hvdtune.autotune.search import model
from hvdtune.autotune.search.space import Space

LEAST_SCALE = 0.05
LEAST_WARP = 0.05  # c: points that are further above the best count as merely bad
GLOBAL_POINTS = 512
LOCAL_POINTS = 64
LINE_POINTS = 32
MIXED_POINTS = 256
LOCAL_CENTRES = 4
LOCAL_WIDTHS = (0.1, 0.03)
SAME_POINT = 1e-3
_THREADS = ThreadpoolController()


def _acquisition() -> Any:
    """scikit-optimize's module of acquisition functions.

    It is loaded alone: `import skopt` also loads scikit-learn, pandas and all models, which takes
    more than a second of a CPU that the ranks need. Raises ImportError.
    """
    package = importlib.util.find_spec("skopt")
    if package is None or not package.submodule_search_locations:
        raise ImportError("scikit-optimize is not installed")
    name = "acquisition"
    path = os.path.join(package.submodule_search_locations[0], f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"skopt.{name}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"scikit-optimize has no module {name}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


gaussian_ei = _acquisition().gaussian_ei


@dataclass(frozen=True)
class Observation:
    """One measured point: coordinates, y and its standard error (see the module)."""

    point: tuple[float, ...]
    y: float
    error: float


@dataclass(frozen=True)
class Problem:
    """The input for a proposal.

    The first of the `observations` has the settings that the run began with (y = 0). `incumbent` is
    the point of the current reference settings, which is never proposed. `noise` is a standard
    deviation in units of s that is added to every observation's error (Horovod's knob; 0: none).
    """

    space: Space
    observations: tuple[Observation, ...]
    incumbent: int = 0
    seed: int = 0
    noise: float = 0.0
    count: int = 1

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Problem:
        """The problem that `to_json` (of `tuner.Request`) wrote."""
        return cls(
            space=Space.from_json(data["space"]),
            observations=tuple(
                Observation(tuple(row["point"]), row["y"], row["error"])
                for row in data["observations"]
            ),
            incumbent=data["incumbent"],
            seed=data["seed"],
            noise=data["noise"],
            count=data["count"],
        )


@dataclass(frozen=True)
class Proposal:
    """The next point to measure, and the model's opinion.

    `expected_gain` is EI, in units of y (0.01: one per cent of a step). `means` and `deviations`
    are the posterior at the observations, in their order. `length_scales` has one entry per
    coordinate; `noise` is the standard deviation, in units of y, that the errors do not explain.
    """

    points: tuple[tuple[float, ...], ...]
    expected_gain: float
    means: tuple[float, ...]
    deviations: tuple[float, ...]
    length_scales: tuple[float, ...]
    noise: float

    def to_json(self) -> dict[str, Any]:
        """The proposal as plain data."""
        return asdict(self)


def propose(problem: Problem) -> Proposal:
    """Fit the model and maximise expected improvement.

    Raises ValueError if there are fewer than two observations or one is not finite.
    """
    # The matrices are small: several threads would mostly wait for each other.
    with _THREADS.limit(limits=1):
        return _propose(problem)


def _propose(problem: Problem) -> Proposal:
    points = np.array([observation.point for observation in problem.observations], dtype=float)
    y = np.array([observation.y for observation in problem.observations], dtype=float)
    errors = np.array([observation.error for observation in problem.observations], dtype=float)
    if len(y) < 2:
        raise ValueError(f"a proposal needs at least two observations: there are {len(y)}")
    if not (np.isfinite(points).all() and np.isfinite(y).all() and np.isfinite(errors).all()):
        raise ValueError("observations must be finite numbers")
    warp = _Warp.around(y, errors)
    z = warp.apply(y)
    scale = max(LEAST_SCALE, float(np.std(z)))
    centre = float(np.median(z))
    variances = (errors / warp.slope(z) / scale) ** 2 + problem.noise**2
    fitted = model.fit(points, (z - centre) / scale, variances, problem.space.groups)
    means, deviations = fitted.predict(points)
    candidates = _candidates(problem, points, means)
    least = float(means.min())
    proposed: list[tuple[float, ...]] = []
    gains: list[float] = []
    for _ in range(problem.count):
        believing = fitted.believing(np.array(proposed)) if proposed else fitted
        point, gain = _most_improving(believing, candidates, problem, points, least)
        proposed.append(point)
        gains.append(gain)
        least = min(least, float(fitted.predict(np.array([point]))[0][0]))
    means, deviations = means * scale + centre, deviations * scale
    return Proposal(
        points=tuple(tuple(float(value) for value in point) for point in proposed),
        expected_gain=gains[0] * scale,
        means=tuple(warp.undo(means).tolist()),
        deviations=tuple((deviations * warp.slope(means)).tolist()),
        length_scales=tuple(fitted.lengths.tolist()),
        noise=float(np.sqrt(fitted.noise)) * scale,
    )


@dataclass(frozen=True)
class _Warp:
    """y to z and back; `slope` is dy/dz at z."""

    least: float
    width: float

    @classmethod
    def around(cls, y: np.ndarray, errors: np.ndarray) -> _Warp:
        # Wider than the noise, because otherwise the warp would turn noise into bias.
        return cls(float(y.min()), max(LEAST_WARP, 3 * float(np.median(errors))))

    def apply(self, y: np.ndarray) -> np.ndarray:
        return self.least + self.width * np.log1p((y - self.least) / self.width)

    def undo(self, z: np.ndarray) -> np.ndarray:
        return self.least + self.width * np.expm1((z - self.least) / self.width)

    def slope(self, z: np.ndarray) -> np.ndarray:
        return np.exp((z - self.least) / self.width)


@functools.lru_cache(maxsize=4)
def _even_points(width: int) -> np.ndarray:
    points: np.ndarray = Halton(width, scramble=False).random(GLOBAL_POINTS)
    return points


def _candidates(problem: Problem, points: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Points to choose from: even points of the cube, and points near the best ones.

    Near points are small moves of all coordinates, moves of one setting over its whole range, and
    combinations of settings from several of the better points.
    """
    rng = np.random.default_rng([problem.seed, len(points)])
    space = problem.space
    even = (_even_points(space.width) + rng.random(space.width)) % 1.0
    order = np.argsort(means)
    best = np.clip(points[order[:LOCAL_CENTRES]], 0.0, 1.0)
    better = np.clip(points[order[: max(2, len(order) // 2)]], 0.0, 1.0)
    axes = np.array([kind == "axis" for kind in space.columns])
    blocks = [even]
    for centre in best:
        for spread in LOCAL_WIDTHS:
            # A neighbour of a point keeps its flags, so that both sides are also searched finely.
            blocks.append(centre + spread * axes * rng.standard_normal((LOCAL_POINTS, space.width)))
        for group in space.groups:
            moved = np.repeat(centre[None], LINE_POINTS, axis=0)
            moved[:, group] = rng.random((LINE_POINTS, len(group)))
            moved[:, group[0]] = (np.arange(LINE_POINTS) + rng.random()) / LINE_POINTS
            blocks.append(moved)
    mixed = np.empty((MIXED_POINTS, space.width))
    for group in space.groups:
        mixed[:, group] = better[rng.integers(len(better), size=MIXED_POINTS)][:, group]
    blocks.append(mixed)
    return space.settled(np.vstack(blocks))


def _most_improving(
    fitted: model.Model,
    candidates: np.ndarray,
    problem: Problem,
    points: np.ndarray,
    best_mean: float,
) -> tuple[tuple[float, ...], float]:
    """The candidate of highest EI after rounding to settings, and its EI in units of s.

    Points at the incumbent are skipped: it is measured between candidates anyway.
    """
    gains = gaussian_ei(candidates, fitted, y_opt=best_mean, xi=0.0)
    for at in np.argsort(-gains):
        point = problem.space.encode(problem.space.decode(candidates[at]))
        if np.abs(np.asarray(point) - points[problem.incumbent]).max() > SAME_POINT:
            return point, float(gains[at])
    return tuple(points[problem.incumbent]), 0.0
