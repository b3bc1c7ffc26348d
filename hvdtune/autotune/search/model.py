"""The model of the response surface: a Gaussian process in which settings act mostly separately.

    x_s      the coordinates of setting s (`space.Dimension`: one, or axis and flag)
    k_s      Matern_5/2(x_s, x_s'; one length scale per coordinate)
    k        sum over s of v_s k_s, plus v_0 times the product of all k_s
    v        variance of the noise that the e_i do not explain
    f        the process: y_i = f(x_i) + noise of variance e_i^2 + v

The effect of a fusion threshold is much the same at every chunk size, so most of what is learnt at
one value holds at others; the product models the rest (an additive Gaussian process of first and
full order: Duvenaud, Nickisch, Rasmussen, Additive Gaussian Processes, 2011). Twenty points are
enough to fit a sum of functions of one setting each, but not a function of four. (scikit-learn's
kernels use all columns of a point, so they cannot form this sum.)

Variances, length scales and noise maximise the posterior density. Each has a log-normal prior,
because with few points the likelihood is nearly flat in most of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve, solve_triangular
from scipy.optimize import minimize

# Priors: log-normal around these, with these standard deviations of the logarithm.
USUAL_SEPARATE, PRIOR_SEPARATE = 0.8, 1.0  # all settings' v_s together
USUAL_JOINT, PRIOR_JOINT = 0.2, 1.0  # v_0
USUAL_LENGTH, PRIOR_LENGTH = 0.6, 0.8
USUAL_NOISE, PRIOR_NOISE = 1e-3, 1.0
VARIANCE_BOUNDS = (1e-3, 20.0)
LENGTH_BOUNDS = (0.1, 4.0)
NOISE_BOUNDS = (1e-5, 0.03)
ITERATIONS = 30
_JITTER = 1e-8
_ROOT_5 = 5.0**0.5


@dataclass(frozen=True)
class Model:
    """A fitted process. `groups` holds every setting's coordinate columns."""

    points: np.ndarray
    groups: Sequence[Sequence[int]]
    lengths: np.ndarray
    variances: np.ndarray  # v_0, then one v_s for each group
    noise: float
    lower: np.ndarray
    weights: np.ndarray
    y: np.ndarray
    errors: np.ndarray

    def predict(self, points: np.ndarray, return_std: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Posterior means and standard deviations of f at points (n, width)."""
        across = sum_of(self._kernels(points), self.variances)
        means = across @ self.weights
        half = solve_triangular(self.lower, across.T, lower=True, check_finite=False)
        left = self.variances.sum() - np.einsum("ij,ij->j", half, half)
        return means, np.sqrt(np.maximum(left, 1e-12))

    def believing(self, points: np.ndarray) -> Model:
        """The process as if measurements at points (n, width) had come out as expected."""
        expected, _ = self.predict(points)
        usual = float(np.median(self.errors))
        return _conditioned(
            np.vstack([self.points, points]),
            np.concatenate([self.y, expected]),
            np.concatenate([self.errors, np.full(len(points), usual)]),
            self.groups,
            self.lengths,
            self.variances,
            self.noise,
        )

    def _kernels(self, points: np.ndarray) -> list[np.ndarray]:
        scaled, own = points / self.lengths, self.points / self.lengths
        kernels = []
        for group in self.groups:
            squares = np.zeros((len(points), len(own)))
            for at in group:
                squares += np.subtract.outer(scaled[:, at], own[:, at]) ** 2
            kernels.append(_matern(np.sqrt(squares)))
        return kernels


def fit(
    points: np.ndarray, y: np.ndarray, errors: np.ndarray, groups: Sequence[Sequence[int]]
) -> Model:
    """The most plausible model of y (n) at points (n, width), given their squared `errors`."""
    width, count = points.shape[1], len(groups)
    squares = np.stack([np.subtract.outer(column, column) ** 2 for column in points.T])
    usual = np.log(
        [USUAL_JOINT, *[USUAL_SEPARATE / count] * count, *[USUAL_LENGTH] * width, USUAL_NOISE]
    )
    widths = np.array(
        [PRIOR_JOINT, *[PRIOR_SEPARATE] * count, *[PRIOR_LENGTH] * width, PRIOR_NOISE]
    )
    bounds = np.log([*[VARIANCE_BOUNDS] * (1 + count), *[LENGTH_BOUNDS] * width, NOISE_BOUNDS])

    def penalised(theta: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = loss(theta, squares, y, errors, groups)
        away = (theta - usual) / widths
        return value + 0.5 * float(away @ away), gradient + away / widths

    found = minimize(
        penalised,
        usual,
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": ITERATIONS},
    )
    values = np.exp(found.x)
    variances, lengths, noise = values[: 1 + count], values[1 + count : -1], float(values[-1])
    return _conditioned(points, y, errors, groups, lengths, variances, noise)


def _conditioned(
    points: np.ndarray,
    y: np.ndarray,
    errors: np.ndarray,
    groups: Sequence[Sequence[int]],
    lengths: np.ndarray,
    variances: np.ndarray,
    noise: float,
) -> Model:
    """The process with these variances, lengths and noise, given the measurements."""
    squares = np.stack([np.subtract.outer(column, column) ** 2 for column in points.T])
    kernels, _ = _parts(squares, lengths, groups)
    covariance = sum_of(kernels, variances)
    covariance[np.diag_indices(len(y))] += errors + noise + _JITTER
    lower = np.linalg.cholesky(covariance)
    weights = cho_solve((lower, True), y, check_finite=False)
    return Model(points, groups, lengths, variances, noise, lower, weights, y, errors)


def sum_of(kernels: Sequence[np.ndarray], variances: np.ndarray) -> np.ndarray:
    """k of the module from every k_s."""
    total = variances[0] * np.prod(kernels, axis=0)
    for variance, kernel in zip(variances[1:], kernels, strict=True):
        total = total + variance * kernel
    return total


def _matern(distance: np.ndarray) -> np.ndarray:
    far = _ROOT_5 * distance
    return (1 + far + far**2 / 3) * np.exp(-far)


def _parts(
    squares: np.ndarray, lengths: np.ndarray, groups: Sequence[Sequence[int]]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Every k_s, and its derivative with respect to the squared distance, times -2."""
    kernels, slopes = [], []
    for group in groups:
        far = _ROOT_5 * np.sqrt(sum(squares[at] / lengths[at] ** 2 for at in group))
        fall = np.exp(-far)
        kernels.append((1 + far + far**2 / 3) * fall)
        slopes.append(5.0 / 3.0 * (1 + far) * fall)
    return kernels, slopes


def loss(
    theta: np.ndarray,
    squares: np.ndarray,
    y: np.ndarray,
    errors: np.ndarray,
    groups: Sequence[Sequence[int]],
) -> tuple[float, np.ndarray]:
    """-ln(likelihood) without a constant; its gradient with respect to the logarithms `theta`."""
    count = len(groups)
    values = np.exp(theta)
    variances, lengths, noise = values[: 1 + count], values[1 + count : -1], values[-1]
    kernels, slopes = _parts(squares, lengths, groups)
    product = np.prod(kernels, axis=0)
    covariance = sum_of(kernels, variances)
    covariance[np.diag_indices(len(y))] += errors + noise + _JITTER
    try:
        lower = np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        return 1e25, np.zeros_like(theta)
    inverse = cho_solve((lower, True), np.eye(len(y)), check_finite=False)
    weights = inverse @ y
    value = 0.5 * float(y @ weights) + float(np.log(np.diag(lower)).sum())
    # d loss / d K; the gradient is its product with d K / d theta, summed.
    outer = 0.5 * (inverse - np.outer(weights, weights))
    gradient = [variances[0] * float(np.vdot(outer, product))]
    by_length = np.zeros(len(lengths))
    for number, (group, kernel, slope) in enumerate(zip(groups, kernels, slopes, strict=True)):
        gradient.append(variances[1 + number] * float(np.vdot(outer, kernel)))
        others = [other for at, other in enumerate(kernels) if at != number]
        rest = np.prod(others, axis=0) if others else np.ones_like(kernel)
        share = outer * (variances[1 + number] + variances[0] * rest) * slope
        for at in group:
            by_length[at] = float(np.vdot(share, squares[at])) / lengths[at] ** 2
    gradient += [*by_length, float(noise) * float(np.trace(outer))]
    return value, np.array(gradient)
