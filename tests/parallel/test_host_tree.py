"""Jobs on so many hosts that some pass on what others say; `HVDTUNE_HOST_FANOUT` makes few many."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest
from conformance import numpy_face
from conformance.suite import assert_conform
from rank_programs import capture, handles, sets, torch_join, training
from rank_programs import hosts as programs
from support.jobs.deaths import answers_of_survivors
from support.jobs.ranks import run_checks_on, run_ranks, start_ranks
from support.tiers import long_too

# One host passes on to one other: rank 0's host hears the last by way of all others.
CHAIN = {"HVDTUNE_HOST_FANOUT": "1"}
PAIRS = {"HVDTUNE_HOST_FANOUT": "2"}
STALL = {**CHAIN, "HOROVOD_STALL_CHECK_TIME_SECONDS": "1"}
FOUR = [1, 1, 1, 1]


@pytest.mark.parametrize("hosts", long_too([1, 1, 2], long=[[1, 1, 2], [2, 1, 1], FOUR]), ids=str)
def test_training_ends_with_the_same_bits(hosts: list[int]) -> None:
    alone = set(run_ranks(4, programs.train, 20).values)
    assert set(run_ranks(4, programs.train, 20, hosts=hosts, env=CHAIN).values) == alone


def test_six_hosts_in_three_levels() -> None:
    blocks = ("grouped_allgather", "grouped_reducescatter")
    reports = run_ranks(6, numpy_face.run, blocks, timeout=240, hosts=[1] * 6, env=PAIRS).values
    assert_conform(reports)


def test_process_sets() -> None:
    assert run_ranks(4, sets.collectives_of_sets, hosts=FOUR, env=CHAIN).values == ([],) * 4
    assert run_ranks(4, programs.sets_come_and_go, 30, hosts=[1, 2, 1], env=CHAIN).values[0] == 30


@pytest.mark.long
def test_join() -> None:
    run_checks_on(4, torch_join.run_uneven, hosts=FOUR, env=CHAIN)


@pytest.mark.long
def test_more_tensors_than_slots() -> None:
    environment = {**CHAIN, "HOROVOD_CACHE_CAPACITY": "16"}
    assert run_ranks(4, programs.many_names, 40, env=environment, hosts=FOUR).values == (40,) * 4


@pytest.mark.long
def test_many_operations_in_flight() -> None:
    assert run_ranks(4, handles.many_in_flight, 3000, hosts=FOUR, env=CHAIN).values == (3000,) * 4


@pytest.mark.long
def test_start_and_stop_again() -> None:
    values = run_ranks(4, programs.start_and_stop, 5, hosts=FOUR, env=CHAIN).values
    assert values == (5,) * 4


@pytest.mark.parametrize("victim", long_too(3, long=range(4)))
@pytest.mark.parametrize("phase", ["small", "waiting"])
def test_a_death_is_noticed_on_all_hosts(phase: str, victim: int) -> None:
    for answer in answers_of_survivors(4, phase, victim, hosts=FOUR, env=CHAIN):
        assert re.search(rf"\brank {victim}\b.*died", answer["message"]), answer["message"]


@pytest.mark.parametrize("leaver", long_too(1, long=[0, 3]))
def test_one_rank_shuts_down(leaver: int) -> None:
    values = run_ranks(4, programs.one_leaves, leaver, hosts=FOUR, env=CHAIN).values
    others = [value for rank, value in enumerate(values) if rank != leaver]
    assert all(f"rank {leaver} shut down" in str(value) for value in others), values


def test_the_stall_report_names_the_rank_that_is_farthest(tmp_path: Path) -> None:
    stop_file = tmp_path / "stop"
    arguments = ("awaited.tensor", 3, str(stop_file))
    with start_ranks(4, training.stay_away_from, *arguments, env=STALL, hosts=FOUR) as ranks:
        ranks.wait_for_output(0, "\n3: [", 60)
        # Asked, and answered, through all hosts between them.
        ranks.wait_for_output(0, "wait_in_a_function_of_its_own", 60)
        stop_file.touch()
        result = ranks.wait(60)
    assert result.values == ("finished",) * 4


def test_a_host_in_the_middle_that_stands_still_is_waited_for(tmp_path: Path) -> None:
    stop_file = tmp_path / "stop"
    arguments = ("awaited.tensor", 3, str(stop_file))
    with start_ranks(4, training.stay_away_from, *arguments, env=STALL, hosts=FOUR) as ranks:
        ranks.wait_for_output(0, "\n3: [", 60)
        ranks.signal(1, signal.SIGSTOP)
        stop_file.touch()
        time.sleep(0.5)  # for rank 3 to come, and its news to be held up
        ranks.signal(1, signal.SIGCONT)
        result = ranks.wait(60)
    assert result.values == ("finished",) * 4


def test_hosts_that_disagree_are_told() -> None:
    prefix = [[], ["env", "HVDTUNE_HOST_FANOUT=2"], []]
    with start_ranks(
        3, programs.init_alone, hosts=[1, 1, 1], prefix=lambda rank: prefix[rank],
        env={"HOROVOD_START_TIMEOUT": "20"},
    ) as ranks:  # fmt: skip
        result = ranks.wait(60)
    assert all("HVDTUNE_HOST_FANOUT" in value for value in result.values), result.describe()
    assert "HVDTUNE_HOST_FANOUT=2 there" in result.values[0], result.describe()


def test_all_ranks_are_recorded_and_joined(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    run_ranks(4, capture.train, 20, env={**CHAIN, "HOROVOD_TIMELINE": str(path)}, hosts=FOUR)
    text = path.read_text()
    assert not list(tmp_path.glob("trace.rank*"))
    for rank in range(4):
        assert f"rank {rank}" in text
