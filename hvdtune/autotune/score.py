"""From training steps to a sample: how long a step takes, and how sure that is.

    t        durations of the steps kept, ns
    n        how many
    g        floor(TRIM * n), steps cut from each end of the sorted durations
    T        trimmed mean of t: the mean without the g shortest and the g longest
    s_w      standard deviation of t with the cut values replaced by the nearest kept one
    stderr   s_w / ((1 - 2g/n) sqrt(n)): the standard error of a trimmed mean (Tukey, McLaughlin)
    score    mean bytes of a step / T: bytes per microsecond, that is MB/s (10^6), Horovod's unit

A step counts only if it ran under the settings being measured, after `settle` steps that are left
out because queues and caches still remember the settings before. Steps that move a very different
number of bytes are another kind of work (an evaluation, a checkpoint's broadcast) and are left out
as well; single long ones are counted as outliers and left out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

TRIM = 0.1
MOST_OUTLIERS = 0.1  # what happens more often is no outlier but what the settings do
OUTLIER_DEVIATIONS = 6.0  # robust standard deviations above the median
OUTLIER_FLOOR = 0.25  # an outlier is at least this much above the median, as a share of it
LEAST_RELATIVE_ERROR = 5e-4  # nothing is known better than this: clocks tick and machines drift
MIN_SAMPLE_NS = 50_000_000
OTHER_WORK = 2.0  # bytes differ by more than this factor: not the work that is being tuned


class Step(Protocol):
    """What a sample needs to know about a step (`core.tuning.StepRecord` has it)."""

    @property
    def duration_ns(self) -> int:
        """Wall time of the step."""

    @property
    def bytes(self) -> int:
        """Bytes allreduced in the step."""

    @property
    def epoch(self) -> int:
        """Number of the settings the step ended under."""


@dataclass(frozen=True)
class Sample:
    """One measurement: times in milliseconds, score in MB/s; outliers are not among `steps`."""

    steps: int
    step_time_ms: float
    stderr_ms: float
    bytes_per_step: float
    score: float
    outliers: int = 0
    abandoned: bool = False

    @property
    def relative_error(self) -> float:
        """Standard error of the step time as a share of it, never below what clocks can tell."""
        return max(LEAST_RELATIVE_ERROR, self.stderr_ms / self.step_time_ms)


def summarise(
    durations_ns: Sequence[float], sizes: Sequence[float], abandoned: bool = False
) -> Sample:
    """The sample of steps with these durations (ns) and sizes (bytes).

    Durations that are not positive, finite numbers are ignored. Raises ValueError if none is left.
    """
    pairs = [
        (duration, size)
        for duration, size in zip(durations_ns, sizes, strict=True)
        if math.isfinite(duration) and duration > 0
    ]
    if not pairs:
        raise ValueError("a sample needs at least one step with a duration above zero")
    kept = _without_outliers(pairs)
    mean, stderr = trimmed_mean([duration for duration, _ in kept])
    size = statistics.fmean(size for _, size in kept)
    return Sample(
        steps=len(kept),
        step_time_ms=mean / 1e6,
        stderr_ms=stderr / 1e6,
        bytes_per_step=size,
        score=size / (mean / 1e3),
        outliers=len(pairs) - len(kept),
        abandoned=abandoned,
    )


def trimmed_mean(values: Sequence[float]) -> tuple[float, float]:
    """The trimmed mean and its standard error; of a single value, the value and itself.

    One value says nothing about its error, so its error is as large as the value.
    """
    ordered = sorted(values)
    n = len(ordered)
    if n == 1:
        return ordered[0], abs(ordered[0])
    cut = int(TRIM * n)
    kept = ordered[cut : n - cut]
    winsorised = [kept[0]] * cut + kept + [kept[-1]] * cut
    deviation = statistics.stdev(winsorised)
    return statistics.fmean(kept), deviation / ((1 - 2 * cut / n) * math.sqrt(n))


def _without_outliers(pairs: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Drop single long steps: one, or MOST_OUTLIERS of them, if they stand out clearly."""
    if len(pairs) < 4:
        return pairs
    median = statistics.median(duration for duration, _ in pairs)
    # 1.4826 makes the median absolute deviation a standard deviation for normal noise.
    spread = 1.4826 * statistics.median(abs(duration - median) for duration, _ in pairs)
    limit = median + max(OUTLIER_DEVIATIONS * spread, OUTLIER_FLOOR * median)
    ordered = sorted(pairs)
    most = max(1, int(MOST_OUTLIERS * len(pairs)))
    return ordered[:-most] + [pair for pair in ordered[-most:] if pair[0] <= limit]


class Window:
    """Collects the steps of one trial until they make a sample.

    `epoch` is the number of the settings being measured; steps of an earlier one are ignored, then
    `settle` steps are, then `steps` are kept and they must last `min_ns` together, so that a
    sample of very short steps is not one of the scheduler's moods. `typical_bytes` is what a step
    of the tuned work moves (0: not known yet). Steps that arrive after the sample is complete are
    kept too: more is known for nothing.
    """

    def __init__(
        self,
        epoch: int,
        steps: int,
        settle: int,
        typical_bytes: float = 0.0,
        min_ns: int = MIN_SAMPLE_NS,
    ) -> None:
        self._epoch = epoch
        self._steps = steps
        self._settle = settle
        self._typical_bytes = typical_bytes
        self._min_ns = min_ns
        self._settled: list[Step] = []
        self._kept: list[Step] = []
        self._other = 0

    def add(self, step: Step) -> None:
        """Take the next step of the run."""
        if step.epoch < self._epoch or not 0 < step.duration_ns < math.inf:
            return
        if self._is_other_work(step.bytes):
            self._other += 1
            # Nothing but "other" work: the training itself has changed, so measure that.
            if self._other <= 2 * self._steps:
                return
            self._typical_bytes = 0.0
            self._kept.clear()
        if len(self._settled) < self._settle:
            self._settled.append(step)
            return
        self._kept.append(step)

    @property
    def complete(self) -> bool:
        """Whether the steps so far make a sample."""
        enough = len(self._kept) >= self._steps
        return enough and sum(step.duration_ns for step in self._kept) >= self._min_ns

    @property
    def seen_ns(self) -> list[int]:
        """Durations of all steps under the settings, without the first (it began before them)."""
        return [step.duration_ns for step in (self._settled + self._kept)[1:]]

    @property
    def kept(self) -> int:
        """How many steps the sample has so far."""
        return len(self._kept)

    def sample(self, abandoned: bool = False) -> Sample:
        """The sample so far.

        Raises ValueError if there is no step in it. An abandoned one may use the settle steps
        (all but the first) when nothing else was seen.
        """
        steps = self._kept or (self._settled[1:] if abandoned else [])
        return summarise(
            [step.duration_ns for step in steps], [step.bytes for step in steps], abandoned
        )

    def _is_other_work(self, size: int) -> bool:
        if self._typical_bytes <= 0:
            return False
        return not (self._typical_bytes / OTHER_WORK <= size <= self._typical_bytes * OTHER_WORK)
