"""What slow candidates cost a run, and which of them are abandoned.

    usual    the time of a step with the incumbent now (`search.observations`)
    cost     of some steps: how much longer than usual they took, in steps' time; never less than 0

The cost includes all that a candidate causes: the steps of its samples, those that settled after
the change to it, those that still ran with it after the next settings had been requested, and those
that settled after the change back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hvdtune.autotune.statistics.inference import Estimate
from hvdtune.autotune.statistics.score import Sample
from hvdtune.settings.knobs import Settings

# A candidate is abandoned if its first whole step takes ABANDON_AT_ONCE times the incumbent's, if
# the better of two takes ABANDON_RATIO times, or if the mean of a few steps is slower by
# ABANDON_LOSS and three standard errors. A single step must be far off: it may be a checkpoint.
# If it takes PAUSE_NS longer, it may be a one-time delay of seconds (a compilation, the first batch
# of a new data loader), so a second step must confirm it.
ABANDON_AT_ONCE = 10.0
PAUSE_NS = 1e9
ABANDON_RATIO = 1.3
ABANDON_LOSS = 0.05
ABANDON_STEPS = 3
USUAL_SHARE = 0.01  # of the run: what slow candidates may cost
SEARCH_SHARE = 0.9  # of the limit: the search ends there, as the comparison also costs something


class Harm:
    """The cost of a run's candidates so far (`steps`), and its limit.

    `at_limit`: whether the last candidate was found hopeless because the limit was reached;
    otherwise it was clearly slower.
    """

    def __init__(self, limit_steps: float) -> None:
        self.limit = limit_steps
        self.steps = 0.0
        self.at_limit = False

    @property
    def ends_search(self) -> bool:
        """Whether so much is spent that no more candidates should be measured."""
        return self.steps > SEARCH_SHARE * self.limit

    @property
    def is_used_up(self) -> bool:
        """Whether the candidates have cost more than they may."""
        return self.steps > self.limit

    def take(
        self, sample: Sample, usual: Estimate, of_candidate: bool, behind_candidate: bool
    ) -> None:
        """Count a sample, `of_candidate` or of the incumbent, `behind_candidate` or not."""
        usual_ms = math.exp(usual.value)

        def cost(steps: int, each_ms: float) -> float:
            return max(0.0, each_ms / usual_ms - 1) * steps

        if of_candidate:
            self.steps += cost(sample.steps, sample.step_time_ms)
        if of_candidate or behind_candidate:
            self.steps += cost(sample.settled, sample.settled_ms)
        if behind_candidate:
            self.steps += cost(sample.late, sample.late_ms)

    def is_hopeless(
        self, seen_ns: Sequence[int], sample: Sample | None, usual: Estimate, compared: bool
    ) -> bool:
        """Whether a candidate need not be measured to the end.

        `seen_ns` are the steps since the change that ran entirely under it, `sample` is made of
        those that count so far. If it is being `compared`, it is abandoned only at the limit.
        """
        self.at_limit = False
        if not seen_ns:
            return False
        usual_ns = math.exp(usual.value) * 1e6
        # The longest may be a checkpoint, which is not the candidate's fault.
        lost = sum(duration / usual_ns - 1 for duration in sorted(seen_ns)[:-1])
        self.at_limit = self.steps + lost > self.limit
        if self.at_limit:
            return True
        if compared:
            return False
        ratio = ABANDON_AT_ONCE if len(seen_ns) == 1 else ABANDON_RATIO
        may_be_pause = len(seen_ns) == 1 and seen_ns[0] - usual_ns >= PAUSE_NS
        if min(seen_ns) > ratio * usual_ns and not may_be_pause:
            return True
        if sample is None or sample.steps < ABANDON_STEPS:
            return False
        loss = math.log(sample.step_time_ms) - usual.value
        return loss > ABANDON_LOSS + 3 * math.hypot(sample.relative_error, usual.error)


def harm_limit_steps(settings: Settings) -> float:
    """What slow candidates may cost in the whole run, in steps' time.

    A share of the run if its length is known; 1 % unless the user has set another share.
    """
    limit, expected = settings.autotune_harm_limit, settings.autotune_expected_steps
    if isinstance(limit, str):
        return float(limit.rstrip("%")) / 100 * expected
    if expected and not settings.is_fixed("autotune_harm_limit"):
        return USUAL_SHARE * expected
    return float(limit)
