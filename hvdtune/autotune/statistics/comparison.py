"""Two settings compared in pairs of fresh samples: is the candidate faster, beyond the noise?

    n        pairs so far
    d_i      ln(candidate's step time / incumbent's) of pair i; g = -mean(d): the gain
    looks    the numbers of pairs after which it may end with a gain
    margin   how much of the gain may be luck. The looks share the chance of an error: up to a look,
             the share spent is (its pairs / all pairs) ** SPENDING. So looking several times errs
             no more often than the confidence says, and the last look keeps most of the chance

It ends at a look if the gain exceeds its margin (faster) and the plain mean of the pairs, in which
every slow sample counts, is also a gain. But if pairs scatter so much that the margin is WIDE, and
more than CLEAR of the gain, it goes on, up to SURE_PAIRS, so that the figures show how large the
gain is and not only that there is one. It ends without a gain (no faster) at the last look. It also
does so if gain and margin together are too small to matter, or if the gain is so small that the
last look would hardly find it significant. From the first look on, this is checked after every
CHECK_PAIRS pairs: to end without a gain spends none of the chance of an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from hvdtune.autotune.statistics import inference
from hvdtune.autotune.statistics.inference import Estimate
from hvdtune.autotune.statistics.score import Sample

LOOKS = (6, 18, 56)
SPENDING = 1.8
CHECK_PAIRS = 3
# A pair with a sample this much rougher than usual is measured again, but only this many times: if
# it keeps happening, the candidate is the cause.
DISTURBED = 5.0
REPEATS = 3
LUCK = 1.2  # standard errors
CLEAR = 0.5  # of the gain
WIDE = 0.15
SURE_PAIRS = 18


@dataclass(frozen=True)
class Finding:
    """`gain` and `margin` as logarithms of step times: 0.01 is one per cent."""

    faster: bool
    gain: float
    margin: float
    pairs: int


def as_shares(gain: float, margin: float, faster: bool) -> tuple[float, float]:
    """A gain and its margin, logarithms, as shares of the step time.

    Equal distances of logarithms are not equal shares, so the margin is that of the side that
    matters: of the least possible gain if it is `faster`, else of the largest.
    """
    side = math.expm1(margin) if faster else -math.expm1(-margin)
    return -math.expm1(-gain), math.exp(-gain) * side


@dataclass
class Comparison:
    """Takes pairs until there is a finding.

    `noise` is the scatter of single samples of the same settings (`inference.noise_between`),
    `usual_error` the usual relative error of a sample. `most_pairs` limits the looks.
    """

    noise: Estimate
    usual_error: float
    confidence: float
    min_gain: float
    most_pairs: int = LOOKS[-1]
    differences: list[float] = field(default_factory=list)
    repeats: int = 0

    @property
    def looks(self) -> Sequence[int]:
        """The numbers of pairs after which it may end with a gain."""
        return [look for look in LOOKS if look <= self.most_pairs] or [max(2, self.most_pairs)]

    @property
    def candidate_first(self) -> bool:
        """The order of the next pair: C I, I C, C I …, so that a linear drift cancels over two."""
        return len(self.differences) % 2 == 0

    @property
    def is_last(self) -> bool:
        """Whether the next pair is the last one before a look."""
        return len(self.differences) + 1 in self.looks

    def words(self) -> str:
        """The pairs up to the next look, in words."""
        taken, looks = len(self.differences), self.looks
        first = max((look for look in looks if look <= taken), default=0) + 1
        last = min(look for look in looks if look > taken)
        return f"pairs {first} to {last} of at most {looks[-1]}"

    def add(self, candidate: Sample, incumbent: Sample) -> Finding | None:
        """Take a pair; returns the finding if this decides."""
        worst = max(candidate.relative_error, incumbent.relative_error)
        if worst > DISTURBED * self.usual_error and self.repeats < REPEATS:
            self.repeats += 1
            return None
        self.differences.append(math.log(candidate.step_time_ms / incumbent.step_time_ms))
        pairs = len(self.differences)
        is_check = pairs > self.looks[0] and pairs % CHECK_PAIRS == 0
        return self._judge() if pairs in self.looks or is_check else None

    def _judge(self) -> Finding | None:
        pairs, last = len(self.differences), self.looks[-1]
        look = min(at for at in self.looks if at >= pairs)  # this one, or the next
        estimate = inference.paired(self.differences, self.noise)
        margin = estimate.margin(1 - self._chance(look))
        gain = -estimate.value
        # A gain that only the trimmed mean shows may cost slow steps now and then.
        is_gain = -fmean(self.differences) >= self.min_gain
        if pairs == look and gain > margin and gain >= self.min_gain and is_gain:
            is_clear = margin <= max(WIDE, CLEAR * gain) or pairs >= min(SURE_PAIRS, last)
            return Finding(True, gain, margin, pairs) if is_clear else None
        if pairs == last or self._is_hopeless(estimate, margin):
            return Finding(False, gain, margin, pairs)
        return None

    def _is_hopeless(self, estimate: Estimate, margin: float) -> bool:
        """Whether the gain is too small to matter, or to be significant at the end."""
        pairs, last, gain = len(self.differences), self.looks[-1], -estimate.value
        if gain + margin < self.min_gain:
            return True
        # If a few pairs scatter more than the known noise, one of them may be an outlier that is
        # trimmed later.
        if pairs == self.looks[0] and estimate.freedom < pairs:
            return False
        at_end = estimate.error * math.sqrt(pairs / last)
        at_end *= inference.student_quantile(1 - self._chance(last), math.inf)
        return gain + LUCK * estimate.error < at_end

    def _chance(self, pairs: int) -> float:
        """The chance of an error that the look after this many pairs may spend."""
        last = self.looks[-1]
        before = max((look for look in self.looks if look < pairs), default=0)
        spent = (pairs / last) ** SPENDING - (before / last) ** SPENDING
        return (1 - self.confidence) * spent
