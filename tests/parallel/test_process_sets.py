"""Process sets: collectives among some of the ranks, given to init or added while the job runs."""

from __future__ import annotations

import pytest
from rank_programs import sets
from support.jobs.ranks import run_ranks

FAILED = "Horovod initialization failed"


def test_every_operation_in_overlapping_sets() -> None:
    assert run_ranks(3, sets.collectives_of_sets).values == ([], [], [])


def test_sets_do_not_wait_for_each_other() -> None:
    assert run_ranks(3, sets.sets_do_not_wait).values == ([2.0] * 3,) * 3


def test_overlapping_sets_used_by_several_threads() -> None:
    assert run_ranks(3, sets.overlapping_sets_in_threads, 60).values == ([], [], [])


def test_sets_that_cannot_be() -> None:
    for seen in run_ranks(3, sets.bad_sets).values:
        for case in ("out of range", "repeated", "empty"):
            assert seen[case][0] == "ValueError", case
            assert FAILED in seen[case][1], case
        assert seen["still down"][1] == "(False, None)"
        assert seen["duplicate"][0] == "ValueError"
        assert "process set 1 of init(), [0, 1], is a duplicate" in seen["duplicate"][1]
        assert seen["ids"][1] == "[1, None, 2]"
        assert seen["clean list"] == ("", "None")
        assert seen["ids by the clean list"][1] == "[1, 2]"
        for case in ("global set", "full list"):
            assert seen[case][0] == "ValueError", case
            assert "process set 0 of init(), [0, 1, 2], is a duplicate" in seen[case][1], case
        assert seen["out of range later"][0] == "ValueError"
        assert "rank 3 does not exist" in seen["out of range later"][1]
        assert seen["ids at the end"][1] == "[None, None, None]"
        assert seen["size at the end"] == ("", "None")


def test_what_is_wrong_on_one_rank_fails_on_all() -> None:
    good, bad = run_ranks(2, sets.one_rank_is_wrong, env={"HOROVOD_START_TIMEOUT": "10"}).values
    for seen in (*good, *bad):
        assert seen[0] == "ValueError", seen
        assert FAILED in seen[1]
    assert "[0, 2], needs different ranks from 0 to 1" in bad[0][1]
    assert "settings that must be equal" in good[0][1]
    assert "[0, 2], needs different ranks from 0 to 1" in good[0][1]
    assert "init(process_sets=[[0]]) there, init(process_sets=[[1]]) on rank 0" in good[1][1]
    assert "HOROVOD_DYNAMIC_PROCESS_SETS=True there" in good[2][1]


def test_static_sets_through_several_inits() -> None:
    for seen in run_ranks(3, sets.static_lives).values:
        assert seen[:3] == [1, 2, 3]
        for kind, text in seen[3:5]:
            assert kind == "ValueError"
            assert "HOROVOD_DYNAMIC_PROCESS_SETS=1" in text
        assert seen[5:] == [None, None, None, None, 2, 1]


REFUSED = {
    "duplicate": "duplicate process set: [0, 1]",
    "itself": "duplicate process set: [0, 1]",
    "full list": "duplicate process set: [0, 1, 2]",
    "out of range": "rank 3 does not exist; different ranks from 0 to 2",
    "negative": "rank -1 does not exist; different ranks from 0 to 2",
    "too large for the wire": "does not exist; different ranks from 0 to 2",
    "repeated": "rank 2 is given twice",
    "empty": "at least one rank",
    "different ranks": "rank 0 has [1, 2], rank 1 has [0, 2]",
    "out of range on one": "rank 0 has [1, 2], rank 1 has [0, 77]",
    "different removals": "rank 0 has [1], rank 1 has [2]",
    "removal and addition": "rank 0 has ADD_PROCESS_SET, rank 1 has REMOVE_PROCESS_SET",
    "numpy ints": "must be ints",
    "unknown's size": "does not exist or has not been registered",
    "vanished size": "does not exist or has not been registered",
    "vanished rank": "does not exist or has not been registered",
    "vanished set used": "does not exist or has not been registered",
}


def test_what_add_and_remove_refuse() -> None:
    for rank, seen in enumerate(run_ranks(3, sets.dynamic_errors).values):
        for case, words in REFUSED.items():
            assert seen[case][0] == "ValueError", (case, seen[case])
            assert words in seen[case][1], (case, seen[case])
        assert seen["known"] == ("", "True")
        for case in ("unknown", "again", "vanished set removed"):
            assert seen[case] == ("", "False"), case
        assert seen["vanished included"] == ("", str(rank == 2))
        if rank == 2:
            assert seen["rank"][0] == "ValueError"
            assert "not part of provided process set" in seen["rank"][1]
        else:
            assert seen["rank"] == ("", str(rank))


def test_numbers_are_used_again_in_the_order_of_removal() -> None:
    assert run_ranks(3, sets.numbers_come_back).values == ([2, None, 3, 1, 4],) * 3


def test_automatic_names_start_over_with_a_number() -> None:
    # unnamed operations: two in [0, 1], three in [1, 2], two in [0, 2]; each gives 2.0
    assert run_ranks(3, sets.names_start_over).values == (8.0, 10.0, 10.0)


def test_operations_left_in_a_removed_set_fail() -> None:
    values = run_ranks(3, sets.removed_with_operations).values
    assert [len(seen) for seen in values] == [2, 2, 0]
    for kind, text in [*values[0], *values[1]]:
        assert kind == "HorovodInternalError"
        assert "Process set has been removed" in text


def test_changes_do_not_hold_up_work() -> None:
    assert run_ranks(3, sets.change_while_working).values == (True,) * 3


def test_threads_that_add_and_remove_in_any_order() -> None:
    successes = run_ranks(3, sets.racing_threads, 20).values
    assert len(set(successes)) == 1
    assert 0 < successes[0] <= 60


def test_shutdown_in_one_thread_ends_adding_in_another() -> None:
    seen = run_ranks(2, sets.shutdown_beside_adding).values[0]
    assert seen[0] == "ValueError"
    assert "Horovod is shutting down" in seen[1] or "has not been initialized" in seen[1]


@pytest.mark.parametrize("leaver", [0, 2])
def test_the_job_ends_while_a_set_is_added(leaver: int) -> None:
    values = run_ranks(3, sets.ended_while_adding, leaver).values
    for rank, seen in enumerate(values):
        assert len(seen) == (0 if rank == leaver else 2)
        for kind, text in seen:
            assert kind == "ValueError", seen
            assert "Horovod is shutting down" in text
