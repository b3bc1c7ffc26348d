"""Allreduces on GPUs of several "hosts" that go within each host first, over the fake libraries."""

from __future__ import annotations

from pathlib import Path

import pytest
from rank_programs import device_arrays, device_hierarchy
from support.gpus import fake_gpus
from support.jobs.ranks import RanksResult, run_ranks
from support.recordings.timelines import carried_by
from support.tiers import EVERY, long_too

import hvdtune

pytestmark = pytest.mark.timeout(600)

HIERARCHICAL = "NCCL_HIERARCHICAL_ALLREDUCE"
THROUGH_HOSTS = "NCCL_AND_HOST_ALLREDUCE"
WHY_NOT = "allreduces on GPUs do not run within each host first: "


def check_survivors(result: RanksResult, victim: int) -> None:
    """Every other rank has ended well, and was told who died."""
    for rank, told in zip(result.ranks, result.values, strict=True):
        if rank.rank != victim:
            assert rank.returncode == 0, result.describe()
            assert f"rank {victim} (pid " in told


def traced(tmp_path: Path) -> dict[str, str]:
    """The environment of a job with a timeline in Horovod's layout, t.json."""
    return {"HOROVOD_TIMELINE": str(tmp_path / "t.json"), "HVDTUNE_TIMELINE_FORMAT": "horovod"}


@pytest.fixture(params=["nccl", "hosts"])
def gpus(request: pytest.FixtureRequest, fakes: Path) -> dict[str, str]:
    """The environment of ranks whose shares go between hosts by NCCL, or through host memory."""
    by_nccl = "1" if request.param == "nccl" else "0"
    return {
        **fake_gpus.environment(fakes, nccl=True),
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "1",
        "HVDTUNE_NCCL_BETWEEN_HOSTS": by_nccl,
    }


@pytest.mark.long
@pytest.mark.parametrize(
    ("streams", "asynchronous", "gpus"),
    [
        (streams, asynchronous, gpus)
        for streams, asynchronous in ((1, 0), (2, 1))
        for gpus in ("nccl", "hosts")
        if EVERY or (gpus == "nccl") == (asynchronous == 0)
    ],
    indirect=["gpus"],
)
def test_all_operations(streams: int, asynchronous: int, gpus: dict[str, str]) -> None:
    gpus["HOROVOD_NUM_NCCL_STREAMS"] = str(streams)
    gpus["HOROVOD_ENABLE_ASYNC_COMPLETION"] = str(asynchronous)
    for rank in run_ranks(4, device_arrays.all_operations, env=gpus, hosts=[2, 2]).ranks:
        assert "travel through host memory" not in rank.stderr
        assert WHY_NOT not in rank.stderr


@pytest.mark.skipif(
    not hvdtune.gloo_built(), reason="hvdtune was built without Gloo (Debian: libgloo-dev)"
)
def test_shares_that_gloo_carries(fakes: Path, tmp_path: Path) -> None:
    gpus = {
        **traced(tmp_path),
        **fake_gpus.environment(fakes, nccl=True),
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "1",
        "HVDTUNE_NCCL_BETWEEN_HOSTS": "0",
        "HOROVOD_CPU_OPERATIONS": "GLOO",
    }
    run_ranks(4, device_hierarchy.reduced, env=gpus, hosts=[2, 2])
    assert carried_by(tmp_path / "t.json")["allreduce.one"] == THROUGH_HOSTS


@pytest.mark.long
def test_process_sets_and_join(gpus: dict[str, str]) -> None:
    run_ranks(4, device_arrays.process_sets, env=gpus, hosts=[2, 2])
    run_ranks(4, device_arrays.joined, env=gpus, hosts=[2, 2])


@pytest.mark.parametrize(
    ("hosts", "way"),
    [([2, 2], HIERARCHICAL), ([3, 1], "NCCL_ALLREDUCE"), ([1, 1], "NCCL_ALLREDUCE")],
    ids=lambda value: "+".join(map(str, value)) if isinstance(value, list) else "",
)
def test_where_hosts_have_as_many_ranks(
    hosts: list[int], way: str, gpus: dict[str, str], tmp_path: Path
) -> None:
    if gpus["HVDTUNE_NCCL_BETWEEN_HOSTS"] == "0" and way == HIERARCHICAL:
        way = THROUGH_HOSTS
    run_ranks(sum(hosts), device_hierarchy.reduced, env=gpus | traced(tmp_path), hosts=hosts)
    found = carried_by(tmp_path / "t.json")
    assert found["allreduce.one"] == way
    assert found["grouped_allreduce.several_1of3"] == way
    assert found["broadcast.from3"] == "NCCL_BCAST"


def test_where_nccl_has_no_more_communicators_it_goes_the_usual_way(
    fakes: Path, tmp_path: Path
) -> None:
    gpus = fake_gpus.environment(fakes, nccl=True, faults="comms=1")
    gpus |= {"HOROVOD_HIERARCHICAL_ALLREDUCE": "1", **traced(tmp_path)}
    result = run_ranks(4, device_hierarchy.reduced, env=gpus, hosts=[2, 2])
    assert [rank.stderr.count(WHY_NOT) for rank in result.ranks] == [1, 0, 0, 0]
    assert "no memory for a communicator" in result.ranks[0].stderr
    assert carried_by(tmp_path / "t.json")["allreduce.one"] == "NCCL_ALLREDUCE"


@pytest.mark.long
def test_a_mixture_of_operations_ends_with_a_dead_rank(gpus: dict[str, str]) -> None:
    """In one stream, what waits for it is behind and before what has another communicator."""
    result = run_ranks(4, device_hierarchy.mixed, 3, env=gpus, hosts=[2, 2], check=False)
    check_survivors(result, 3)


def test_it_comes_and_goes_in_a_running_job(fakes: Path, tmp_path: Path) -> None:
    gpus = fake_gpus.environment(fakes, nccl=True)
    gpus |= {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1000"}
    gpus |= traced(tmp_path)
    run_ranks(4, device_hierarchy.moved, [True, False, True], env=gpus, hosts=[2, 2])
    found = carried_by(tmp_path / "t.json")
    ways = [found[f"grouped_allreduce.moved{turn}_1of2"] for turn in range(3)]
    assert ways == [HIERARCHICAL, "NCCL_ALLREDUCE", HIERARCHICAL]


@pytest.mark.parametrize("victim", long_too(3, long=[0]))
def test_a_dead_rank_ends_the_job_for_all(victim: int, gpus: dict[str, str]) -> None:
    result = run_ranks(4, device_arrays.killed, victim, 5, env=gpus, hosts=[2, 2], check=False)
    check_survivors(result, victim)


def test_a_rank_that_dies_in_the_middle_ends_what_gpus_wait_for(gpus: dict[str, str]) -> None:
    result = run_ranks(4, device_arrays.killed_in_flight, 3, env=gpus, hosts=[2, 2], check=False)
    check_survivors(result, 3)
