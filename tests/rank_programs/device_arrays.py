"""Tensors on GPUs (fake ones) through the NumPy face: results are NumPy's, and on the GPU."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from support.gpus.fake_gpus import (
    GpuArray,
    await_stream,
    capturing,
    new_stream,
    own_device,
    seen_by_profiler,
    set_faults,
    values_of,
)

import hvdtune as hvd
from hvdtune.core.exceptions import HorovodInternalError

DTYPES = (
    *("uint8", "int8", "uint16", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "bool"),
)
REDUCTIONS: dict[int, Any] = {
    hvd.Sum: np.sum,
    hvd.Average: np.mean,
    hvd.Min: np.min,
    hvd.Max: np.max,
    hvd.Product: np.prod,
}
SHAPES = ((), (0, 3), (5,), (4, 3), (1000, 7))


def values(rank: int, dtype: str, shape: tuple[int, ...] = (4, 3)) -> np.ndarray:
    """Small numbers, different on every rank and place: all sums and products are exact."""
    numbers = (np.arange(np.prod(shape, dtype=int)) * 7 + rank * 3) % 5 % 3
    return numbers.reshape(shape).astype(dtype)


def is_on_gpu(array: Any) -> bool:
    return hasattr(array, "__cuda_array_interface__")


def same(array: Any, expected: np.ndarray) -> None:
    assert is_on_gpu(array), type(array)
    found = values_of(array)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(found, expected)


def reduced(op: int, dtype: str, everybody: list[np.ndarray]) -> np.ndarray:
    if dtype == "bool":
        stacked = np.stack(everybody)
        either = op in (hvd.Sum, hvd.Max)
        return np.asarray(stacked.any(axis=0) if either else stacked.all(axis=0))
    exact = REDUCTIONS[op](np.stack(everybody).astype(np.float64), axis=0)
    return np.asarray(exact).astype(dtype)


def allreduces() -> None:
    """Every dtype, reduction and shape, from the first time on and in place."""
    rank, ranks = hvd.rank(), hvd.size()
    for dtype in DTYPES:
        for shape in SHAPES:
            everybody = [values(r, dtype, shape) for r in range(ranks)]
            for op in REDUCTIONS:
                if op == hvd.Average and dtype == "bool":
                    continue
                name = f"{dtype}.{shape}.{op}"
                expected = reduced(op, dtype, everybody)
                for _ in range(2):  # by its description, then by its slot
                    mine = GpuArray(everybody[rank])
                    same(hvd.allreduce(mine, name=name, op=op), expected)
                    same(mine, everybody[rank])
                    assert hvd.allreduce_(mine, name=f"{name}.in", op=op) is mine
                    same(mine, expected)


def factors() -> None:
    rank, ranks = hvd.rank(), hvd.size()
    for dtype in ("float16", "float32", "float64", "int32"):
        whole = sum(values(r, dtype).astype(np.float64) * 4 for r in range(ranks))
        for prescale, postscale in ((4.0, 1.0), (1.0, 4.0), (2.0, 2.0)):
            done = hvd.allreduce(
                GpuArray(values(rank, dtype)),
                name=f"factors.{dtype}.{prescale}",
                op=hvd.Sum,
                prescale_factor=prescale,
                postscale_factor=postscale,
            )
            same(done, np.asarray(whole).astype(dtype))
        largest = np.max([values(r, dtype) for r in range(ranks)], axis=0)
        scaled = hvd.allreduce(
            GpuArray(values(rank, dtype)), name=f"max.{dtype}", op=hvd.Max, prescale_factor=2.0
        )
        same(scaled, (largest * 2).astype(dtype))


def fused() -> None:
    """Many at once, of several dtypes, and groups, which may mix them."""
    rank, ranks = hvd.rank(), hvd.size()
    kinds = [
        (dtype, (n,)) for n in (0, 1, 3, 100, 4097) for dtype in ("float32", "float16", "int64")
    ]
    for step in range(3):
        tensors = [GpuArray(values(rank, dtype, shape)) for dtype, shape in kinds]
        handles = [
            hvd.allreduce_async_(tensor, name=f"fused.{i}", op=hvd.Sum)
            for i, tensor in enumerate(tensors)
        ]
        for handle, tensor, (dtype, shape) in zip(handles, tensors, kinds, strict=True):
            assert hvd.synchronize(handle) is tensor
            same(tensor, reduced(hvd.Sum, dtype, [values(r, dtype, shape) for r in range(ranks)]))
        grouped = hvd.grouped_allreduce(
            [GpuArray(values(rank + step, dtype, shape)) for dtype, shape in kinds],
            name="group",
            op=hvd.Sum,
        )
        for result, (dtype, shape) in zip(grouped, kinds, strict=True):
            everybody = [values(r + step, dtype, shape) for r in range(ranks)]
            same(result, reduced(hvd.Sum, dtype, everybody))


def others() -> None:
    """Allgather, broadcast, alltoall and reducescatter, with equal and unequal lengths."""
    rank, ranks = hvd.rank(), hvd.size()
    for dtype in ("float32", "float16", "int16", "bool"):
        for rows in (lambda r: 4, lambda r: r, lambda r: 0):
            name = f"{dtype}.{rows(0)}.{rows(1)}"
            parts = [values(r, dtype, (rows(r), 3)) for r in range(ranks)]
            gathered = hvd.allgather(GpuArray(parts[rank]), name=f"gather.{name}")
            same(gathered, np.concatenate(parts))
            together = hvd.grouped_allgather(
                [GpuArray(parts[rank]), GpuArray(parts[rank][::-1])], name=f"gathers.{name}"
            )
            same(together[0], np.concatenate(parts))
            same(together[1], np.concatenate([part[::-1] for part in parts]))
        root = ranks - 1
        theirs = values(root, dtype)
        mine = GpuArray(values(rank, dtype))
        same(hvd.broadcast(mine, root, name=f"broadcast.{dtype}"), theirs)
        same(mine, values(rank, dtype))
        assert hvd.broadcast_(mine, root, name=f"broadcast_.{dtype}") is mine
        same(mine, theirs)
        exchange(dtype)
    for dtype in ("float32", "float64", "int32"):
        for rows in (0, 1, 2 * ranks, 2 * ranks + 1):
            everybody = [values(r, dtype, (rows, 3)) for r in range(ranks)]
            whole = reduced(hvd.Sum, dtype, everybody)
            share = np.array_split(whole, ranks)[rank]
            done = hvd.reducescatter(
                GpuArray(everybody[rank]), name=f"scatter.{dtype}.{rows}", op=hvd.Sum
            )
            same(done, share)
            doubled = hvd.grouped_reducescatter(
                [GpuArray(everybody[rank]), GpuArray(everybody[rank])],
                name=f"scatters.{dtype}.{rows}",
                op=hvd.Sum,
                prescale_factor=2.0,
            )
            for one in doubled:
                same(one, share * np.asarray(2, dtype))


def exchange(dtype: str) -> None:
    rank, ranks = hvd.rank(), hvd.size()
    sent = [values(r, dtype, (2 * ranks, 3)) for r in range(ranks)]
    received = np.concatenate([part[2 * rank : 2 * rank + 2] for part in sent])
    same(hvd.alltoall(GpuArray(sent[rank]), name=f"alltoall.{dtype}"), received)
    splits = [[(r + k) % 3 for k in range(ranks)] for r in range(ranks)]
    sent = [values(r, dtype, (sum(splits[r]), 3)) for r in range(ranks)]
    parts = [np.split(sent[r], np.cumsum(splits[r])[:-1])[rank] for r in range(ranks)]
    done, counts = hvd.alltoall(GpuArray(sent[rank]), splits[rank], name=f"alltoallv.{dtype}")
    same(done, np.concatenate(parts))
    assert list(counts) == [splits[r][rank] for r in range(ranks)]


def adasum() -> None:
    ranks = hvd.size()
    mine = GpuArray(np.full(6, 2.0, np.float32))
    # Parallel vectors are averaged.
    same(hvd.allreduce(mine, name="adasum", op=hvd.Adasum), np.full(6, 2.0, np.float32))
    assert ranks & (ranks - 1) == 0


def late() -> None:
    """Tensors whose values are still on their way when they are submitted, by several streams."""
    rank, ranks = hvd.rank(), hvd.size()
    streams = [new_stream(), new_stream()]
    set_faults("slow=20")
    for step in range(4):
        shape = (50,)
        everybody = [values(r + step, "float32", shape) for r in range(ranks)]
        coming = [GpuArray(everybody[rank], stream=stream) for stream in streams]
        handles = [
            hvd.allreduce_async_(array, name=f"late.{i}", op=hvd.Sum)
            for i, array in enumerate(coming)
        ]
        group = hvd.grouped_allreduce_async(
            [GpuArray(everybody[rank], stream=stream) for stream in streams],
            name="late",
            op=hvd.Sum,
        )
        results = (*map(hvd.synchronize, handles), *hvd.synchronize(group))
        if os.environ.get("HOROVOD_ENABLE_ASYNC_COMPLETION") == "1":
            for stream in streams:  # who waits for the GPU, there; nobody else does
                await_stream(stream)
        for result in results:
            same(result, sum(everybody))
    set_faults("")


def all_operations() -> None:
    """Everything of the above in one job."""
    hvd.init()
    programs: list[Callable[[], None]] = [allreduces, factors, fused, others, late]
    if hvd.size() & (hvd.size() - 1) == 0:
        programs.append(adasum)
    for program in programs:
        program()
    hvd.shutdown()


def streams() -> tuple[bool, bool]:
    """Arrays reduced beside each other while the streams change.

    Returns whether these are tunable before the first batch, and after it.
    """
    from hvdtune.core import tuning

    hvd.init()
    before = "num_nccl_streams" in tuning.current()
    hvd.allreduce(GpuArray(values(hvd.rank(), "float32")), name="first", op=hvd.Sum)
    after = "num_nccl_streams" in tuning.current()
    for wanted in (3, 1, 4):
        hvd.barrier()
        if hvd.rank() == 0:
            tuning.apply({"num_nccl_streams": wanted})
        hvd.barrier()
        fused()
        if after:
            assert tuning.current()["num_nccl_streams"] == wanted
    hvd.shutdown()
    return before, after


def process_sets() -> None:
    """Sets that are there from the beginning, and that come and go."""
    evens = hvd.ProcessSet(range(0, int(os.environ["HOROVOD_SIZE"]), 2))
    hvd.init(process_sets="dynamic")
    rank, ranks = hvd.rank(), hvd.size()
    for step in range(3):
        hvd.add_process_set(evens)
        if rank % 2 == 0:
            mine = GpuArray(values(rank, "float32"))
            done = hvd.allreduce(mine, name=f"set.{step}", op=hvd.Sum, process_set=evens)
            same(done, sum(values(r, "float32") for r in range(0, ranks, 2)))
        whole = hvd.allreduce(GpuArray(values(rank, "float32")), name="all", op=hvd.Sum)
        same(whole, sum(values(r, "float32") for r in range(ranks)))
        hvd.remove_process_set(evens)
    hvd.shutdown()


def joined() -> None:
    """Ranks run out of data one after the other, also before they have had any."""
    hvd.init()
    rank, ranks = hvd.rank(), hvd.size()
    for step in range(rank):
        taking_part = [r for r in range(ranks) if r > step]
        done = hvd.allreduce(GpuArray(values(rank, "float32")), name="a", op=hvd.Sum)
        same(done, np.sum([values(r, "float32") for r in taking_part], axis=0, dtype=np.float32))
        together = hvd.grouped_allreduce(
            [GpuArray(values(rank, "int64")), GpuArray(values(rank, "float32"))],
            name="b",
            op=hvd.Sum,
        )
        same(together[0], np.sum([values(r, "int64") for r in taking_part], axis=0))
    assert hvd.join(own_device()) == ranks - 1
    done = hvd.allreduce(GpuArray(values(rank, "float32")), name="a", op=hvd.Sum)
    same(done, sum(values(r, "float32") for r in range(ranks)))
    hvd.shutdown()


def recorded() -> None:
    """Something of everything that the timeline shows of GPUs."""
    hvd.init()
    rank = hvd.rank()
    for step in range(3):
        tensors = [GpuArray(values(rank + step, "float32", (n,))) for n in (10, 20, 30)]
        hvd.synchronize(hvd.grouped_allreduce_async_(tensors, name="many", op=hvd.Sum))
        hvd.allreduce_(tensors[0], name="one", op=hvd.Sum)
        hvd.allgather(tensors[0], name="gathered")
        hvd.allreduce_(tensors[0], name="scaled", op=hvd.Max, prescale_factor=2.0)
    hvd.shutdown()


def profiled() -> list[str]:
    """What a profiler is told of three steps."""
    recorded()
    return seen_by_profiler()


def text_of(call: Callable[[], Any]) -> tuple[str, str]:
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


def mistakes() -> dict[str, tuple[str, str]]:
    """What each wrong use is told; the job goes on after each."""
    hvd.init()
    rank = hvd.rank()
    data = np.ones(4, np.float32)
    seen = {}
    mine: Any = GpuArray(data) if rank == 0 else data
    seen["cpu and gpu"] = text_of(lambda: hvd.allreduce(mine, name="x", op=hvd.Sum))
    same(hvd.allreduce(GpuArray(data), name="x", op=hvd.Sum), data * hvd.size())
    seen["cpu and gpu, known"] = text_of(lambda: hvd.allreduce(mine, name="x", op=hvd.Sum))
    np.testing.assert_array_equal(hvd.allreduce(data, name="x", op=hvd.Sum), data * hvd.size())
    seen["group"] = text_of(lambda: hvd.grouped_allreduce([data, GpuArray(data)], name="g"))
    seen["another gpu"] = text_of(
        lambda: hvd.allreduce(GpuArray(data, device=(own_device() + 1) % 8), name="y")
    )
    seen["complex"] = text_of(lambda: hvd.allreduce(GpuArray(data.astype("complex64")), name="y"))
    stream = new_stream()
    arrays = [GpuArray(data, stream=stream) for _ in range(2)]
    with capturing(stream):
        seen["captured"] = text_of(lambda: hvd.allreduce_(arrays[0], name="y"))
    same(hvd.allreduce_(arrays[1], name="y", op=hvd.Sum), data * hvd.size())
    hvd.shutdown()
    return seen


def without_driver() -> tuple[str, str]:
    """An array of a library that has a driver of its own, where hvdtune finds none."""

    class Array:
        __cuda_array_interface__ = {  # noqa: RUF012
            "shape": (4,), "typestr": "<f4", "data": (4096, False), "version": 3,
        }  # fmt: skip

    hvd.init()
    seen = text_of(lambda: hvd.allreduce(Array(), name="x"))
    np.testing.assert_array_equal(hvd.allreduce(np.ones(3), name="y"), np.ones(3))
    hvd.shutdown()
    return seen


def killed(victim: int, rounds: int) -> str:
    """A rank dies between two of its operations; the others are told, whatever they wait for."""
    hvd.init()
    data = np.ones(1000, np.float32)
    step = 0
    while True:
        if hvd.rank() == victim and step == rounds:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            handles = [hvd.allreduce_async_(GpuArray(data), name=f"k{i}") for i in range(4)]
            for handle in handles:
                hvd.synchronize(handle)
        except HorovodInternalError as error:
            return str(error)
        step += 1


def killed_in_flight(victim: int) -> str:
    """A rank dies while its GPU still packs, and those of the others wait for it."""
    hvd.init()
    data = np.ones(1000, np.float32)
    hvd.allreduce_(GpuArray(data), name="first")
    tensors = [GpuArray(data) for _ in range(3)]
    if hvd.rank() == victim:
        set_faults("slow=2000")
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
    try:
        hvd.grouped_allreduce_(tensors, name="second")
    except HorovodInternalError as error:
        return str(error)
    return "nothing"
