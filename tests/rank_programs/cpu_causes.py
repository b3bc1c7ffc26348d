"""Ranks that do not get the CPUs that they could use."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import torch

import hvdtune.torch as hvd


def train(seconds: float, threads: int = 1, loops: int = 0, together: bool = False) -> None:
    """Steps of matrix products for so long, with so many threads. Rank 0 starts busy `loops`
    beside; `together`: all ranks may use the first CPU only."""
    if together:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(threads)
    hvd.init()
    loop = [sys.executable, "-c", "while True: pass"]
    beside = [subprocess.Popen(loop) for _ in range(loops if hvd.rank() == 0 else 0)]
    try:
        model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(6)))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1e-5), named_parameters=model.named_parameters()
        )
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        batch = torch.randn(256, 512)
        end = time.monotonic() + seconds
        while hvd.allreduce(torch.tensor(float(time.monotonic() < end)), name="on", op=hvd.Min):
            optimizer.zero_grad()
            model(batch).pow(2).mean().backward()
            optimizer.step()
    finally:
        for one in beside:
            one.kill()
            one.wait()
    hvd.shutdown()
