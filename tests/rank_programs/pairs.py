"""Ranks of two process sets: one pair has much more to share than the other."""

from __future__ import annotations

import time

import numpy as np

import hvdtune as hvd

MIB = 1 << 20
LAYERS = 4


def train(steps: int, busy: int) -> None:
    """Four ranks; the pair `busy`, 0 or 1, waits for 32 MiB a step, the other for a number."""
    pairs = [hvd.ProcessSet([0, 1]), hvd.ProcessSet([2, 3])]
    hvd.init(process_sets=pairs)
    own = hvd.rank() // 2
    table = np.ones(32 * MIB // 4 if own == busy else 1, np.float32)
    layers = [np.ones(MIB // 16, np.float32) for _ in range(LAYERS)]
    for _ in range(steps):
        hvd.allreduce(table, name=f"table{own}", process_set=pairs[own])
        time.sleep(0.005)
        handles = [
            hvd.allreduce_async(layer, name=f"layer{number}") for number, layer in enumerate(layers)
        ]
        for handle in handles:
            hvd.synchronize(handle)
    hvd.shutdown()
