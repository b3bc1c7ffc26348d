"""Ranks started by mpirun and torchrun find each other, and two jobs at once do not mix."""

from __future__ import annotations

from pathlib import Path

import pytest
from rank_programs import launched
from support.jobs.ranks import (
    RanksResult,
    hvdtune_command,
    mpirun_command,
    run_under,
    start_under,
    tool,
)


def launcher(name: str, np: int) -> list[str]:
    if name == "hvdtune":
        return hvdtune_command("run", "-np", str(np))
    if name == "mpirun":
        return mpirun_command(np)
    return [tool("torchrun"), "--standalone", "--nproc-per-node", str(np), "--no-python"]


LAUNCHERS = ("hvdtune", "mpirun", "torchrun")


def check(result: RanksResult, size: int, value: int) -> None:
    answers = list(result.values)
    # Not every launcher numbers a host's ranks in their global order.
    locals_ = [answer.pop("local") for answer in answers]
    assert sorted(locals_) == [(place, size) for place in range(size)]
    expected = {
        "size": size,
        "cross": (0, 1),
        "sums": {float(value * size)},
        "gathered": list(range(size)),
    }
    assert answers == [{"rank": rank, **expected} for rank in range(size)]


@pytest.mark.parametrize("name", LAUNCHERS)
def test_one_job(name: str) -> None:
    check(run_under(launcher(name, 4), launched.identity, 3, 10), 4, 3)


@pytest.mark.long
@pytest.mark.parametrize("name", LAUNCHERS)
def test_two_jobs_at_once(name: str) -> None:
    """The jobs use the same tensor names at the same time, with different values and sizes."""
    with (
        start_under(launcher(name, 2), launched.identity, 5, 2000) as first,
        start_under(launcher(name, 3), launched.identity, 7, 2000) as second,
    ):
        check(first.wait(), 2, 5)
        check(second.wait(), 3, 7)


@pytest.mark.parametrize("count", [["-np", "2"], []])
def test_mpirun_with_a_hostfile(tmp_path: Path, count: list[str]) -> None:
    """Also without a number of processes: then it is that of the slots."""
    hosts = tmp_path / "hostfile"
    hosts.write_text("localhost slots=2\n")
    command = [tool("mpirun"), "--allow-run-as-root", *count, "--hostfile", str(hosts)]
    check(run_under(command, launched.identity, 3, 10), 2, 3)


def test_without_a_launcher() -> None:
    check(run_under([], launched.identity, 3, 10), 1, 3)
