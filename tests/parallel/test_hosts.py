"""Ranks that share no memory: several "hosts" on this machine, joined by sockets alone.

tests/launch/test_hosts.py does the same between real hosts, with a job that `hvdtune run` starts.
"""

from __future__ import annotations

import re
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from conformance import numpy_face
from conformance.suite import assert_conform
from rank_programs import capture, data_planes, handles, live, sets, torch_join, training
from rank_programs import hosts as programs
from support.jobs.deaths import answers_of_survivors
from support.jobs.ranks import (
    Ranks,
    clean_environment,
    hvdtune_command,
    run_checks_on,
    run_ranks,
    start_ranks,
)
from support.tiers import EVERY, long_too

# Ranks of each host.
LAYOUTS = {"2x1": [1, 1], "2x2": [2, 2], "1+3": [1, 3], "4x1": [1, 1, 1, 1]}
STALL = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1"}


@pytest.mark.timeout(400)
@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS if EVERY else ["2x2", "1+3"])
def test_against_numpy(layout: str) -> None:
    hosts = LAYOUTS[layout]
    blocks = data_planes.ALL
    reports = run_ranks(sum(hosts), numpy_face.run, blocks, timeout=240, hosts=hosts).values
    assert_conform(reports)


@pytest.mark.long
def test_training_ends_with_the_same_bits() -> None:
    alone = set(run_ranks(4, programs.train, 20).values)
    assert len(alone) == 1
    for hosts in ([2, 2], [3, 1]):
        assert set(run_ranks(4, programs.train, 20, hosts=hosts).values) == alone, hosts


@pytest.mark.parametrize("hosts", [[2, 2], [1, 3]], ids=str)
def test_who_is_where(hosts: list[int]) -> None:
    values = run_ranks(4, programs.places, hosts=hosts).values
    where = [host for host, count in enumerate(hosts) for _ in range(count)]
    assert [value["hosts"] for value in values] == [where] * 4
    assert [value["homogeneous"] for value in values] == [hosts == [2, 2]] * 4
    assert [value["local"] for value in values] == [
        (local, count) for count in hosts for local in range(count)
    ]


@pytest.mark.parametrize("hosts", long_too([1, 3], long=[[2, 2], [1, 1, 1, 1]]), ids=str)
def test_process_sets(hosts: list[int]) -> None:
    """Some of one host, some of several, at the same time."""
    assert run_ranks(4, sets.collectives_of_sets, hosts=hosts).values == ([],) * 4
    assert run_ranks(4, programs.sets_come_and_go, 30, hosts=hosts).values[0] == 30


def test_join() -> None:
    run_checks_on(4, torch_join.run_uneven, hosts=[2, 2])


def test_more_tensors_than_slots() -> None:
    """Slots are given to other tensors again and again, on all hosts at the same place."""
    environment = {"HOROVOD_CACHE_CAPACITY": "16"}
    assert run_ranks(4, programs.many_names, 40, env=environment, hosts=[2, 2]).values == (40,) * 4


def test_many_operations_in_flight() -> None:
    assert run_ranks(4, handles.many_in_flight, 3000, hosts=[1, 3]).values == (3000,) * 4


def test_start_and_stop_again() -> None:
    values = run_ranks(4, programs.start_and_stop, 5, hosts=[2, 2]).values
    assert values == (5,) * 4


@pytest.mark.parametrize("hosts", [None, [2, 2], [1, 1, 1, 1]], ids=str)
def test_init_and_shutdown_with_nothing_between(hosts: list[int] | None) -> None:
    values = run_ranks(4, programs.start_and_stop_at_once, 10, hosts=hosts).values
    assert values == (10,) * 4


# ---- ends ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", long_too(2, long=range(4)))
@pytest.mark.parametrize("phase", ["small", "large", "waiting"])
def test_a_death_is_noticed_on_all_hosts(phase: str, victim: int) -> None:
    for answer in answers_of_survivors(4, phase, victim, hosts=[2, 2]):
        for text in (answer["message"], answer["later"]):
            assert re.search(rf"\brank {victim}\b.*died", text), text


@pytest.mark.parametrize("leaver", long_too(3, long=[0, 1]))
def test_one_rank_shuts_down(leaver: int) -> None:
    values = run_ranks(4, programs.one_leaves, leaver, hosts=[2, 2]).values
    others = [value for rank, value in enumerate(values) if rank != leaver]
    assert all(f"rank {leaver} shut down" in str(value) for value in others), values


def test_settings_that_differ_are_one_sentence() -> None:
    with start_ranks(
        3, programs.init_alone, hosts=[1, 2],
        rank_env=None, env={"HOROVOD_START_TIMEOUT": "20"}, prefix=_other_setting_on(2),
    ) as ranks:  # fmt: skip
        result = ranks.wait(60)
    assert all("HOROVOD_FUSION_THRESHOLD=1048576 there" in value for value in result.values), (
        result.describe()
    )


def test_a_port_that_is_taken_is_one_sentence() -> None:
    """By somebody who takes connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        environment = {"HOROVOD_GLOO_RENDEZVOUS_PORT": str(port), "HOROVOD_START_TIMEOUT": "5"}
        with start_ranks(2, programs.init_alone, env=environment, hosts=[1, 1]) as ranks:
            result = ranks.wait(60)
    assert f"cannot listen at 127.0.0.1:{port}" in result.values[0], result.describe()
    assert "rank 0 did not come within 5 s" in result.values[1], result.describe()


@pytest.mark.long
def test_a_rank_that_does_not_come_is_named() -> None:
    environment = {"HOROVOD_START_TIMEOUT": "8"}
    with start_ranks(3, programs.init_alone, env=environment, hosts=[1, 2], only=[0, 1]) as ranks:
        result = ranks.wait(60)
    assert all("missing rank 2" in value for value in result.values[:2]), result.describe()


def _other_setting_on(other: int) -> Callable[[int], list[str]]:
    return lambda rank: ["env", "HOROVOD_FUSION_THRESHOLD=1048576"] if rank == other else []


# ---- what is told -------------------------------------------------------------------------------


@pytest.mark.parametrize("late", long_too(3, long=[0, 1]))
def test_the_stall_report_names_a_rank_of_another_host(tmp_path: Path, late: int) -> None:
    stop_file = tmp_path / "stop"
    program = training.stay_away_from
    arguments = ("awaited.tensor", late, str(stop_file))
    with start_ranks(4, program, *arguments, env=STALL, hosts=[2, 2]) as ranks:
        ranks.wait_for_output(0, f"\n{late}: [", 60)
        ranks.wait_for_output(0, "wait_in_a_function_of_its_own", 60)
        stop_file.touch()
        result = ranks.wait(60)
    assert result.values == ("finished",) * 4
    assert f"pid {ranks.pid(late)}" in result[0].stderr


def test_rank_0_stopped_is_named_on_another_host(tmp_path: Path) -> None:
    stop_file = tmp_path / "stop"
    program = training.stay_away_from
    arguments = ("awaited.tensor", 0, str(stop_file))
    with start_ranks(3, program, *arguments, env=STALL, hosts=[1, 2]) as ranks:
        ranks.wait_for_output(0, "staying away")
        ranks.signal(0, signal.SIGSTOP)
        ranks.wait_for_any([1, 2], "\nRank 0:", 60)
        stop_file.touch()
        ranks.signal(0, signal.SIGCONT)
        result = ranks.wait(60)
    assert result.values == ("finished",) * 3


def test_stall_shutdown_ends_the_job_on_all_hosts(tmp_path: Path) -> None:
    environment = {**STALL, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2"}
    stop_file = tmp_path / "stop"
    arguments = ("awaited.tensor", 3, str(stop_file))
    program = training.stay_away_from
    with start_ranks(4, program, *arguments, env=environment, hosts=[2, 2]) as ranks:
        ranks.wait_for_output(0, "3!: [", 60)
        ranks.processes[0].wait(60)
        stop_file.touch()
        result = ranks.wait(60)
    assert all("Horovod has been shut down" in value for value in result.values), result.values


def test_stacks_of_all_hosts_are_seen(tmp_path: Path) -> None:
    arguments = (-1, 0.0, 0, str(tmp_path / "stop"))
    with start_ranks(4, live.train, *arguments, hosts=[2, 2]) as ranks:
        ranks.wait_for_output(0, "running")
        stacks = _stacks(ranks)
        (tmp_path / "stop").touch()
        ranks.wait(60)
    assert stacks.count("rank_programs/live.py") >= 4, stacks


def _stacks(ranks: Ranks) -> str:
    command = hvdtune_command("stacks", "--job", str(ranks.pid(0)))
    shown = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=clean_environment(), check=False
    )
    return shown.stdout


def test_all_ranks_are_recorded_and_joined(tmp_path: Path) -> None:
    """The hosts have one folder in common here, as with a network file system."""
    path = tmp_path / "trace.json"
    run_ranks(4, capture.train, 20, env={"HOROVOD_TIMELINE": str(path)}, hosts=[2, 2])
    text = path.read_text()
    assert not list(tmp_path.glob("trace.rank*"))
    for rank in range(4):
        assert f"rank {rank}" in text
