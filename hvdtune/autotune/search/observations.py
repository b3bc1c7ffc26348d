"""The measurements, and what they say about candidates and the machine's drift.

A *visit* is a few steps with some settings; the visits of settings that are compared alternate. The
visits of the same settings in a round, or between two looks of a comparison, are one *sample*: a
row of the log.

t_i      ln(step time) of visit i
b_k      the k-th incumbent's ln(step time) minus that of the first one (b_0 = 0), from the
         paired comparisons that led to its adoption
level    the first incumbent's ln(step time) at a position in the sequence: a weighted mean of
         t_i - b_k over the visits of incumbents around it (`inference.level`)
y        a candidate's t_i - level, the mean over its visits: -0.05 is 5 % faster than
         the settings the run began with
"""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hvdtune.autotune.search.space import Values
from hvdtune.autotune.statistics import inference
from hvdtune.autotune.statistics.inference import Estimate
from hvdtune.autotune.statistics.score import Sample

# The error of the few steps of an abandoned candidate.
ABANDONED_ERROR = 0.2
LEAST_SCATTER = 3  # visits; fewer do not show how much visits scatter
LEAST_TRIMMED = 5  # visits; fewer cannot be trimmed
# Few visits may agree by chance: their error is at least this share of the known noise.
LEAST_SHARE = 0.7


@dataclass(frozen=True)
class Trial:
    """Settings to run. `waiting`: run them, but measure nothing yet.

    `visit`: only for a few steps, as one of several visits that make a sample.
    """

    phase: str
    values: Values
    candidate: bool = False
    waiting: bool = False
    note: str = ""
    visit: bool = False


@dataclass(frozen=True)
class Measurement:
    """A trial and its result; `number` counts visits or samples from 1.

    `baseline` is b_k of the incumbent at the time; `at_limit`: it was given up because the harm
    limit was reached.
    """

    number: int
    trial: Trial
    sample: Sample
    baseline: float = 0.0
    at_limit: bool = False

    @property
    def log_time(self) -> float:
        """Natural logarithm of the step time."""
        return math.log(self.sample.step_time_ms)

    @property
    def is_incumbent(self) -> bool:
        """Whether it measures the incumbent."""
        return not self.trial.candidate and self.trial.phase != "warmup"


@dataclass
class Candidate:
    """A settings point and its visits."""

    values: Values
    visits: list[Measurement] = field(default_factory=list)


class Record:
    """All visits in order, and the candidates in the order of their first visits.

    `samples` are the visits combined up to the last `close`. The tuner asks after every visit, in
    the training process, so what is known of the incumbents is kept and not gathered each time.
    """

    def __init__(self) -> None:
        self.visits: list[Measurement] = []
        self.samples: list[Measurement] = []
        self.candidates: list[Candidate] = []
        self.baseline = 0.0
        self._open: list[list[Measurement]] = []
        # Of the incumbents' visits: numbers, t_i - b_k, relative errors, and their scatter.
        self._numbers: list[int] = []
        self._levels: list[float] = []
        self._errors: list[float] = []
        self._noise = inference.noise_between([])
        # Since the last `close`: each candidate's y with its error, and the last visit they use.
        self._observed: dict[int, tuple[float, tuple[float, float]]] = {}

    def add(self, trial: Trial, sample: Sample, at_limit: bool = False) -> None:
        """Add a visit."""
        visit = Measurement(len(self.visits) + 1, trial, sample, self.baseline, at_limit)
        self.visits.append(visit)
        if visit.is_incumbent:
            self._numbers.append(visit.number)
            self._levels.append(visit.log_time - visit.baseline)
            self._errors.append(sample.relative_error)
            self._noise = inference.noise_between(self._levels)
        if trial.candidate:
            self._candidate(trial.values).visits.append(visit)
        for known in self._open:
            if known[0].trial == trial:
                known.append(visit)
                return
        self._open.append([visit])

    def close(self) -> None:
        """Combine the visits since the last call."""
        for visits in self._open:
            sample = together([visit.sample for visit in visits])
            assert sample is not None
            number = len(self.samples) + 1
            self.samples.append(replace(visits[-1], number=number, sample=sample))
        self._open = []
        self._observed = {}

    def adopt(self, log_gain: float) -> None:
        """Start a new incumbent, which is faster by this much."""
        self.baseline -= log_gain

    def level(self, position: float) -> Estimate:
        """The level (see the module) at a visit's number."""
        reach = inference.LEVEL_REACH
        begin = bisect.bisect_left(self._numbers, position - reach)
        end = bisect.bisect_right(self._numbers, position + reach)
        near = slice(begin, end) if begin < end else slice(None)
        noise = self._noise.error
        return inference.level(
            position,
            self._numbers[near],
            self._levels[near],
            [max(noise, error) for error in self._errors[near]],
        )

    def usual(self) -> Estimate:
        """The ln(step time) that the present incumbent would have in the next visit."""
        level = self.level(len(self.visits) + 1)
        return Estimate(level.value + self.baseline, level.error)

    def noise(self) -> Estimate:
        """How much single visits of the incumbents scatter (`inference.noise_between`)."""
        return self._noise

    def usual_error(self) -> float:
        """The usual relative error of an incumbent's visit."""
        return statistics.median(self._errors)

    def observe(self, candidate: Candidate) -> tuple[float, float]:
        """y of a candidate and its standard error."""
        newest = min(len(self.visits), candidate.visits[-1].number + inference.LEVEL_REACH)
        known = self._observed.get(id(candidate))
        if known is None or known[0] != newest:
            known = newest, self._observe(candidate)
            self._observed[id(candidate)] = known
        return known[1]

    def _observe(self, candidate: Candidate) -> tuple[float, float]:
        noise = self._noise.error
        values, errors = [], []
        for one in candidate.visits:
            level = self.level(one.number)
            error = math.hypot(max(noise, one.sample.relative_error), level.error)
            if one.sample.abandoned:
                error = min(error, ABANDONED_ERROR)
            values.append(one.log_time - level.value)
            errors.append(error)
        if len(values) >= LEAST_TRIMMED:
            found = inference.trimmed(values)
            known = math.sqrt(sum(error**2 for error in errors)) / len(errors)
            return found.value, max(found.error, LEAST_SHARE * known)
        weights = [1 / error**2 for error in errors]
        total = sum(weights)
        mean = sum(w * value for w, value in zip(weights, values, strict=True)) / total
        return mean, 1 / math.sqrt(total)

    def of(self, values: Values) -> Sequence[Sample]:
        """The samples of these settings, without those thrown away."""
        return [
            one.sample
            for one in self.samples
            if one.trial.values == values and one.trial.phase != "warmup"
        ]

    def find(self, values: Values) -> Candidate | None:
        """The candidate with these settings, if it has been visited."""
        return next((one for one in self.candidates if one.values == values), None)

    def _candidate(self, values: Values) -> Candidate:
        known = self.find(values)
        if known is None:
            known = Candidate(values)
            self.candidates.append(known)
        return known


def together(samples: Sequence[Sample]) -> Sample | None:
    """Several samples of the same settings as one: means, with the mean's standard error."""
    if not samples:
        return None
    count = len(samples)
    times = [sample.step_time_ms for sample in samples]
    error = math.sqrt(sum(sample.stderr_ms**2 for sample in samples)) / count
    if count >= LEAST_SCATTER:
        error = max(error, inference.deviation(times) / math.sqrt(count))
    time_ms, size = statistics.fmean(times), statistics.fmean(one.bytes_per_step for one in samples)
    return Sample(
        steps=sum(sample.steps for sample in samples),
        step_time_ms=time_ms,
        stderr_ms=error,
        bytes_per_step=size,
        score=size / (1e3 * time_ms),
        outliers=sum(sample.outliers for sample in samples),
        abandoned=samples[-1].abandoned,
        seconds=sum(sample.seconds for sample in samples),
    )
