"""What has been measured, and what it says about candidates and the machine's drift.

t_i      ln(step time) of measurement i
b_k      the k-th incumbent's ln(step time) over that of the first one (b_0 = 0): what the
         paired comparisons found when it was adopted
level    the first incumbent's ln(step time) at a place in the sequence: a weighted mean of
         t_i - b_k over the measurements of incumbents around it (`inference.level`)
y        a candidate's t_i - level, the mean over its measurements: -0.05 is 5 % faster than
         the settings the run began with
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from hvdtune.autotune import inference
from hvdtune.autotune.inference import Estimate
from hvdtune.autotune.score import Sample
from hvdtune.autotune.space import Values

# So rough is what a few steps say about an abandoned candidate.
ABANDONED_ERROR = 0.2


@dataclass(frozen=True)
class Trial:
    """Settings to measure. `waiting`: run them, but nothing is to be measured yet."""

    phase: str
    values: Values
    candidate: bool = False
    waiting: bool = False
    note: str = ""


@dataclass(frozen=True)
class Measurement:
    """A trial and what came of it; `number` counts all measurements from 1.

    `baseline` is b_k of the incumbent at the time.
    """

    number: int
    trial: Trial
    sample: Sample
    baseline: float = 0.0

    @property
    def log_time(self) -> float:
        """Natural logarithm of the step time."""
        return math.log(self.sample.step_time_ms)

    @property
    def is_incumbent(self) -> bool:
        """Whether it tells how fast the incumbent is."""
        return not self.trial.candidate and self.trial.phase != "warmup"


@dataclass
class Candidate:
    """A settings point and its measurements."""

    values: Values
    measurements: list[Measurement] = field(default_factory=list)


class Record:
    """All measurements, in order, and the candidates in the order they were first measured."""

    def __init__(self) -> None:
        self.history: list[Measurement] = []
        self.candidates: list[Candidate] = []
        self.baseline = 0.0

    def add(self, trial: Trial, sample: Sample) -> Measurement:
        """Take a measurement."""
        measurement = Measurement(len(self.history) + 1, trial, sample, self.baseline)
        self.history.append(measurement)
        if trial.candidate:
            self._candidate(trial.values).measurements.append(measurement)
        return measurement

    def adopt(self, log_gain: float) -> None:
        """From now on there is another incumbent, faster by so much."""
        self.baseline -= log_gain

    def level(self, position: float) -> Estimate:
        """The level (see the module) at a measurement's number."""
        known = self._incumbents()
        return inference.level(
            position,
            [one.number for one in known],
            [one.log_time - one.baseline for one in known],
            [one.sample.relative_error for one in known],
        )

    def usual(self) -> Estimate:
        """ln(step time) that the present incumbent would have in the next measurement."""
        level = self.level(len(self.history) + 1)
        return Estimate(level.value + self.baseline, level.error)

    def noise(self) -> Estimate:
        """How much single samples of the incumbents scatter (`inference.noise_between`)."""
        return inference.noise_between([one.log_time - one.baseline for one in self._incumbents()])

    def usual_error(self) -> float:
        """The relative error that a sample of an incumbent usually has."""
        return statistics.median(one.sample.relative_error for one in self._incumbents())

    def observe(self, candidate: Candidate) -> tuple[float, float]:
        """y of a candidate and its standard error."""
        weights, values = [], []
        for one in candidate.measurements:
            level = self.level(one.number)
            error = math.hypot(one.sample.relative_error, level.error)
            if one.sample.abandoned:
                error = min(error, ABANDONED_ERROR)
            weights.append(1 / error**2)
            values.append(one.log_time - level.value)
        total = sum(weights)
        mean = sum(w * value for w, value in zip(weights, values, strict=True)) / total
        return mean, 1 / math.sqrt(total)

    def samples(self, values: Values) -> Sequence[Sample]:
        """The samples taken of these settings; not those thrown away."""
        return [
            one.sample
            for one in self.history
            if one.trial.values == values and one.trial.phase != "warmup"
        ]

    def find(self, values: Values) -> Candidate | None:
        """The candidate with these settings, if it has been measured."""
        return next((one for one in self.candidates if one.values == values), None)

    def _candidate(self, values: Values) -> Candidate:
        known = self.find(values)
        if known is None:
            known = Candidate(values)
            self.candidates.append(known)
        return known

    def _incumbents(self) -> list[Measurement]:
        return [one for one in self.history if one.is_incumbent]


def together(samples: Sequence[Sample]) -> Sample | None:
    """Several samples of the same settings as one: means, and the mean's standard error."""
    if not samples:
        return None
    count = len(samples)
    return Sample(
        steps=sum(sample.steps for sample in samples),
        step_time_ms=sum(sample.step_time_ms for sample in samples) / count,
        stderr_ms=math.sqrt(sum(sample.stderr_ms**2 for sample in samples)) / count,
        bytes_per_step=sum(sample.bytes_per_step for sample in samples) / count,
        score=sum(sample.score for sample in samples) / count,
        outliers=sum(sample.outliers for sample in samples),
    )
