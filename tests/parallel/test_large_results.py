"""Results of several MiB: right, independent of each other, and their memory used again."""

from __future__ import annotations

import pytest
from rank_programs import large_results
from support.jobs.ranks import run_ranks


@pytest.mark.long
@pytest.mark.parametrize("use_torch", [False, True], ids=["numpy", "torch"])
def test_results_keep_their_content(use_torch: bool) -> None:
    assert run_ranks(3, large_results.all_kinds, use_torch).values == ([], [], [])


def test_dropped_results_cost_no_new_memory() -> None:
    rounds = 20
    # Fresh: a forked process also faults where it first writes to memory of its parent.
    result = run_ranks(2, large_results.dropped_results, rounds, fresh=True)
    for growth_kib, faults in result.values:
        assert growth_kib < 12 * 1024  # one result has 12 or 24 MiB
        # New memory would be at least 18 faults a round with huge pages, 9216 without.
        assert faults < 10 * rounds
