"""Rank programs on CPUs of their own choice."""

from __future__ import annotations

import os

import numpy as np

import hvdtune as hvd

# Around the limit of the one-shot algorithm, and over several chunks of the streamed one.
SIZES = (12_000, 1 << 20)


def allreduce_with_one_rank_pinned() -> None:
    """Ranks whose affinities differ must still agree on how a message is cut."""
    if os.environ["HOROVOD_RANK"] == "1":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    hvd.init()
    expected = hvd.size() * (hvd.size() + 1) / 2
    for repeat in range(3):
        for size in SIZES:
            values = np.full(size, hvd.rank() + 1, np.float32)
            total = hvd.allreduce(values, op=hvd.Sum, name=f"{repeat}.{size}")
            assert (total == expected).all()
    hvd.shutdown()
