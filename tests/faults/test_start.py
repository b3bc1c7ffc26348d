"""Jobs that cannot start: every rank that did come says why, within the start timeout."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest
from rank_programs import training
from support.jobs.ranks import hvdtune_command, run_ranks, run_under, start_ranks

QUICK = {"HOROVOD_START_TIMEOUT": "3"}


def test_ranks_that_never_come_are_named() -> None:
    with start_ranks(4, training.start, env=QUICK, only=[0, 2]) as ranks:
        result = ranks.wait(60)
    for rank in (0, 2):
        message = result.values[rank]
        assert message.startswith("ValueError: "), message
        assert "Horovod initialization failed" in message
        assert re.search(r"\b1\b.*\b3\b", message), message


def test_rank_zero_never_comes() -> None:
    with start_ranks(2, training.start, env=QUICK, only=[1]) as ranks:
        result = ranks.wait(60)
    message = result.values[1]
    assert "Horovod initialization failed" in message
    assert re.search(r"\brank 0\b", message), message


def test_a_rank_that_ends_before_init() -> None:
    result = run_ranks(3, training.die_before_init, 1, env=QUICK, check=False, timeout=60)
    assert [rank.returncode for rank in result.ranks] == [0, 3, 0], result.describe()
    for rank in (0, 2):
        assert "Horovod initialization failed" in result.values[rank]
        assert re.search(r"\b1\b", result.values[rank])


@pytest.mark.long
def test_a_rank_killed_during_init() -> None:
    """Ranks 0 and 1 of 3 wait in init for rank 2; rank 1 is killed there."""
    with start_ranks(3, training.start, env={"HOROVOD_START_TIMEOUT": "10"}, only=[0, 1]) as ranks:
        for rank in range(2):
            ranks.wait_for_output(rank, "starting")
        time.sleep(1.0)
        ranks.signal(1, signal.SIGKILL)
        result = ranks.wait(60, check=False)
    assert result[0].returncode == 0, result.describe()
    assert "Horovod initialization failed" in result.values[0]
    assert re.search(r"\b[12]\b", result.values[0])


def test_the_launcher_names_a_rank_that_ends_before_init() -> None:
    command = hvdtune_command("run", "-np", "3")
    result = run_under(command, training.die_before_init, 1, check=False, timeout=60)
    assert result[0].returncode == 3, result.describe()
    own = [line for line in result[0].stderr.splitlines() if not re.match(r"\[\d+\]<", line)]
    assert any(re.search(r"\brank 1\b", line.lower()) for line in own), result[0].stderr


def test_a_wrong_secret_is_rejected() -> None:
    def secret(rank: int) -> dict[str, str | None]:
        return {"HVDTUNE_SECRET": "0" * 32} if rank == 1 else {}

    with start_ranks(2, training.start, env=QUICK, rank_env=secret) as ranks:
        result = ranks.wait(60)
    assert all("Horovod initialization failed" in value for value in result.values), result.values
    assert "HVDTUNE_SECRET" in result.values[1], result.values[1]


def test_a_stranger_does_not_disturb_a_job(tmp_path: Path) -> None:
    """A process with the job's id, another secret and a rank that is taken, while others start."""

    def as_two(rank: int) -> dict[str, str | None]:
        stranger = {"HOROVOD_RANK": "1", "HOROVOD_LOCAL_RANK": "1", "HVDTUNE_SECRET": "0" * 32}
        two = {"HOROVOD_SIZE": "2", "HOROVOD_LOCAL_SIZE": "2"}
        return {**two, **(stranger if rank == 2 else {})}

    with start_ranks(3, training.start_as, rank_env=as_two, env=QUICK) as ranks:
        result = ranks.wait(60)
    outcomes = [re.search(r"outcome: (.*)", rank.stdout)[1] for rank in result.ranks]
    assert outcomes[:2] == ["started", "started"], outcomes
    assert "Horovod initialization failed" in outcomes[2]


@pytest.mark.parametrize(
    ("name", "value"), [("HOROVOD_CACHE_CAPACITY", "7"), ("HOROVOD_TIMELINE", "DYNAMIC")]
)
def test_settings_that_must_be_equal(name: str, value: str) -> None:
    def only_on_one(rank: int) -> dict[str, str | None]:
        return {name: value} if rank == 1 else {}

    with start_ranks(2, training.start, env=QUICK, rank_env=only_on_one) as ranks:
        result = ranks.wait(60)
    for message in result.values:
        assert "Horovod initialization failed" in message
        assert name in message
        assert re.search(r"\brank 1\b", message), message


def test_ranks_that_disagree_about_the_size() -> None:
    def larger(rank: int) -> dict[str, str | None]:
        return {"HOROVOD_SIZE": "3", "HOROVOD_LOCAL_SIZE": "3"} if rank == 1 else {}

    with start_ranks(2, training.start, env=QUICK, rank_env=larger) as ranks:
        result = ranks.wait(60)
    for message in result.values:
        assert "Horovod initialization failed" in message
        assert re.search(r"\b3 processes\b.*\bone of 2\b", message), message


def test_one_rank_given_to_two_processes() -> None:
    def twice(rank: int) -> dict[str, str | None]:
        return {"HOROVOD_RANK": "1"} if rank == 2 else {}

    with start_ranks(3, training.start_as, env=QUICK, rank_env=twice) as ranks:
        result = ranks.wait(60)
    for rank in result.ranks:
        assert "Horovod initialization failed" in rank.stdout
        assert "rank 1" in rank.stdout
    assert any("came twice" in rank.stdout for rank in result.ranks)


def test_a_contradictory_environment() -> None:
    result = run_ranks(1, training.start, env={"HOROVOD_SIZE": None})
    assert "HOROVOD_RANK=0 is set but HOROVOD_SIZE is not" in result.values[0]
