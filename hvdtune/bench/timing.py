"""How often each case is repeated and timed, decided by all ranks together."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from hvdtune.bench import metrics
from hvdtune.bench.metrics import Summary
from hvdtune.bench.plan import Plan

#: Warming up takes at least this many calls: while the second one runs, the first one's result
#: still exists, so that both may touch new pages, which takes far longer than any later call.
_LEAST_WARMUPS = 2

#: Otherwise warming up takes at most this part of a case's budget, and this many calls.
_WARMUP_SHARE = 0.1
_MOST_WARMUPS = 10

#: The time of a case as a multiple of its budget: checking, warming up, agreeing.
_OVERHEAD = 1.5


def time_of(call: Callable[[], None], repeats: int = 1) -> float:
    """Seconds per call, of `repeats` calls one after another."""
    started = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - started) / repeats


class Ranks:
    """The ranks' communication besides the operations under test."""

    def __init__(self, hvd: Any) -> None:
        self.hvd = hvd
        self._gathered = 0

    def slowest(self, value: float) -> float:
        """The largest `value` of all ranks."""
        import numpy as np

        largest = self.hvd.allreduce(np.array([value]), op=self.hvd.Max, name="bench.slowest")
        return float(largest[0])

    def total(self, value: int) -> int:
        """The sum of all ranks' values."""
        import numpy as np

        summed = self.hvd.allreduce(np.array([value]), op=self.hvd.Sum, name="bench.total")
        return int(summed[0])

    def gather(self, durations: Sequence[float]) -> list[list[float]]:
        """All ranks' durations, [rank][iteration]; every rank gives equally many."""
        import numpy as np

        self._gathered += 1  # a new name each time: the length differs from case to case
        name = f"bench.gather.{self._gathered}"
        gathered = self.hvd.allgather(np.array(durations), name=name)
        result: list[list[float]] = gathered.reshape(self.hvd.size(), -1).tolist()
        return result


class Timer:
    """Times the cases of a plan, one after another, within the time the plan has.

    Every case has a budget of timed seconds. If the run falls behind (a slow or busy machine), the
    budgets of the remaining cases shrink so that the run ends about when it should.
    """

    def __init__(self, ranks: Ranks, plan: Plan) -> None:
        self.ranks = ranks
        self.plan = plan
        self._started = time.monotonic()
        self._budgets_left = plan.budgets()
        self._seconds = max(plan.seconds, _OVERHEAD * plan.budgets())

    def measure(
        self, call: Callable[[], None], first: float | None, budget: float, limits: tuple[int, int]
    ) -> Summary:
        """Warm up, then time `call` as often as the plan says, or as often as fits into `budget`.

        `first` is how long the first call took on this rank if there was one already; `limits`
        are the fewest and the most timed calls if the budget decides.
        """
        pace = self._pace()
        self._budgets_left -= budget
        self._warm_up(call, first, pace * budget)
        self.ranks.hvd.barrier()
        if self.plan.iterations is not None:
            durations = [time_of(call) for _ in range(self.plan.iterations)]
        else:
            least = limits[0] if pace > 0.5 else 1
            durations = self._rounds(call, pace * budget, least, limits[1])
        return metrics.summarise(self.ranks.gather(durations))

    def _pace(self) -> float:
        """1 when on time, 0 when there is no time left; equal on all ranks."""
        left = self._seconds - self.ranks.slowest(time.monotonic() - self._started)
        return min(1.0, max(0.0, left / max(1e-9, _OVERHEAD * self._budgets_left)))

    def _warm_up(self, call: Callable[[], None], first: float | None, budget: float) -> None:
        """Call as often as the plan says, or as often as fits into a part of the budget."""
        if self.plan.warmup is not None:
            for _ in range(self.plan.warmup):
                call()
            return
        done = 0 if first is None else 1
        latest = [time_of(call) for _ in range(done, _LEAST_WARMUPS)][-1]
        estimate = self.ranks.slowest(latest)
        share = _WARMUP_SHARE * budget
        for _ in range(metrics.iterations_for(estimate, share, 0, _MOST_WARMUPS - _LEAST_WARMUPS)):
            call()

    def _rounds(
        self, call: Callable[[], None], budget: float, least: int, most: int
    ) -> list[float]:
        """Time from `least` to `most` calls; each round at most doubles their number.

        Between rounds the ranks agree how many more calls fit: the first ones are often slow, so
        each round gives a better estimate.
        """
        durations: list[float] = []
        count = least
        while count > 0:
            durations += [time_of(call) for _ in range(count)]
            spent = self.ranks.slowest(math.fsum(durations))
            done = len(durations)
            fitting = metrics.iterations_for(spent / done, budget - spent, 0, most - done)
            count = min(fitting, done)
        return durations
