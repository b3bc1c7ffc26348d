"""Where to measure next: Bayesian optimisation with scikit-optimize, numbers in, numbers out.

    x_i      point i of the unit cube (`space.encode`), i = 1 … n
    y_i      ln(step time at x_i / step time of the incumbent): -0.05 is five per cent faster
    e_i      standard error of y_i
    z_i      y_i warped: min y + c ln(1 + (y_i - min y) / c); the same order and, near the best,
             the same distances, but how bad a bad point is no longer shapes the model
    s        scale of z: its standard deviation, at least LEAST_SCALE
    k        s_f^2 Matern_5/2(x, x'; one length scale a coordinate)
    v        variance of the noise that the e_i do not explain, fitted
    f        the Gaussian process: z_i / s = f(x_i) + noise of variance (e_i z'(y_i) / s)^2 + v
    m, d     posterior mean and standard deviation of s f; reported ones are unwarped again
    EI(x)    E[max(0, m_best - s f(x))], m_best the least posterior mean at the points measured

The best so far is the *model's* best, not the luckiest measurement (Letham et al., Constrained
Bayesian Optimization with Noisy Experiments, 2019). Length scales, s_f and v maximise the marginal
likelihood within bounds that keep them sensible for six points as well as for thirty. EI is
maximised over Halton points and over neighbours of the best points, which serves flags and axes
alike. The same arguments give the same proposal.

This module imports scikit-optimize, which takes over a second: only `service` and tests load it.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize
from skopt.acquisition import gaussian_ei
from skopt.learning import GaussianProcessRegressor
from skopt.learning.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from skopt.sampler import Halton
from threadpoolctl import ThreadpoolController

from hvdtune.autotune.space import Space

LEAST_SCALE = 0.05
LEAST_WARP = 0.05  # c: points that are much more than this above the best are merely bad
GLOBAL_POINTS = 1024
LOCAL_POINTS = 256
LOCAL_CENTRES = 4
LOCAL_WIDTHS = (0.1, 0.03)
SAME_POINT = 1e-3
# Priors of the kernel: log-normal around these, with these standard deviations of the logarithm.
USUAL_LENGTH, PRIOR_LENGTH = 0.6, 0.8
USUAL_NOISE, PRIOR_NOISE = 1e-3, 1.0
PRIOR_SCALE = 1.0
_THREADS = ThreadpoolController()


@dataclass(frozen=True)
class Observation:
    """One measured point: coordinates, y and its standard error (see the module)."""

    point: tuple[float, ...]
    y: float
    error: float


@dataclass(frozen=True)
class Problem:
    """What to propose for.

    `observations` hold the settings the run began with (y = 0) first; `incumbent` is the place of
    those that are compared with now, which need not be proposed. `noise` is a standard deviation in
    units of s that is added to every observation's own error (Horovod's knob; 0: none).
    """

    space: Space
    observations: tuple[Observation, ...]
    incumbent: int = 0
    seed: int = 0
    noise: float = 0.0

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
        )


@dataclass(frozen=True)
class Proposal:
    """The next point to measure, and what the model thinks.

    `expected_gain` is EI, in units of y (0.01: one per cent of a step). `means` and `deviations`
    are the posterior at the observations, in their order. `length_scales` has one entry a
    coordinate; `noise` is the standard deviation, in units of y, that errors do not explain.
    """

    point: tuple[float, ...]
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
    # The matrices are small: several threads would spend their time waiting for one another.
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
    model = _fit(points, (z - centre) / scale, variances, problem.seed)
    means, deviations = _predict(model, points)
    candidates = _candidates(problem, points, means)
    point, gain = _most_improving(model, candidates, problem, points, float(means.min()))
    kernel = model.kernel_
    means, deviations = means * scale + centre, deviations * scale
    return Proposal(
        point=tuple(float(value) for value in point),
        expected_gain=gain * scale,
        means=tuple(warp.undo(means).tolist()),
        deviations=tuple((deviations * warp.slope(means)).tolist()),
        length_scales=tuple(float(length) for length in np.atleast_1d(kernel.k1.k2.length_scale)),
        noise=float(np.sqrt(model.noise_)) * scale,
    )


@dataclass(frozen=True)
class _Warp:
    """y to z and back; `slope` is dy/dz at z."""

    least: float
    width: float

    @classmethod
    def around(cls, y: np.ndarray, errors: np.ndarray) -> _Warp:
        # Wider than the noise, or the warp would bend noise into bias.
        return cls(float(y.min()), max(LEAST_WARP, 3 * float(np.median(errors))))

    def apply(self, y: np.ndarray) -> np.ndarray:
        return self.least + self.width * np.log1p((y - self.least) / self.width)

    def undo(self, z: np.ndarray) -> np.ndarray:
        return self.least + self.width * np.expm1((z - self.least) / self.width)

    def slope(self, z: np.ndarray) -> np.ndarray:
        return np.exp((z - self.least) / self.width)


def _fit(
    points: np.ndarray, y: np.ndarray, variances: np.ndarray, seed: int
) -> GaussianProcessRegressor:
    width = points.shape[1]
    kernel = ConstantKernel(1.0, (0.05, 20.0)) * Matern(
        length_scale=[USUAL_LENGTH] * width, length_scale_bounds=[(0.1, 4.0)] * width, nu=2.5
    ) + WhiteKernel(USUAL_NOISE, (1e-5, 0.03))
    # noise="gaussian" makes skopt take the white kernel out of predictions: they are of f itself.
    model = GaussianProcessRegressor(
        kernel=kernel,
        alpha=variances + 1e-8,
        noise="gaussian",
        optimizer=_most_plausible,
        n_restarts_optimizer=0,
        random_state=seed,
    )
    with warnings.catch_warnings():
        # A length scale at its bound is an answer ("this setting does nothing"), not a failure.
        warnings.simplefilter("ignore")
        model.fit(points, y)
    return model


def _most_plausible(
    loss: Callable[[np.ndarray], tuple[float, np.ndarray]],
    start: np.ndarray,
    bounds: np.ndarray,
) -> tuple[np.ndarray, float]:
    """The kernel's logarithms of greatest posterior density; `loss` is -ln(likelihood), gradient.

    Few points leave the likelihood nearly flat in most of the length scales; the prior keeps those
    where it began.
    """
    widths = np.array([PRIOR_SCALE, *[PRIOR_LENGTH] * (len(start) - 2), PRIOR_NOISE])

    def penalised(theta: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = loss(theta)
        away = (theta - start) / widths
        return value + 0.5 * float(away @ away), gradient + away / widths

    found = minimize(
        penalised, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 20}
    )
    return found.x, float(found.fun)


@functools.lru_cache(maxsize=4)
def _even_points(width: int) -> np.ndarray:
    return np.array(Halton().generate([(0.0, 1.0)] * width, GLOBAL_POINTS, random_state=0))


def _predict(model: GaussianProcessRegressor, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        means, deviations = model.predict(points, return_std=True)
    return means, deviations


def _candidates(problem: Problem, points: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Points to choose from: the cube evenly, and the neighbourhood of the best points."""
    rng = np.random.default_rng([problem.seed, len(points)])
    width = problem.space.width
    even = (_even_points(width) + rng.random(width)) % 1.0
    best = np.clip(points[np.argsort(means)[:LOCAL_CENTRES]], 0.0, 1.0)
    near = [
        centre + spread * rng.standard_normal((LOCAL_POINTS, width))
        for centre in best
        for spread in LOCAL_WIDTHS
    ]
    # A neighbour of a point keeps its flags, so that each side of a flag is searched finely too.
    columns = problem.space.columns
    for block, centre in zip(near, np.repeat(best, len(LOCAL_WIDTHS), axis=0), strict=True):
        for at, kind in enumerate(columns):
            if kind != "axis":
                block[:, at] = centre[at]
    candidates = np.clip(np.vstack([even, *near]), 0.0, 1.0)
    for at, kind in enumerate(columns):
        if kind != "axis":
            candidates[:, at] = candidates[:, at] >= 0.5
        if kind == "auto":
            candidates[candidates[:, at] == 1.0, at - 1] = 0.5
    return candidates


def _most_improving(
    model: GaussianProcessRegressor,
    candidates: np.ndarray,
    problem: Problem,
    points: np.ndarray,
    best_mean: float,
) -> tuple[tuple[float, ...], float]:
    """The candidate of highest EI as settings will be rounded, and its EI in units of s.

    Points on the incumbent are passed over: it is measured between candidates anyway.
    """
    gains = gaussian_ei(candidates, model, y_opt=best_mean, xi=0.0)
    for at in np.argsort(-gains):
        point = problem.space.encode(problem.space.decode(candidates[at]))
        if np.abs(np.asarray(point) - points[problem.incumbent]).max() > SAME_POINT:
            return point, float(gains[at])
    return tuple(points[problem.incumbent]), 0.0
