"""Starting and ending a job again and again: nothing is left, and early ranks do not poll."""

from __future__ import annotations

import pytest
from rank_programs import startup
from ranks import run_ranks


def test_five_hundred_lives_leave_nothing() -> None:
    for held in run_ranks(4, startup.hold, 500, timeout=240).values:
        assert held["files"] == 0
        assert held["threads"] == 0
        # The allocator may come and go; a leak in every round would be hundreds of mappings, or
        # the pages of hundreds of arenas.
        assert held["mappings"] < 20
        assert held["resident"] < 16_000


@pytest.mark.parametrize("late", [0, 2])
def test_early_ranks_sleep_until_the_last_has_come(late: int) -> None:
    values = run_ranks(4, startup.wait_for_rank, late, 1.5).values
    # They wake five times a second to look for Ctrl-C; looking for rank 0 every few milliseconds
    # would be hundreds of times.
    assert max(values) < 60, values
