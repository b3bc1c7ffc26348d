"""Process sets given to init: collectives among some of the ranks."""

from __future__ import annotations

from rank_programs import sets
from ranks import run_ranks


def test_every_operation_in_overlapping_sets() -> None:
    assert run_ranks(3, sets.collectives_of_sets).values == ([], [], [])


def test_sets_do_not_wait_for_each_other() -> None:
    assert run_ranks(3, sets.sets_do_not_wait).values == ([2.0] * 3,) * 3


def test_sets_that_cannot_be() -> None:
    for rank, seen in enumerate(run_ranks(3, sets.bad_sets).values):
        assert seen["duplicate"][0] == "ValueError"
        assert "is a duplicate" in seen["duplicate"][1]
        assert seen["out of range"][0] == "ValueError"
        assert "Horovod initialization failed" in seen["out of range"][1]
        assert seen["still down"][1] == "False"
        assert seen["not int"][0] == "ValueError"
        assert seen["sorted"][1] == "[0, 1]"
        if rank == 2:
            assert seen["non-member's rank"][0] == "ValueError"
            assert "not part of provided process set" in seen["non-member's rank"][1]
        else:
            assert seen["non-member's rank"] == ("", str(rank))
