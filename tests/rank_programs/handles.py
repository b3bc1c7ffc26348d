"""Rank programs about handles, threads, lifetimes and extreme numbers."""

from __future__ import annotations

import contextlib
import gc
import threading
from typing import Any

import numpy as np

import hvdtune as hvd


def several_threads() -> list[str]:
    """Four threads of each rank run collectives of their own at the same time."""
    hvd.init()
    faults: list[str] = []

    def work(thread: int) -> None:
        for step in range(200):
            mine = np.full(100 + thread, hvd.rank() + step, np.float64)
            got = hvd.allreduce(mine, op=hvd.Sum, name=f"thread.{thread}")
            expected = sum(range(hvd.size())) + step * hvd.size()
            if not np.all(got == expected):
                faults.append(f"thread {thread} step {step}")

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hvd.shutdown()
    return faults


def threads_that_need_each_other(rounds: int) -> str:
    """Rank 0's waiting threads: whoever makes the engine's progress must wake the others.

    Rank 1 submits "slow" only after "fast" has come four times, so rank 0's first thread waits for
    what its second thread does.
    """
    hvd.init()

    def fast() -> None:
        for _ in range(4 * rounds):
            hvd.allreduce(np.ones(4), name="fast")

    def slow() -> None:
        for _ in range(rounds):
            hvd.allreduce(np.ones(4), name="slow")

    if hvd.rank() == 0:
        threads = [threading.Thread(target=fast), threading.Thread(target=slow)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:
        for _ in range(rounds):
            for _ in range(4):
                hvd.allreduce(np.ones(4), name="fast")
            hvd.allreduce(np.ones(4), name="slow")
    hvd.shutdown()
    return "done"


def dropped_inputs() -> float:
    """The caller forgets its arrays at once: the engine keeps them until it is done."""
    hvd.init()
    handles = []
    for index in range(100):
        handles.append(
            hvd.allreduce_async(np.full(10_000, float(index)), op=hvd.Sum, name=f"t{index}")
        )
        gc.collect()
        np.full(10_000, -1.0)  # takes the memory if it was freed
    worst = 0.0
    for index, handle in enumerate(handles):
        got = hvd.synchronize(handle)
        worst = max(worst, float(np.abs(got - index * hvd.size()).max()))
    hvd.shutdown()
    return worst


def many_in_flight(count: int) -> int:
    """More operations than slots before the first is awaited; returns how many were right."""
    hvd.init()
    handles = [
        hvd.allreduce_async(np.full(3, i, np.int64), op=hvd.Sum, name=f"n{i}") for i in range(count)
    ]
    right = sum(
        hvd.synchronize(handle).tolist() == [i * hvd.size()] * 3 for i, handle in enumerate(handles)
    )
    hvd.shutdown()
    return right


def poll_and_fetch() -> list[Any]:
    """poll turns true by itself; a handle is fetched once; the name is free before the fetch."""
    hvd.init()
    handle = hvd.allreduce_async(np.ones(3), op=hvd.Sum, name="polled")
    while not hvd.poll(handle):
        pass
    second = hvd.allreduce_async(np.ones(3), op=hvd.Sum, name="polled")
    seen: list[Any] = [hvd.synchronize(handle).tolist(), hvd.synchronize(handle)]
    try:
        hvd.poll(handle)
    except ValueError as error:
        seen.append(str(error))
    seen.append(hvd.synchronize(second).tolist())
    hvd.shutdown()
    return seen


def unnamed_after_unequal_histories() -> list[float]:
    """Unnamed operations match although one rank has made calls that the others have not."""
    pair = hvd.ProcessSet([0, 1])
    hvd.init(process_sets=[pair])
    if pair.included():
        for _ in range(3):
            hvd.allreduce(np.ones(2), process_set=pair)
    if hvd.rank() == 2:
        with contextlib.suppress(ValueError):
            hvd.broadcast(np.ones(2), 77)
        hvd.synchronize(hvd.allgather_async(np.ones(1), process_set=hvd.global_process_set))
    else:
        hvd.allgather(np.ones(1))
    result = hvd.allreduce(np.ones(2), op=hvd.Sum).tolist()
    hvd.shutdown()
    return result


def objects() -> list[Any]:
    """Python objects of unequal sizes, from every root."""
    hvd.init()
    mine = {"rank": hvd.rank(), "text": "x" * (1000 * hvd.rank())}
    seen: list[Any] = [hvd.broadcast_object(mine, root) for root in range(hvd.size())]
    seen.append(hvd.allgather_object(mine))
    hvd.shutdown()
    return seen


def small_job() -> tuple[float, list[int]]:
    """A few operations; for jobs of many ranks."""
    hvd.init()
    total = 0.0
    for step in range(5):
        total = float(hvd.allreduce(np.full(5000, hvd.rank()), op=hvd.Sum, name="sum")[-1])
        hvd.barrier()
        hvd.broadcast(np.ones(10), step, name="b")
    gathered = hvd.allgather(np.full(hvd.rank() % 2, hvd.rank(), np.int32), name="g").tolist()
    hvd.shutdown()
    return total, gathered


def huge(count: int) -> list[str]:
    """Tensors of more than 2^31 elements and bytes; returns what was wrong."""
    hvd.init()
    faults = []
    array = np.full(count, hvd.rank() + 1, np.uint8)
    array[-1] = 100
    hvd.allreduce_(array, op=hvd.Sum, name="huge")
    if not (array[0] == array[count // 2] == array[-2] == 3 and array[-1] == 200):
        faults.append("allreduce")
    if int(array[:-1].min()) != 3 or int(array[:-1].max()) != 3:
        faults.append("allreduce, somewhere")
    array[:] = hvd.rank()
    hvd.broadcast_(array, 1, name="huge")
    if int(array.min()) != 1:
        faults.append("broadcast")
    gathered = hvd.allgather(array[: count // 2 + 1], name="huge")
    if gathered.shape != (2 * (count // 2 + 1),) or int(gathered.min()) != 1:
        faults.append("allgather")
    hvd.shutdown()
    return faults
