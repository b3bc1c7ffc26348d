"""Training without PyTorch that tells what it does."""

from __future__ import annotations

import time

import numpy as np

import hvdtune as hvd


def train(steps: int, load: float) -> None:
    """So many steps, each of which waits for its input for so long."""
    hvd.init()
    gradients = [np.ones(100, np.float32) for _ in range(3)]
    for _ in range(steps):
        with hvd.mark("input"):
            time.sleep(load)
        time.sleep(0.005)
        handles = [hvd.allreduce_async(g, name=f"grad.{i}") for i, g in enumerate(gradients)]
        for handle in handles:
            hvd.synchronize(handle)
        hvd.mark_step()
    hvd.shutdown()
