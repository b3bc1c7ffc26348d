"""Tensors on GPUs, in real processes, over the fake libraries of tests/native/fake_cuda."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rank_programs import device_arrays
from support.gpus import fake_gpus
from support.jobs.ranks import run_ranks
from support.tiers import long_too

from hvdtune.core import world
from hvdtune.core.operations import DTYPES, Buffer
from hvdtune.torch.adapter import as_buffer
from hvdtune.torch.optimizer import overlap

# Whichever test comes first waits for the libraries to be compiled: stand-ins for NVIDIA's.
pytestmark = [pytest.mark.timeout(600), pytest.mark.long]


@pytest.fixture
def staged(fakes: Path) -> dict[str, str]:
    """The environment of ranks that have a driver, and no NCCL."""
    return fake_gpus.environment(fakes)


@pytest.fixture(params=["staged", "nccl", "shared"])
def gpus(request: pytest.FixtureRequest, fakes: Path) -> dict[str, str]:
    """The environment of ranks with NCCL, without it, and of ranks that share a GPU."""
    if request.param == "shared":
        return fake_gpus.sharing(fakes)
    return fake_gpus.environment(fakes, nccl=request.param == "nccl")


@pytest.mark.parametrize("np", long_too(2, long=[1, 4]))
def test_all_operations_through_host_memory(np: int, staged: dict[str, str]) -> None:
    result = run_ranks(np, device_arrays.all_operations, env=staged)
    for rank in result.ranks:
        assert "travel through host memory: HVDTUNE_NCCL_LIBRARY is none" in rank.stderr


@pytest.mark.parametrize(("np", "streams", "asynchronous"), [(1, 1, 0), (2, 3, 0), (4, 2, 1)])
def test_all_operations_with_nccl(np: int, streams: int, asynchronous: int, fakes: Path) -> None:
    gpus = fake_gpus.environment(fakes, nccl=True)
    gpus["HOROVOD_NUM_NCCL_STREAMS"] = str(streams)
    gpus["HOROVOD_ENABLE_ASYNC_COMPLETION"] = str(asynchronous)
    result = run_ranks(np, device_arrays.all_operations, env=gpus)
    for rank in result.ranks:
        assert "host memory" not in rank.stderr


@pytest.mark.parametrize(("np", "asynchronous"), [(1, 0), (2, 1), (4, 0)])
def test_all_operations_on_a_shared_gpu(np: int, asynchronous: int, fakes: Path) -> None:
    gpus = fake_gpus.sharing(fakes)
    gpus["HOROVOD_ENABLE_ASYNC_COMPLETION"] = str(asynchronous)
    result = run_ranks(np, device_arrays.all_operations, env=gpus)
    for rank in result.ranks:
        assert "host memory" not in rank.stderr


@pytest.mark.parametrize(("nccl", "tunable"), [(True, (False, True)), (False, (False, False))])
def test_streams_change_while_the_job_runs_where_batches_go_by_nccl(
    nccl: bool, tunable: tuple[bool, bool], fakes: Path
) -> None:
    gpus = fake_gpus.environment(fakes, nccl=nccl)
    assert run_ranks(3, device_arrays.streams, env=gpus).values == (tunable,) * 3


def test_process_sets(gpus: dict[str, str]) -> None:
    run_ranks(4, device_arrays.process_sets, env=gpus)


def test_join(gpus: dict[str, str]) -> None:
    run_ranks(3, device_arrays.joined, env=gpus)


def test_mistakes_are_told_on_every_rank(gpus: dict[str, str]) -> None:
    expected = {
        "cpu and gpu": (
            "HorovodInternalError",
            "Mismatched CPU/GPU device selection for tensor allreduce.x: "
            "rank 0 has GPU, rank 1 has CPU.",
        ),
        "cpu and gpu, known": (
            "HorovodInternalError",
            "Mismatched CPU/GPU device selection for tensor allreduce.x: "
            "rank 0 has GPU, rank 1 has CPU.",
        ),
        "group": (
            "HorovodInternalError",
            "allreduce: the tensors of one operation must be on one device; these are on the CPU "
            "and GPU ",
        ),
        "another gpu": (
            "ValueError",
            "the tensors of one process must be on one GPU: this process's are on GPU ",
        ),
        "captured": (
            "ValueError",
            "tensor allreduce.y: its stream is being captured into a CUDA graph, and what other "
            "ranks do cannot be part of one; submit it outside of the capture",
        ),
        "complex": ("ValueError", "Tensor type <c8 is not supported."),
    }
    result = run_ranks(3, device_arrays.mistakes, env=gpus)
    for seen in result.values:
        assert seen.keys() == expected.keys()
        for case, (kind, words) in expected.items():
            assert seen[case][0] == kind, (case, seen[case])
            assert words in seen[case][1], (case, seen[case])


def test_without_a_driver_it_is_one_sentence() -> None:
    none = {"HVDTUNE_CUDA_LIBRARY": "none"}
    for kind, text in run_ranks(2, device_arrays.without_driver, env=none).values:
        assert kind == "ValueError"
        assert text == (
            "tensors on GPUs cannot be used: HVDTUNE_CUDA_LIBRARY is none: no CUDA driver is used"
        )


@pytest.mark.parametrize("shared", [False, True])
def test_ranks_on_one_gpu_use_nccl_where_that_is_asked_for(shared: bool, fakes: Path) -> None:
    environment = fake_gpus.environment(fakes, nccl=True) | {"HVDTUNE_TEST_OWN_GPU": "0"}
    if shared:
        environment |= {"HVDTUNE_SHARE_GPU": "1", "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    result = run_ranks(3, device_arrays.joined, env=environment)
    for rank in result.ranks:
        refused = "host memory: members 0 and 1 are on one GPU (Fake GPU): give each rank a GPU of"
        assert (refused in rank.stderr) is not shared, rank.stderr


def test_the_timeline_shows_what_the_gpu_does(fakes: Path, tmp_path: Path) -> None:
    environment = fake_gpus.environment(fakes, nccl=True)
    environment |= {
        "HOROVOD_TIMELINE": str(tmp_path / "timeline.json"),
        "HVDTUNE_TIMELINE_FORMAT": "horovod",
    }
    run_ranks(2, device_arrays.recorded, env=environment)
    events = json.loads((tmp_path / "timeline.json").read_text())
    rows = [event for event in events if event.get("name") == "process_name" and event["pid"] > 0]
    names = {row["pid"]: row["args"]["name"] for row in rows}
    labels: dict[str, list[str]] = {}
    for event in events:
        if event["ph"] == "B":
            labels.setdefault(names[event["pid"]], []).append(event["name"])
    many = [
        *("NEGOTIATE_ALLREDUCE", "ALLREDUCE", "INIT_NCCL", "QUEUE"),
        *("MEMCPY_IN_FUSION_BUFFER", "NCCL_ALLREDUCE", "MEMCPY_OUT_FUSION_BUFFER"),
    ]
    again = [label for label in many if label != "INIT_NCCL"]
    assert labels["grouped_allreduce.many_1of3"] == many + 2 * again
    assert labels["allreduce.one"] == 3 * ["NEGOTIATE_ALLREDUCE", "ALLREDUCE", "QUEUE", many[-2]]
    gathered = ["NEGOTIATE_ALLGATHER", "ALLGATHER", "QUEUE", "NCCL_ALLGATHER"]
    assert labels["allgather.gathered"] == 3 * gathered
    scaled = labels["allreduce.scaled"]  # which NCCL cannot do
    assert {"MEMCPY_IN_HOST_BUFFER", "SHM_ALLREDUCE", "MEMCPY_OUT_HOST_BUFFER"} <= set(scaled)
    times = [event["ts"] for event in events if event["ph"] in "BE"]
    assert min(times) >= 0


class CudaTensor:
    """What as_buffer() asks of a torch tensor on a GPU."""

    is_cpu, is_cuda, is_nested = False, True, False
    dtype = torch.bfloat16
    device = torch.device("cuda", 3)
    shape = torch.Size([2, 5])

    def is_contiguous(self) -> bool:
        return True

    def is_neg(self) -> bool:
        return False

    def data_ptr(self) -> int:
        return 0x7F0000000100

    def get_device(self) -> int:
        return 3


def test_a_profiler_that_names_itself_is_told_of_batches(fakes: Path) -> None:
    environment = fake_gpus.environment(fakes, nccl=True) | fake_gpus.profiled(fakes)
    for lines in run_ranks(2, device_arrays.profiled, env=environment).values:
        said = [line.split(maxsplit=1)[1] for line in lines]  # without the thread
        assert not [line for line in lines if line.startswith("misuse")]
        batch = said.index("push hvdtune ALLREDUCE grouped_allreduce.many and 2 more")
        phases = ("MEMCPY_IN_FUSION_BUFFER", "NCCL_ALLREDUCE", "MEMCPY_OUT_FUSION_BUFFER")
        inside = [line for phase in phases for line in (f"push hvdtune {phase}", "pop")]
        spans = [line for line in said[batch + 1 :] if not line.startswith(("start", "end"))]
        assert spans[:6] == inside
        for name in ("grouped_allreduce.many", "allreduce.one", "allreduce.scaled"):
            assert sum(line.endswith(f"hvdtune QUEUE {name}") for line in said) == 3
        assert said.count("push hvdtune MEMCPY_IN_HOST_BUFFER") == 3  # what NCCL cannot do


def test_a_profiler_that_cannot_be_loaded_is_one_warning(fakes: Path) -> None:
    environment = fake_gpus.environment(fakes, nccl=True)
    environment["NVTX_INJECTION64_PATH"] = "/nowhere/libprofiler.so"
    for rank in run_ranks(2, device_arrays.recorded, env=environment).ranks:
        assert rank.stderr.count("no NVTX ranges (NVTX_INJECTION64_PATH): ") == 1
        assert "/nowhere/libprofiler.so" in rank.stderr


def test_a_cuda_tensor_is_its_address_and_the_current_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams = {torch.device("cuda", 3): SimpleNamespace(cuda_stream=0x55)}
    monkeypatch.setattr(torch.cuda, "current_stream", streams.get)
    tensor = CudaTensor()
    buffer = as_buffer(tensor, "allreduce")  # type: ignore[arg-type]
    expected = Buffer(0x7F0000000100, DTYPES["bfloat16"], (2, 5), tensor, 3, (0x55,))
    assert replace(buffer, current_stream=None) == expected
    streams[torch.device("cuda", 3)] = SimpleNamespace(cuda_stream=0x66)
    assert buffer.current_stream is not None
    assert buffer.current_stream() == 0x66


@pytest.mark.parametrize(("choice", "expected"), [("auto", True), ("on", True), ("off", False)])
def test_gradients_on_a_gpu_are_reduced_during_the_backward_pass(
    choice: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "settings", lambda: SimpleNamespace(overlap=choice))
    assert overlap.wanted_on_gpu() is expected


@pytest.mark.parametrize("victim", [0, 1])
def test_a_dead_rank_ends_the_job_for_all(victim: int, gpus: dict[str, str]) -> None:
    result = run_ranks(3, device_arrays.killed, victim, 5, env=gpus, check=False)
    for rank, told in zip(result.ranks, result.values, strict=True):
        if rank.rank != victim:
            assert rank.returncode == 0, result.describe()
            assert f"rank {victim} (pid " in told


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_that_dies_in_the_middle_ends_what_gpus_wait_for(victim: int, fakes: Path) -> None:
    environment = fake_gpus.environment(fakes, nccl=True)
    result = run_ranks(3, device_arrays.killed_in_flight, victim, env=environment, check=False)
    for rank, told in zip(result.ranks, result.values, strict=True):
        if rank.rank != victim:
            assert rank.returncode == 0, result.describe()
            assert f"rank {victim} (pid " in told
