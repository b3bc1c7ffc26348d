"""Training whose every step is timed, for as long as somebody measures it."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

import hvdtune as hvd

TENSORS = 20


def train(stop_file: str, floats: int) -> list[float]:
    """Compute and allreduce until `stop_file` exists: when each step ended, in monotonic seconds.

    A step allreduces TENSORS tensors of so many floats; every sum is checked.
    """
    hvd.init()
    matrix = np.full((300, 300), 1 / 300, np.float32)
    gradients = [np.full(floats, hvd.rank() + 1, np.float32) for _ in range(TENSORS)]
    expected = sum(range(1, hvd.size() + 1))
    stop = np.zeros(1, np.int32)
    ends = []
    while not stop[0]:
        for _ in range(4):
            matrix = matrix @ matrix
        handles = [
            hvd.allreduce_async(gradient, op=hvd.Sum, name=f"gradient.{index}")
            for index, gradient in enumerate(gradients)
        ]
        for handle in handles:
            if not (hvd.synchronize(handle) == expected).all():
                raise RuntimeError("a sum was wrong")
        stop[0] = Path(stop_file).exists()
        hvd.allreduce_(stop, op=hvd.Max, name="stop")
        ends.append(time.monotonic())
        if len(ends) == 20:
            print("running", flush=True)
    hvd.shutdown()
    return ends
