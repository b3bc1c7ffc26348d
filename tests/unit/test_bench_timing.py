"""Which calls of a case the bench leaves out of its figures."""

from __future__ import annotations

import pytest

from hvdtune.bench import timing
from hvdtune.bench.plan import Plan


class OneRank:
    """The communication of a job of one rank, and the number of calls before the timed ones."""

    def __init__(self):
        self.calls = self.before = 0
        self.hvd = self

    def barrier(self):
        self.before = self.calls

    def slowest(self, value):
        return value

    def gather(self, durations):
        return [list(durations)]


def plan(**changes):
    fields = {
        "operation": "allreduce",
        "dtype": "float32",
        "sizes": (1 << 26,),
        "workloads": (),
        "iterations": 3,
        "warmup": None,
        "check": False,
        "sweep_budget": 0.4,
        "workload_budget": 4.0,
        "seconds": 60.0,
        "memory_sizes": (),
        "memory_workers": 0,
    }
    return Plan(**fields | changes)


@pytest.mark.parametrize(
    ("checked", "warmup", "before"),
    # A call longer than its whole budget: two are left out, one of them if the other was checked.
    [(None, None, 2), (9.0, None, 1), (None, 0, 0), (9.0, 3, 3)],
)
def test_the_first_two_calls_of_a_case_are_not_timed(monkeypatch, checked, warmup, before):
    monkeypatch.setattr(timing, "time_of", lambda call: (call(), 9.0)[1])
    rank = OneRank()

    def call():
        rank.calls += 1

    summary = timing.Timer(rank, plan(warmup=warmup)).measure(call, checked, 0.4, (3, 1000))
    assert rank.before == before
    assert summary.iterations == 3


def test_short_calls_warm_up_for_a_tenth_of_their_budget(monkeypatch):
    monkeypatch.setattr(timing, "time_of", lambda call: (call(), 0.008)[1])
    rank = OneRank()

    def call():
        rank.calls += 1

    timing.Timer(rank, plan()).measure(call, None, 0.4, (3, 1000))
    assert rank.before == 2 + 5
