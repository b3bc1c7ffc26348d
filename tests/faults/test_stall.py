"""The stall report names the ranks that hold everybody up, and what they were doing."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from rank_programs import training
from support.jobs.ranks import start_ranks
from support.tiers import long_too

STALL = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1"}


def test_a_stopped_rank_is_named(tmp_path: Path) -> None:
    """SIGSTOP: the rank is alive and silent. It goes on afterwards as if nothing had been."""
    stop_file = tmp_path / "stop"
    program = training.stay_away_from
    with start_ranks(3, program, "awaited.tensor", 1, str(stop_file), env=STALL) as ranks:
        ranks.wait_for_output(1, "staying away")
        ranks.signal(1, signal.SIGSTOP)
        ranks.wait_for_output(0, "\nRank 1:", 60)
        stop_file.touch()
        ranks.signal(1, signal.SIGCONT)
        result = ranks.wait(60)
    assert result.values == ("finished",) * 3
    report = result[0].stderr
    assert "\n1: [allreduce.awaited.tensor]" in report
    assert "process stopped" in report
    assert {int(rank) for rank in re.findall(r"^(\d+)!?: \[", report, re.MULTILINE)} == {1}


def test_rank_0_stopped_is_named_by_another(tmp_path: Path) -> None:
    """Outside an operation, where its own stall check would have to say so."""
    stop_file = tmp_path / "stop"
    program = training.stay_away_from
    with start_ranks(3, program, "awaited.tensor", 0, str(stop_file), env=STALL) as ranks:
        ranks.wait_for_output(0, "staying away")
        ranks.signal(0, signal.SIGSTOP)
        reporter = ranks.wait_for_any([1, 2], "\nRank 0:", 60)
        stop_file.touch()
        ranks.signal(0, signal.SIGCONT)
        result = ranks.wait(60)
    assert result.values == ("finished",) * 3
    report = result[reporter].stderr
    assert "awaited.tensor" in report
    assert "process stopped" in report
    assert "Rank 0, which decides" not in result[3 - reporter].stderr, "one says it, not both"


def test_a_late_rank_is_named_with_what_it_does(tmp_path: Path) -> None:
    stop_file = tmp_path / "stop"
    program = training.stay_away_from
    with start_ranks(3, program, "awaited.tensor", 2, str(stop_file), env=STALL) as ranks:
        ranks.wait_for_output(0, "\n2: [", 60)
        ranks.wait_for_output(0, "wait_in_a_function_of_its_own", 60)
        stop_file.touch()
        result = ranks.wait(60)
    assert result.values == ("finished",) * 3
    report = result[0].stderr
    line = next(line for line in report.splitlines() if line.startswith("2: ["))
    assert "awaited.tensor" in line
    assert "the.last.one" in report
    assert str(ranks.pid(2)) in report


def test_stall_shutdown_ends_the_job(tmp_path: Path) -> None:
    environment = {**STALL, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2"}
    program = training.stay_away_from
    stop_file = tmp_path / "stop"
    with start_ranks(3, program, "awaited.tensor", 2, str(stop_file), env=environment) as ranks:
        ranks.wait_for_output(0, "2!: [", 60)
        ranks.processes[0].wait(60)
        stop_file.touch()
        result = ranks.wait(60)
    assert all("Horovod has been shut down" in value for value in result.values), result.values


def test_the_check_can_be_disabled(tmp_path: Path) -> None:
    environment = {**STALL, "HOROVOD_STALL_CHECK_DISABLE": "1"}
    program = training.pause_once
    with start_ranks(2, program, 3.0, env=environment) as ranks:
        result = ranks.wait(60)
    assert "Missing ranks" not in "".join(rank.stderr + rank.stdout for rank in result.ranks)


@pytest.mark.parametrize("stopped", long_too(1, long=[2]))
def test_a_rank_stopped_in_the_middle_of_an_operation(tmp_path: Path, stopped: int) -> None:
    """Most of the time all have submitted, and one does not go on within the operation."""
    stop_file = tmp_path / "stop"
    with start_ranks(3, training.train, "large", -1, str(stop_file), env=STALL) as ranks:
        for rank in range(3):
            ranks.wait_for_output(rank, "running")
        ranks.signal(stopped, signal.SIGSTOP)
        waiting = [rank for rank in range(3) if rank != stopped]
        reporter = ranks.wait_for_any(waiting, f"\nRank {stopped}:", 60)
        stop_file.touch()
        ranks.signal(stopped, signal.SIGCONT)
        result = ranks.wait(60)
    assert [value["end"] for value in result.values] == ["stopped"] * 3
    report = result[reporter].stderr
    missing = re.findall(r"^(\d+)!?: \[", report, re.MULTILINE)
    assert set(missing) == {str(stopped)}
    assert "process stopped" in report
