"""Two settings compared in pairs of fresh samples: is the candidate faster, beyond the noise?

    n        pairs so far
    d_i      ln(candidate's step time / incumbent's) of pair i; g = -mean(d): the gain
    looks    the numbers of pairs after which it may end
    margin   how much of the gain may be luck, at a one-sided confidence shared evenly among all
             looks (Bonferroni): looking several times errs no more often than once

It ends at a look when the gain is beyond its margin (faster); when gain and margin together are
below what is worth having (no faster); when the gain is so small that the last look would hardly
find it significant (no faster); or at the last look.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from hvdtune.autotune import inference
from hvdtune.autotune.inference import Estimate
from hvdtune.autotune.score import Sample

LOOKS = (4, 8, 12, 18, 26, 36)
# A pair with a sample this much rougher than usual is measured again, but only so many times: what
# keeps happening is what the candidate does.
DISTURBED = 5.0
REPEATS = 3


@dataclass(frozen=True)
class Finding:
    """`gain` and `margin` as logarithms of step times: 0.01 is one per cent."""

    faster: bool
    gain: float
    margin: float
    pairs: int


@dataclass
class Comparison:
    """Takes pairs until there is a finding.

    `noise` is what single samples of the same settings scatter by (`inference.noise_between`),
    `usual_error` the relative error a sample usually has. `most_pairs` cuts the looks short.
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
        """After how many pairs it may end."""
        return [look for look in LOOKS if look <= self.most_pairs] or [max(2, self.most_pairs)]

    @property
    def candidate_first(self) -> bool:
        """The order of the next pair: C I, I C, C I …, so that a linear drift cancels over two."""
        return len(self.differences) % 2 == 0

    def add(self, candidate: Sample, incumbent: Sample) -> Finding | None:
        """Take a pair; the finding, if this was a look that ends the matter."""
        worst = max(candidate.relative_error, incumbent.relative_error)
        if worst > DISTURBED * self.usual_error and self.repeats < REPEATS:
            self.repeats += 1
            return None
        self.differences.append(math.log(candidate.step_time_ms / incumbent.step_time_ms))
        return self._look() if len(self.differences) in self.looks else None

    def _look(self) -> Finding | None:
        pairs, last = len(self.differences), self.looks[-1]
        estimate = inference.paired(self.differences, self.noise)
        margin = estimate.margin(1 - (1 - self.confidence) / len(self.looks))
        gain = -estimate.value
        if gain > margin and gain >= self.min_gain:
            return Finding(True, gain, margin, pairs)
        # One standard error of luck more, and still not significant at the end: why go on.
        hopeless = gain + estimate.error < margin * math.sqrt(pairs / last)
        if pairs == last or hopeless or gain + margin < self.min_gain:
            return Finding(False, gain, margin, pairs)
        return None
