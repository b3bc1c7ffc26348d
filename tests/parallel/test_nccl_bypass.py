"""Batches on GPUs that go past NCCL, in real processes, over the fake libraries."""

from __future__ import annotations

from pathlib import Path

import pytest
from rank_programs import device_arrays, nccl_bypass
from support.gpus import fake_gpus
from support.jobs.ranks import run_ranks
from support.recordings.timelines import carried_by

pytestmark = pytest.mark.timeout(600)

WHY_NOT = "short batches also use NCCL: "


@pytest.mark.long
@pytest.mark.parametrize(("np", "streams", "asynchronous"), [(2, 1, 0), (4, 2, 1)])
def test_all_operations(np: int, streams: int, asynchronous: int, fakes: Path) -> None:
    gpus = fake_gpus.bypassing(fakes, 16384)  # most batches are shorter, some are not
    gpus["HOROVOD_NUM_NCCL_STREAMS"] = str(streams)
    gpus["HOROVOD_ENABLE_ASYNC_COMPLETION"] = str(asynchronous)
    for rank in run_ranks(np, device_arrays.all_operations, env=gpus).ranks:
        assert "host memory" not in rank.stderr
        assert WHY_NOT not in rank.stderr


def test_process_sets_and_join(fakes: Path) -> None:
    gpus = fake_gpus.bypassing(fakes, 16384)
    run_ranks(4, device_arrays.process_sets, env=gpus)
    run_ranks(3, device_arrays.joined, env=gpus)


@pytest.mark.parametrize("start", [0, nccl_bypass.LIMIT])
def test_what_is_short_enough_goes_past_nccl(start: int, fakes: Path, tmp_path: Path) -> None:
    timeline = tmp_path / "timeline.json"
    gpus = fake_gpus.bypassing(fakes, start)
    gpus |= {"HOROVOD_TIMELINE": str(timeline), "HVDTUNE_TIMELINE_FORMAT": "horovod"}
    limits = [nccl_bypass.LIMIT + 4, 0, nccl_bypass.LIMIT]
    seen = run_ranks(3, nccl_bypass.moved, limits, env=gpus).values[0]
    # That it can act is not known before somebody has wanted it.
    assert seen == [start or None, *limits]
    found = carried_by(timeline)
    for when, limit in zip(("start", "moved0", "moved1", "moved2"), (start, *limits), strict=True):
        expected = {
            **{f"allreduce.{when}.{what}": size for what, size in nccl_bypass.SIZES.items()},
            f"grouped_allreduce.{when}.2_1of2": nccl_bypass.LIMIT,
            f"grouped_allreduce.{when}.3_1of3": nccl_bypass.LIMIT * 3 // 2,
        }
        for name, size in expected.items():
            way = "IPC_ALLREDUCE" if size <= limit else "NCCL_ALLREDUCE"
            assert found[name] == way, (name, limit)
        assert found[f"allgather.{when}.gather"] == "NCCL_ALLGATHER"


@pytest.mark.parametrize(
    ("faults", "own", "why"),
    [
        ("no-peer", True, "cuIpcOpenMemHandle for GPU 0 (Fake GPU) gives CUDA_ERROR_PEER_ACCESS_"),
        ("nccl=23000", False, "members 0 and 1 are on one GPU"),
    ],
)
def test_members_that_cannot_reach_each_other_say_so_once(
    faults: str, own: bool, why: str, fakes: Path
) -> None:
    gpus = fake_gpus.bypassing(fakes, 4096, faults)
    if not own:
        gpus |= {"HVDTUNE_TEST_OWN_GPU": "0", "HVDTUNE_SHARE_GPU": "1"}
        gpus["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    result = run_ranks(3, device_arrays.joined, env=gpus)
    said = [rank.stderr.count(WHY_NOT) for rank in result.ranks]
    assert said == [1, 0, 0]
    assert WHY_NOT + why in result.ranks[0].stderr
    assert not [rank for rank in result.ranks if "host memory" in rank.stderr]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_dead_rank_ends_the_job_for_all(victim: int, fakes: Path) -> None:
    gpus = fake_gpus.bypassing(fakes, 1 << 20)
    result = run_ranks(3, device_arrays.killed, victim, 5, env=gpus, check=False)
    for rank, told in zip(result.ranks, result.values, strict=True):
        if rank.rank != victim:
            assert rank.returncode == 0, result.describe()
            assert f"rank {victim} (pid " in told


def test_a_rank_that_dies_in_the_middle_ends_what_gpus_wait_for(fakes: Path) -> None:
    gpus = fake_gpus.bypassing(fakes, 1 << 20)
    result = run_ranks(3, device_arrays.killed_in_flight, 2, env=gpus, check=False)
    for rank, told in zip(result.ranks, result.values, strict=True):
        if rank.rank != 2:
            assert rank.returncode == 0, result.describe()
            assert "rank 2 (pid " in told
