"""Allreduces that are made together, as those of DistributedOptimizer's gradients."""

from __future__ import annotations

import pytest
from rank_programs import plans
from support.jobs.ranks import run_ranks
from support.tiers import long_too


@pytest.mark.parametrize("np", long_too(3, long=[2]))
@pytest.mark.parametrize("capacity", ["1024", "8", "0"])
def test_tensors_may_change_their_shape_and_type(np: int, capacity: str) -> None:
    env = {"HOROVOD_CACHE_CAPACITY": capacity}
    assert run_ranks(np, plans.changing_tensors, env=env).values == ([],) * np


def test_a_plan_outlives_the_job() -> None:
    assert run_ranks(2, plans.in_two_jobs).values == ([], [])


def test_what_cannot_be_handed_over_is_told_apart() -> None:
    count = plans.TENSORS
    words = "reduce takes a list of as many tensors as there are names, and a list"
    expected = [False, 7, count, count - 1, words]
    assert list(run_ranks(2, plans.what_cannot_be_handed_over).values) == [expected, expected]
