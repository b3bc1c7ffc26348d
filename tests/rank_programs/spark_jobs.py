"""What ranks do in the tests of jobs in Spark. Functions here are imported by the ranks."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import numpy as np

import hvdtune as hvd


def allreduce(factor: float, *, offset: float = 0.0) -> dict[str, Any]:
    """Every rank's place, and a sum of what all contribute."""
    hvd.init()
    array = np.full(1000, factor * (hvd.rank() + 1) + offset, np.float32)
    total = hvd.allreduce(array, op=hvd.Sum)
    print(f"rank {hvd.rank()} has a sum")
    print(f"rank {hvd.rank()} is done", file=sys.stderr)
    return {
        "rank": hvd.rank(),
        "size": hvd.size(),
        "local_size": hvd.local_size(),
        "sum": float(total[0]) if np.ptp(total) == 0 else None,
        "environment": os.environ.get("GIVEN_BY_THE_TEST"),
        "directory": os.getcwd(),
        "argv": sys.argv,
        "parents": parents(),
    }


def parents() -> list[int]:
    """The rank's agent, and the Spark worker above it."""
    agent = os.getppid()
    with open(f"/proc/{agent}/stat", "rb") as file:
        return [agent, int(file.read().rpartition(b")")[2].split()[1])]


def train(steps: int) -> list[float]:
    """The losses of a small PyTorch training, the same on every rank."""
    import torch

    import hvdtune.torch as hvd_torch

    hvd_torch.init()
    torch.manual_seed(hvd_torch.rank())
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer = hvd_torch.DistributedOptimizer(optimizer, model.named_parameters())
    hvd_torch.broadcast_parameters(model.state_dict(), root_rank=0)
    features = torch.randn(64, 4)
    targets = features.sum(dim=1, keepdim=True)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(features), targets)
        loss.backward()
        optimizer.step()
        losses.append(float(hvd_torch.allreduce(loss.detach(), name="loss")))
    return losses


def end_badly(how: str) -> None:
    """Rank 1 ends, the others wait for it in a collective."""
    hvd.init()
    if hvd.rank() == 1:
        print("the last words of rank 1")
        if how == "raise":
            raise ValueError("rank 1 has a reason")
        if how == "exit":
            sys.stdout.flush()
            os._exit(9)
        os.kill(parents()[1] if how == "kill the task" else os.getpid(), signal.SIGKILL)
        time.sleep(60)
    hvd.allreduce(np.zeros(1, np.float32))


def leave_early() -> None:
    """Rank 1 ends as if it were done, but returns nothing."""
    if os.environ["HOROVOD_RANK"] == "1":
        sys.exit(0)


def devices() -> dict[str, Any]:
    """What a rank knows of its GPUs, which need not exist."""
    from hvdtune.spark.task import get_available_devices

    hvd.init()
    places = hvd.allgather_object((hvd.rank(), hvd.local_rank(), hvd.cross_rank()))
    return {
        "places": places,
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "mine": get_available_devices(),
    }
