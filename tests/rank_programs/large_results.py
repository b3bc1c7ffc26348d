"""Rank programs about results of several MiB, whose memory is used again."""

from __future__ import annotations

import resource
from typing import Any

import numpy as np

import hvdtune as hvd

ROWS = 768 * 1024  # 3 MiB of float32, one column
STEPS = 12


def all_kinds(use_torch: bool) -> list[str]:
    """Every operation with new results, which keep their content while later ones come and go."""
    api: Any = hvd
    if use_torch:
        import hvdtune.torch as api
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    faults: list[str] = []
    kept: list[tuple[str, Any, list[float]]] = []

    def values(array: Any) -> Any:
        return array.numpy() if use_torch else array

    def check(what: str, result: Any, parts: list[float]) -> None:
        """`result` consists of equal parts with these values."""
        for part, value in zip(np.split(values(result), len(parts)), parts, strict=True):
            if not np.all(part == value):
                faults.append(f"{what} on rank {rank}: not {value}")

    for step in range(STEPS):
        data: Any = np.full(ROWS, rank + step, np.float32)
        if use_torch:
            import torch

            data = torch.from_numpy(data)
        total = float(sum(range(size)) + size * step)
        everybody = [float(other + step) for other in range(size)]
        results = {
            "allreduce": (api.allreduce(data, op=hvd.Sum, name="r"), [total]),
            "broadcast": (api.broadcast(data, size - 1, name="b"), everybody[-1:]),
            "allgather": (api.allgather(data, name="g"), everybody),
            "alltoall": (api.alltoall(data, name="a"), everybody),
            "reducescatter": (api.reducescatter(data, op=hvd.Sum, name="s"), [total]),
        }
        for what, (result, parts) in results.items():
            check(f"{what} of step {step}", result, parts)
        what = list(results)[step % len(results)]
        kept.append((f"{what} kept from step {step}", *results[what]))
    for what, result, parts in kept:
        check(what, result, parts)
    hvd.shutdown()
    for what, result, parts in kept:
        check(f"{what} after the end", result, parts)
    return faults


def dropped_results(rounds: int) -> tuple[int, int]:
    """(growth of the peak memory by dropped results, pages newly faulted in by them); in KiB, 1."""
    hvd.init()
    data = np.ones(ROWS * 4, np.float32)
    for _ in range(3):
        hvd.allreduce(data, op=hvd.Sum, name="r")
        hvd.allgather(data, name="g")
    before = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(rounds):
        hvd.allreduce(data, op=hvd.Sum, name="r")
        hvd.allgather(data, name="g")
    after = resource.getrusage(resource.RUSAGE_SELF)
    hvd.shutdown()
    return after.ru_maxrss - before.ru_maxrss, after.ru_minflt - before.ru_minflt
