"""Ranks may be bound to different CPUs."""

from __future__ import annotations

from rank_programs import affinity
from support.jobs.ranks import run_ranks


def test_one_rank_bound_to_one_cpu() -> None:
    run_ranks(2, affinity.allreduce_with_one_rank_pinned)
