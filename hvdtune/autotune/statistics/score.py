"""From training steps to a sample: how long a step takes, and how precise that is.

    t        durations of the steps kept, ns
    n        how many
    g        floor(TRIM * n), steps cut from each end of the sorted durations
    T        trimmed mean of t: the mean without the g shortest and the g longest
    s_w      standard deviation of t with the cut values replaced by the nearest kept one
    stderr   s_w / ((1 - 2g/n) sqrt(n)): the standard error of a trimmed mean (Tukey, McLaughlin)
             Steps of several sizes (optimizers that alternate without a period) are judged and
             cut size by size; T is the mean of all, s_w the standard deviation of all.
    score    mean bytes of a step / T: bytes per microsecond, that is MB/s (10^6), Horovod's unit

A step counts only if it ran under the settings being measured, after `settle` steps that are left
out because queues and caches still reflect the earlier settings. Steps that move a very different
number of bytes are another kind of work (an evaluation, a checkpoint's broadcast) and are also left
out; single long ones are counted as outliers and left out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from hvdtune.autotune.statistics.inference import deviation

TRIM = 0.1
MOST_OUTLIERS = 0.1  # of the steps; more long ones are an effect of the settings
OUTLIER_DEVIATIONS = 6.0  # robust standard deviations above the median
LEAST_OF_A_SIZE = 4  # fewer steps do not show how much they scatter
ONCE = 5.0  # … but of three, one that takes this many times the median is a one-time delay
OUTLIER_FLOOR = 0.25  # an outlier is at least this much above the median, as a share of it
LEAST_RELATIVE_ERROR = 5e-4  # the best possible precision: clocks tick and machines drift
MIN_SAMPLE_NS = 50_000_000
MIN_VISIT_NS = 8_000_000
LEAST_STEPS = 3  # fewer have no meaningful scatter, so no error
VISITS = 2  # a visit has this fraction (1 / VISITS) of a sample's steps
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
        """Number of the settings under which the step ended."""


@dataclass(frozen=True)
class Sample:
    """One measurement: times in milliseconds, score in MB/s; outliers are not among `steps`.

    `settled` steps before it were left out, each of `settled_ms` or more; before those, `late`
    steps still ran with the earlier settings, each of `late_ms` or more. `seconds` is the time
    since the change of settings, including those steps.
    """

    steps: int
    step_time_ms: float
    stderr_ms: float
    bytes_per_step: float
    score: float
    outliers: int = 0
    abandoned: bool = False
    settled: int = 0
    settled_ms: float = 0.0
    late: int = 0
    late_ms: float = 0.0
    seconds: float = 0.0

    @property
    def relative_error(self) -> float:
        """Relative standard error of the step time, never below the precision of clocks."""
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
    groups = _without_outliers(_by_size(pairs))
    kept = [pair for group in groups for pair in group]
    mean, stderr = _trimmed_mean([[duration for duration, _ in group] for group in groups])
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
    """The trimmed mean and its standard error.

    One value tells nothing about its error, so its error is as large as the value.
    """
    return _trimmed_mean([values])


def _trimmed_mean(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The same for several groups, each cut separately."""
    n = sum(len(group) for group in groups)
    if n == 1:
        [value] = (value for group in groups for value in group)
        return value, abs(value)
    total, winsorised, cuts = 0.0, [], 0
    for group in groups:
        ordered = sorted(group)
        cut = int(TRIM * len(ordered))
        kept = ordered[cut : len(ordered) - cut]
        total += statistics.fmean(kept) * len(ordered)
        winsorised += [kept[0]] * cut + kept + [kept[-1]] * cut
        cuts += cut
    return total / n, deviation(winsorised) / ((1 - 2 * cuts / n) * math.sqrt(n))


_Pairs = list[tuple[float, float]]  # durations and sizes


def _by_size(pairs: _Pairs) -> list[_Pairs]:
    """The steps of each size that at least LEAST_OF_A_SIZE have, and all others together."""
    groups: dict[float, _Pairs] = {}
    for pair in pairs:
        groups.setdefault(pair[1], []).append(pair)
    large = [group for group in groups.values() if len(group) >= LEAST_OF_A_SIZE]
    rest = [pair for group in groups.values() if len(group) < LEAST_OF_A_SIZE for pair in group]
    return [*large, rest] if rest else large


def _without_outliers(groups: list[_Pairs]) -> list[_Pairs]:
    """Drop single long steps, one or a share of MOST_OUTLIERS, that stand out in their group."""
    judged = [
        (duration / limit, at)
        for at, (group, limit) in enumerate((group, _limit(group)) for group in groups)
        for duration, _ in group
    ]
    most = max(1, int(MOST_OUTLIERS * len(judged)))
    long = sorted((one for one in judged if one[0] > 1), reverse=True)[:most]
    kept = []
    for at, group in enumerate(groups):
        count = sum(place == at for _, place in long)
        kept.append(sorted(group)[: len(group) - count])
    return kept


def _limit(group: _Pairs) -> float:
    """The longest duration that is not an outlier."""
    median = statistics.median(duration for duration, _ in group)
    if len(group) < LEAST_OF_A_SIZE:
        return ONCE * median if len(group) == LEAST_OF_A_SIZE - 1 else math.inf
    # 1.4826 makes the median absolute deviation a standard deviation for normal noise.
    spread = 1.4826 * statistics.median(abs(duration - median) for duration, _ in group)
    return median + max(OUTLIER_DEVIATIONS * spread, OUTLIER_FLOOR * median)


def visit_steps(steps: int) -> int:
    """The fewest steps of a visit, if a sample has `steps`."""
    return max(LEAST_STEPS, steps // VISITS)


def _shortest_ms(steps: Sequence[Step]) -> float:
    """The shortest of these steps: longer ones may contain an evaluation or a checkpoint."""
    return min((step.duration_ns for step in steps), default=0) / 1e6


class Window:
    """Collects the steps of one trial until they make a sample.

    `epoch` is the number of the settings being measured. Steps of an earlier one are late, the next
    `settle` steps settle, then `steps` are kept. They must last `min_ns` together, so that a sample
    of very short steps does not depend on the scheduler. `typical_bytes` is what a step of the
    tuned work moves (0: unknown). Steps that arrive after the sample is complete are also kept,
    because they cost nothing.
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
        self._late: list[Step] = []
        self._settled: list[Step] = []
        self._kept: list[Step] = []
        self._other = 0

    def add(self, step: Step) -> None:
        """Take the next step of the run."""
        if not 0 < step.duration_ns < math.inf:
            return
        if step.epoch < self._epoch:
            self._late.append(step)
            return
        if self._is_other_work(step.bytes):
            self._other += 1
            # Only "other" work arrives: the training itself has changed, so measure that.
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
        return self.missing_ns(1) <= 0

    def missing_ns(self, step_ns: int) -> int:
        """How long steps of this length take to complete the sample; 0 or less: it is complete."""
        settling = step_ns * (self._settle - len(self._settled))
        steps = step_ns * (self._steps - len(self._kept))
        return settling + max(steps, self._min_ns - sum(step.duration_ns for step in self._kept))

    @property
    def seen_ns(self) -> list[int]:
        """Durations of all steps under the settings, except the first (it began before them)."""
        return [step.duration_ns for step in (self._settled + self._kept)[1:]]

    @property
    def kept(self) -> int:
        """How many steps the sample has so far."""
        return len(self._kept)

    def sample(self, abandoned: bool = False) -> Sample:
        """The sample so far.

        Raises ValueError if it has no step. An abandoned one may use the settle steps (all but the
        first) if there are no others.
        """
        steps = self._kept or (self._settled[1:] if abandoned else [])
        found = summarise(
            [step.duration_ns for step in steps], [step.bytes for step in steps], abandoned
        )
        settled = self._settled if self._kept else self._settled[:1]
        return replace(
            found,
            settled=len(settled),
            settled_ms=_shortest_ms(settled),
            late=len(self._late),
            late_ms=_shortest_ms(self._late),
        )

    @classmethod
    def of(
        cls, epoch: int, steps: int, settle: int, typical_bytes: float, is_visit: bool
    ) -> Window:
        """A window for a sample of this many steps, or for a visit, a short part of a sample."""
        if is_visit:
            return cls(epoch, visit_steps(steps), settle, typical_bytes, MIN_VISIT_NS)
        return cls(epoch, max(LEAST_STEPS, steps), settle, typical_bytes)

    def _is_other_work(self, size: int) -> bool:
        if self._typical_bytes <= 0:
            return False
        return not (self._typical_bytes / OTHER_WORK <= size <= self._typical_bytes * OTHER_WORK)
