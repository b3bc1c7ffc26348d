"""A training job in numbers: PyTorch's tensors reduced in place, computing played by sleeping.

Tensors are reduced in place, because new memory for results also costs time. Every rank is pinned
to a CPU: if all sleep, the scheduler may put several ranks' threads on one CPU and leave the others
idle.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from planted.job import Job, pause
from planted.networks import MIB, start_torch


@dataclass(frozen=True)
class Work:
    """Seconds, bytes."""

    steps: int = 80
    layers: int = 5
    per_layer: int = 4  # tensors
    size: int = MIB
    huge: int = 0  # size of one more tensor
    huge_first: bool = False
    forward: float = 0.010
    layer: float = 0.004  # backward pass of one layer
    update: float = 0.001
    overlap: bool = True
    one_by_one: bool = False  # wait for every tensor at once
    late_rank: int = -1
    late: float = 0.0
    late_from: int = 0
    late_to: int = 1 << 30


def perform(job: Job, work: Work) -> None:
    """The whole job."""
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[int(os.environ["HOROVOD_LOCAL_RANK"]) % len(cpus)]})
    torch = start_torch(job)
    layers = [
        [torch.zeros(work.size // 4) for _ in range(work.per_layer)] for _ in range(work.layers)
    ]
    huge = torch.zeros(work.huge // 4) if work.huge else None
    for step in job.steps(work.steps):
        train(job.hvd, work, step, layers, huge)


def train(hvd: Any, work: Work, step: int, layers: list[list[Any]], huge: Any) -> None:
    """One step."""
    pause(work.forward)
    if hvd.rank() == work.late_rank and work.late_from <= step <= work.late_to:
        pause(work.late)
    handles = []

    def submit(name: str, tensor: Any) -> None:
        if work.one_by_one:
            hvd.allreduce_(tensor, name=name)
        else:
            handles.append(hvd.allreduce_async_(tensor, name=name))

    if huge is not None and work.huge_first:
        pause(work.layer)
        submit("huge", huge)
    for number, layer in enumerate(layers):
        pause(work.layer)
        if work.overlap:
            for index, tensor in enumerate(layer):
                submit(f"layer{number}.{index}", tensor)
    if not work.overlap:
        for number, layer in enumerate(layers):
            for index, tensor in enumerate(layer):
                submit(f"layer{number}.{index}", tensor)
    if huge is not None and not work.huge_first:
        pause(work.layer)
        submit("huge", huge)
    for handle in handles:
        hvd.synchronize(handle)
    pause(work.update)
