"""Elastic training without a driver: states, the sampler, and training through failures."""

from __future__ import annotations

import signal

import pytest

pytest.importorskip("torch")

from rank_programs import elastic_torch
from support.jobs.ranks import run_checks_on, run_ranks
from support.tiers import long_too


@pytest.mark.parametrize("np", long_too(3, long=[2]))
def test_states_and_training(np: int) -> None:
    run_checks_on(np, elastic_torch.run)


def test_a_dead_rank_ends_the_job_with_a_sentence() -> None:
    result = run_ranks(3, elastic_torch.one_dies, 1, check=False)
    assert [rank.returncode for rank in result.ranks] == [0, -signal.SIGKILL, 0], result.describe()
    for rank in (0, 2):
        assert "initialization failed" in result.values[rank]
        assert "rank 1" in result[rank].stderr, "why training starts over is logged"
