"""A smooth picture of the settings' effects, fitted to the samples of a log.

u       a setting's position on its axis, 0 to 1: logarithmic if its values span a factor of 8
y       log cost relative to the start's (`runs.gains`)
f(u)    Gaussian process, Matérn 5/2, one length scale per setting, each sample with its own error
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

LEAST_SAMPLES = 5
LOG_SPAN = 8.0
ZERO_STEP = 4.0  # on a logarithmic axis, zero is this factor below the least positive value


@dataclass(frozen=True)
class Axis:
    """One setting's axis over the tried values."""

    name: str
    values: tuple[float, ...]

    @property
    def is_log(self) -> bool:
        """Whether the axis is logarithmic."""
        above = [value for value in self.values if value > 0]
        return bool(above) and max(above) / min(above) >= LOG_SPAN and min(self.values) >= 0

    def place(self, value: float) -> float:
        """The coordinate of a value; 0 and 1 are the least and the largest tried values."""
        low, high = (self._scaled(bound) for bound in (min(self.values), max(self.values)))
        return (self._scaled(value) - low) / (high - low)

    def grid(self, count: int) -> list[float]:
        """Evenly spaced values from the least to the largest."""
        low, high = (self._scaled(bound) for bound in (min(self.values), max(self.values)))
        places = np.linspace(low, high, count)
        if not self.is_log:
            return [float(place) for place in places]
        values = np.exp(places)
        if min(self.values) == 0:
            values[0] = 0.0
        return [float(value) for value in values]

    def _scaled(self, value: float) -> float:
        if not self.is_log:
            return value
        least = min(number for number in self.values if number > 0)
        return math.log(max(value, least / ZERO_STEP))


class Surface:
    """The fitted picture. Raises ValueError for fewer than LEAST_SAMPLES samples."""

    def __init__(
        self,
        axes: Sequence[Axis],
        settings: Sequence[Mapping[str, float]],
        y: Sequence[float],
        errors: Sequence[float],
    ) -> None:
        if len(y) < LEAST_SAMPLES or not axes:
            raise ValueError(f"a surface needs {LEAST_SAMPLES} samples and a setting that varies")
        self.axes = tuple(axes)
        kernel = ConstantKernel(0.1, (1e-5, 1e2)) * Matern(
            [0.5] * len(axes), [(0.1, 10.0)] * len(axes), nu=2.5
        ) + WhiteKernel(1e-4, (1e-8, 1e-1))
        self._model = GaussianProcessRegressor(
            kernel, alpha=np.square(errors) + 1e-10, normalize_y=True, random_state=0
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a length scale at its bound is acceptable
            self._model.fit(self._points(settings), np.asarray(y))

    def influence(self) -> dict[str, float]:
        """How quickly the picture changes along every axis: one over the length scale."""
        scales = np.atleast_1d(self._model.kernel_.k1.k2.length_scale)
        return {axis.name: 1 / float(scale) for axis, scale in zip(self.axes, scales, strict=True)}

    def at(self, settings: Sequence[Mapping[str, float]]) -> tuple[list[float], list[float]]:
        """f and its standard deviation at settings."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            means, deviations = self._model.predict(self._points(settings), return_std=True)
        return means.tolist(), deviations.tolist()

    def _points(self, settings: Sequence[Mapping[str, float]]) -> np.ndarray:
        return np.array([[axis.place(one[axis.name]) for axis in self.axes] for one in settings])
