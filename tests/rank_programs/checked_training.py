"""Training whose every result is checked, for as long as somebody disturbs it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import hvdtune as hvd


def train(stop_file: str) -> tuple[int, int]:
    """Steps of sums until `stop_file` exists: how many, and how many sums were wrong."""
    hvd.init()
    ranks = np.arange(1, hvd.size() + 1)
    random = np.random.default_rng(7)  # the same on all ranks
    stop = np.zeros(1, np.int32)
    steps = wrong = 0
    while not stop[0]:
        bases = [random.integers(0, 1000, 1 + 997 * index).astype(np.float32) for index in range(4)]
        handles = [
            hvd.allreduce_async(base * (hvd.rank() + 1), op=hvd.Sum, name=f"sum.{index}")
            for index, base in enumerate(bases)
        ]
        for base, handle in zip(bases, handles, strict=True):
            wrong += not np.array_equal(hvd.synchronize(handle), base * ranks.sum())
        stop[0] = Path(stop_file).exists()
        hvd.allreduce_(stop, op=hvd.Max, name="stop")
        steps += 1
        if steps == 20:
            print("running", flush=True)
    hvd.shutdown()
    return steps, wrong
