"""Several "hosts" on this machine, whose ranks reduce and gather within each host first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conformance import numpy_face
from conformance.suite import assert_conform
from rank_programs import hosts as programs
from rank_programs import sets, torch_adasum, torch_join, tuned
from rank_programs.data_planes import WITHIN_HOSTS_FIRST
from support.jobs.deaths import answers_of_survivors
from support.jobs.ranks import run_checks_on, run_ranks, start_ranks
from support.tiers import EVERY, long_too

from hvdtune.autotune.report import log

HIERARCHY = {"HOROVOD_HIERARCHICAL_ALLREDUCE": "1", "HOROVOD_HIERARCHICAL_ALLGATHER": "1"}
HIERARCHICAL = ("hierarchical_allreduce", "hierarchical_allgather")
# Ranks of each host.
LAYOUTS = {"2x2": [2, 2], "3+1": [3, 1]}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("layout", LAYOUTS if EVERY else ["3+1"])
def test_against_numpy(layout: str) -> None:
    hosts, blocks = LAYOUTS[layout], WITHIN_HOSTS_FIRST
    reports = run_ranks(
        sum(hosts), numpy_face.run, blocks, env=HIERARCHY, timeout=240, hosts=hosts
    ).values
    assert_conform(reports)


def test_one_rank_a_host() -> None:
    blocks = ("allreduce",)
    assert_conform(run_ranks(2, numpy_face.run, blocks, env=HIERARCHY, hosts=[1, 1]).values)


@pytest.mark.long
def test_training_ends_with_the_same_bits_in_every_run() -> None:
    """But with others than on one host: that the ways differ shows that there are two."""
    runs = [run_ranks(4, programs.train, 20, env=HIERARCHY, hosts=[2, 2]).values for _ in range(2)]
    assert len(set(runs)) == 1
    assert len(set(runs[0])) == 1
    flat = run_ranks(4, programs.train, 20, hosts=[2, 2]).values
    assert runs[0] != flat
    # Where there is one rank a host, or one host, nothing is left to be done within hosts.
    for hosts in ([1, 1, 1, 1], [4]):
        assert run_ranks(4, programs.train, 20, env=HIERARCHY, hosts=hosts).values == flat


@pytest.mark.parametrize("hosts", long_too([3, 1], long=[[2, 2]]), ids=str)
def test_process_sets(hosts: list[int]) -> None:
    assert run_ranks(4, sets.collectives_of_sets, env=HIERARCHY, hosts=hosts).values == ([],) * 4
    values = run_ranks(4, programs.sets_come_and_go, 30, env=HIERARCHY, hosts=hosts).values
    assert values[0] == 30


@pytest.mark.long
def test_adasum() -> None:
    """Its pairs exchange flat, but its dot products and its end are allgathers."""
    run_checks_on(4, torch_adasum.run, env=HIERARCHY, hosts=[2, 2])


@pytest.mark.long
def test_join() -> None:
    run_checks_on(4, torch_join.run_uneven, env=HIERARCHY, hosts=[3, 1])


@pytest.mark.parametrize("victim", long_too(2, long=[1]))
@pytest.mark.parametrize("phase", long_too("large", long=["small", "large"]))
def test_a_death_ends_the_job_on_all_hosts(phase: str, victim: int) -> None:
    for answer in answers_of_survivors(4, phase, victim, env=HIERARCHY, hosts=[2, 2]):
        assert re.search(rf"\brank {victim}\b.*died", answer["message"]), answer["message"]


def test_ranks_that_choose_different_ways_are_one_sentence() -> None:
    """They would wait for each other without end."""
    with start_ranks(
        3, programs.init_alone, hosts=[1, 2], env={"HOROVOD_START_TIMEOUT": "20"},
        rank_env=lambda rank: HIERARCHY if rank == 2 else {},
    ) as ranks:  # fmt: skip
        result = ranks.wait(60)
    assert all("HOROVOD_HIERARCHICAL_ALLREDUCE=True there" in text for text in result.values), (
        result.describe()
    )


# Everything else that is tuned is fixed, so that there is little to search.
OTHERS_FIXED = {
    "HOROVOD_AUTOTUNE": "1",
    "HOROVOD_FUSION_THRESHOLD": "1048576",
    "HOROVOD_CYCLE_TIME": "1",
    "HVDTUNE_CHUNK_SIZE": "0",
    "HVDTUNE_ONE_SHOT_LIMIT": "0",
}


@pytest.mark.parametrize("hosts", long_too([1, 3], long=[[2, 2], [1, 3]]), ids=str)
def test_the_way_changes_while_the_job_runs(hosts: list[int]) -> None:
    """At the same place on all ranks; each way gives the bits of jobs that go no other."""
    env = {**OTHERS_FIXED, **dict.fromkeys(HIERARCHY, "0")}  # nothing is left to the tuner
    values = run_ranks(4, programs.change_ways, 20, env=env, hosts=hosts).values
    [flat] = set(run_ranks(4, programs.one_digest, hosts=hosts).values)
    [first] = set(run_ranks(4, programs.one_digest, env=HIERARCHY, hosts=hosts).values)
    assert flat != first
    assert values == ({False: {flat}, True: {first}},) * 4


def test_only_what_can_act_is_tunable() -> None:
    for hosts in ([1, 1], [2]):
        for keys in run_ranks(2, programs.tunable, env=OTHERS_FIXED, hosts=hosts).values:
            assert not {key for key in keys if key.startswith("hierarchical")}
    for keys in run_ranks(3, programs.tunable, env=OTHERS_FIXED, hosts=[2, 1]).values:
        assert {"hierarchical_allreduce", "hierarchical_allgather"} <= keys
    for keys in run_ranks(3, programs.tunable, hosts=[2, 1]).values:  # not tuned
        assert not {key for key in keys if key.startswith("hierarchical")}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_autotuner_tries_both_ways(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.touch()
    env = {
        **OTHERS_FIXED,
        "HOROVOD_AUTOTUNE_LOG": str(path),
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1",
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "3",
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "6",
    }
    values = run_ranks(4, tuned.train, str(path), 10**9, env=env, hosts=[2, 2], timeout=240).values
    rows = log.read(path)
    for column in HIERARCHICAL:
        assert {row[column] for row in rows} == {"0", "1"}
        assert all(str(int(value["in_force"][column])) == rows[-1][column] for value in values)
    assert rows[-1]["phase"] == "final"
    assert all(value["sums"] == {10.0} for value in values)
