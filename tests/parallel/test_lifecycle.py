"""init and shutdown: many times, in any order between ranks, in the middle of operations."""

from __future__ import annotations

import pytest
from rank_programs import lifecycle
from support.jobs.ranks import run_ranks

SIZE = 3


def test_fifty_lives_in_one_process() -> None:
    leaked = run_ranks(2, lifecycle.start_and_stop, 50).values
    assert leaked == (0, 0), "file descriptors leaked"


@pytest.mark.parametrize("leaver", range(SIZE))
def test_shutdown_of_one_rank_ends_the_job_for_all(leaver: int) -> None:
    values = run_ranks(SIZE, lifecycle.one_rank_stops, leaver).values
    for rank, seen in enumerate(values):
        if rank == leaver:
            continue
        for call in ("pending", "new"):
            kind, text = seen[call]
            assert kind == "HorovodInternalError"
            assert "Horovod has been shut down" in text
        assert seen["initialised"] is True
        assert seen["rank"] is True


@pytest.mark.parametrize("leaver", range(SIZE))
def test_a_program_that_ends_first(leaver: int) -> None:
    values = run_ranks(SIZE, lifecycle.one_rank_returns, leaver).values
    for rank, seen in enumerate(values):
        if rank != leaver:
            assert seen[0] == "HorovodInternalError", seen
            assert "Horovod has been shut down" in seen[1]


@pytest.mark.parametrize("leaver", range(SIZE))
def test_a_program_that_fails(leaver: int) -> None:
    result = run_ranks(SIZE, lifecycle.leave_by_exception, leaver, check=False)
    codes = [int(rank == leaver) for rank in range(SIZE)]
    assert [rank.returncode for rank in result.ranks] == codes, result.describe()
    for rank, seen in enumerate(result.values):
        if rank != leaver:
            assert seen[0] == "HorovodInternalError", seen


def test_init_twice() -> None:
    assert run_ranks(2, lifecycle.init_twice).values == ([2.0] * 3, [2.0] * 3)


def test_exit_without_shutdown() -> None:
    result = run_ranks(SIZE, lifecycle.never_shut_down)
    assert result.values == (0, 1, 2)
    assert [rank.stderr for rank in result.ranks] == ["", "", ""]


def test_forked_children_do_not_end_the_job() -> None:
    assert run_ranks(SIZE, lifecycle.children_come_and_go, 5).values == ([7] * 5,) * SIZE


def test_a_forked_child_can_run_its_own_job() -> None:
    assert run_ranks(2, lifecycle.child_starts_its_own_job).values == (1.0, 1.0)


def test_a_part_that_fails_to_say_goodbye_is_named() -> None:
    level = {"HOROVOD_LOG_LEVEL": "info"}
    result = run_ranks(1, lifecycle.goodbye_that_fails, env=level)
    assert result.values == (False,)
    assert "rank_programs.lifecycle failed: KeyError: 'gone'" in result.ranks[0].stdout
