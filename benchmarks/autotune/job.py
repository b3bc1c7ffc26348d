"""A training job that is replayed: steps of a surface with noise, drift and outliers.

t_k      time of step k, ms: T exp(s(values) + d sin(2 pi k / p + phase) + e_k), and `LONG`
         times that in a share `outliers` of the steps
s        the surface, T the reference's step time
e_k      noise, normal with standard deviation `noise`
d, p     slow drift of the machine

Instead, the step times of a real job can be replayed (`Wander`, made by wander.py): its r_k replace
noise, drift and outliers, from a random step on, again and again from the beginning.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

LONG = 4.0
DRIFT = 0.02
DRIFT_PERIOD = 1500  # steps
OUTLIERS = 0.01
STEP_BYTES = 100_000_000

Settings = Mapping[str, float]
WANDERS = Path(__file__).resolve().parent / "wanders"


@dataclass(frozen=True)
class Wander:
    """ln(time / median) of the steps of a real job in a row, and the median, ms."""

    step_ms: float
    series: tuple[float, ...]

    @classmethod
    def load_all(cls) -> dict[str, Wander]:
        """All that are stored, by name."""
        found = {path.stem: json.loads(path.read_text()) for path in sorted(WANDERS.glob("*.json"))}
        return {
            name: cls(one["step_ms"], tuple(at / 1000 for at in one["series"]))
            for name, one in found.items()
        }


@dataclass(frozen=True)
class Step:
    """The part of a step that the tuner sees (`autotune.statistics.score.Step`)."""

    duration_ns: int
    epoch: int
    bytes: int = STEP_BYTES


class Job:
    """A run of a training script. `steps` counts, `spent` is the sum of the steps' true times.

    `spent` is in units of a step with the settings that the run began with, without drift and
    noise: it contains only the cost of the tuner's trials.
    """

    def __init__(
        self, surface: Callable[[Settings], float], start: Settings, noise: float, seed: int,
        drift: float = DRIFT, outliers: float = OUTLIERS, step_ms: float = 50.0,
        step_bytes: int = STEP_BYTES, wander: Wander | None = None,
    ) -> None:  # fmt: skip
        self._surface = surface
        self._noise = noise
        self._drift, self._outliers = drift, outliers
        self._rng = random.Random(f"{seed} {noise}")
        self._phase = self._rng.uniform(0, 2 * math.pi)
        self._step_ns = step_ms * 1e6
        self._step_bytes = step_bytes
        self._wander = wander
        if wander is not None:
            self._step_ns = 1e6 * wander.step_ms
            self._first = self._rng.randrange(len(wander.series))
        self._start = surface(start)
        self.steps = 0
        self.spent = 0.0

    def step(self, values: Settings, epoch: int = 0) -> Step:
        """Do one step with these settings."""
        level = self._surface(values)
        self.steps += 1
        self.spent += math.exp(level - self._start)
        if self._wander is not None:
            series = self._wander.series
            log_time = level + series[(self._first + self.steps) % len(series)]
            return Step(int(self._step_ns * math.exp(log_time)), epoch, self._step_bytes)
        angle = 2 * math.pi * self.steps / DRIFT_PERIOD + self._phase
        log_time = level + self._drift * math.sin(angle) + self._rng.gauss(0, self._noise)
        long = LONG if self._rng.random() < self._outliers else 1.0
        return Step(int(self._step_ns * long * math.exp(log_time)), epoch, self._step_bytes)

    @property
    def slowdown(self) -> float:
        """How much longer the run has taken than with the settings it began with."""
        return self.spent / max(1, self.steps) - 1
