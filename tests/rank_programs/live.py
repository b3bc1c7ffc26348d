"""Rank programs that others look at while they run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import hvdtune as hvd


def train(late: int | Sequence[int], late_s: float, steps: int, stop_file: str = "") -> int:
    """Steps of five tensors until `stop_file` exists, or `steps` of them; how many.

    The `late` rank, or ranks, sleep in each step; in the second half of `steps` nobody does.
    """
    hvd.init()
    is_late = hvd.rank() in ([late] if isinstance(late, int) else late)
    gradients = [np.ones(1000, np.float32) for _ in range(5)]
    stop = np.zeros(1, np.int32)
    step = 0
    while not stop[0] and (stop_file or step < steps):
        if is_late and (stop_file or step < steps // 2):
            time.sleep(late_s)
        handles = [hvd.allreduce_async_(g, name=f"grad.{i}") for i, g in enumerate(gradients)]
        for handle in handles:
            hvd.synchronize(handle)
        if stop_file:
            stop[0] = Path(stop_file).exists()
            hvd.allreduce_(stop, op=hvd.Max, name="stop")
        step += 1
        if step == 20:
            print("running", flush=True)
    hvd.shutdown()
    return step


def own_work(seconds: float, steps: int, blocking: bool) -> int:
    """Rank 1 alone is in a process set: two operations of it a step, `seconds` of work before each.

    The others are blocked meanwhile. `blocking`: small ones, which go past the coordinator.
    """
    own = hvd.ProcessSet([1])
    hvd.init(process_sets=[own])
    gradient, part = np.ones(1000, np.float32), np.ones(100, np.float32)
    for _ in range(steps):
        for number in range(2 * (hvd.rank() == 1)):
            time.sleep(seconds)
            name = f"part.{number}"
            if blocking:
                hvd.allreduce_(part, name=name, process_set=own)
            else:
                hvd.synchronize(hvd.allreduce_async_(part, name=name, process_set=own))
        hvd.synchronize(hvd.allreduce_async_(gradient, name="grad"))
    hvd.shutdown()
    return steps


def stay_away(late: int, stop_file: str) -> None:
    """In the fifth step rank `late` submits nothing until `stop_file` exists."""
    hvd.init()
    gradients = [np.ones(1000, np.float32) for _ in range(5)]
    for step in range(6):
        if step == 4 and hvd.rank() == late:
            print("staying away", flush=True)
            while not Path(stop_file).exists():
                time.sleep(0.01)
        handles = [hvd.allreduce_async_(g, name=f"grad.{i}") for i, g in enumerate(gradients)]
        for handle in handles:
            hvd.synchronize(handle)
    hvd.shutdown()


def direct_waits(steps: int, late_s: float) -> tuple[int, float | None]:
    """Rank 1 comes so late to a small blocking allreduce in every step, which goes past the
    coordinator; what rank 0's status says of steps and of the exposed share."""
    from hvdtune.core import world

    hvd.init()
    gradient, loss = np.ones(1000, np.float32), np.ones(1, np.float32)
    for _ in range(steps):
        hvd.synchronize(hvd.allreduce_async_(gradient, name="gradient"))
        until = time.monotonic() + late_s
        while hvd.rank() == 1 and time.monotonic() < until:
            pass
        hvd.allreduce_(loss, name="loss")
    status = world.status() if hvd.rank() == 0 else {"steps": 0, "exposed_share": None}
    hvd.barrier()
    hvd.shutdown()
    return status["steps"], status["exposed_share"]
