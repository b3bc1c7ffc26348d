"""Batches on GPUs (fake ones) that go past NCCL, and those that do not."""

from __future__ import annotations

import time

import numpy as np
from rank_programs.device_arrays import same, values
from support.gpus.fake_gpus import GpuArray

import hvdtune as hvd
from hvdtune.core import tuning

LIMIT = 4096  # bytes
SIZES = {"below": LIMIT - 4, "at": LIMIT, "above": LIMIT + 4}


def _reduce(when: str) -> None:
    """One batch of each size, and one of several tensors that are longer together."""
    rank, ranks = hvd.rank(), hvd.size()
    for what, size in SIZES.items():
        everybody = [values(r, "float32", (size // 4,)) for r in range(ranks)]
        mine = GpuArray(everybody[rank])
        hvd.allreduce_(mine, name=f"{when}.{what}", op=hvd.Sum)
        same(mine, np.sum(everybody, axis=0, dtype=np.float32))
    everybody = [values(r, "int64", (LIMIT // 16,)) for r in range(ranks)]
    for count in (2, 3):
        several = [GpuArray(everybody[rank]) for _ in range(count)]
        hvd.grouped_allreduce_(several, name=f"{when}.{count}", op=hvd.Max)
        for one in several:
            same(one, np.max(everybody, axis=0))
    mine = GpuArray(everybody[rank])
    same(hvd.allgather(mine, name=f"{when}.gather"), np.concatenate(everybody))


def moved(limits: list[int]) -> list[int | None]:
    """With the limit of the start, then with each of `limits`: what rank 0 has seen of it."""
    hvd.init()
    seen = []
    _reduce("start")
    seen.append(tuning.current().get("nccl_bypass_limit"))
    for number, limit in enumerate(limits):
        if hvd.rank() == 0:
            tuning.apply({"nccl_bypass_limit": limit})
            while hvd_limit() != limit:
                time.sleep(0.001)
        hvd.barrier()
        _reduce(f"moved{number}")
        seen.append(tuning.current().get("nccl_bypass_limit"))
    hvd.shutdown()
    return seen


def hvd_limit() -> int:
    """The limit in force on this rank, whether it can act or not."""
    from hvdtune.core import world

    return int(world.engine().settings()[-1])
