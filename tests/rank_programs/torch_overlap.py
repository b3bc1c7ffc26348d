"""Rank program: when DistributedOptimizer reduces gradients, by the setting and by the CPUs."""

from __future__ import annotations

import os

import torch

import hvdtune.torch as hvd
from hvdtune.core import world

VARIABLE = "HVDTUNE_OVERLAP"


def reduces_in_backward_pass() -> bool:
    """Whether a second step's gradients are under way when backward() is over. Checks them too."""
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([parameter], lr=1.0), [("parameter", parameter)], op=hvd.Sum
    )
    under_way = 0
    for _ in range(2):  # the ranks agree in the first one
        optimizer.zero_grad()
        (parameter.sum() * (hvd.rank() + 1)).backward()
        under_way = len(optimizer._reducer._submissions)
        optimizer.step()
    assert parameter.tolist() == [1.0 - 2 * sum(range(1, hvd.size() + 1))] * 3
    return under_way == 1


def in_a_job(choice: str | None, threads: int, cpus: int | None = None) -> bool:
    """The same in a job of its own; `cpus`: as many as the host is to have."""
    os.environ[VARIABLE] = choice or ""
    torch.set_num_threads(threads)
    hvd.init()
    real = world.host_cpus
    try:
        if cpus is not None:
            world.host_cpus = lambda: cpus
        return reduces_in_backward_pass()
    finally:
        world.host_cpus = real
        hvd.shutdown()


def settings() -> dict[str, bool]:
    """What each setting leads to, on any machine."""
    rank = int(os.environ["HOROVOD_RANK"])
    return {
        "on, busy": in_a_job("on", threads=4, cpus=1),
        "off, idle": in_a_job("OFF", threads=1, cpus=99),
        "auto, a CPU left": in_a_job("auto", threads=1, cpus=3),
        "auto, none left": in_a_job("auto", threads=1, cpus=2),
        "auto, more threads": in_a_job("auto", threads=2, cpus=4),
        "not set, a CPU left": in_a_job(None, threads=1, cpus=3),
        "not set, none left": in_a_job(None, threads=1, cpus=2),
        "on one rank only": in_a_job("on" if rank == 0 else "off", threads=1, cpus=99),
        "one rank has more threads": in_a_job("auto", threads=1 + rank, cpus=3),
    }


def refusal() -> str:
    """What init() says to a value that is none."""
    os.environ[VARIABLE] = "sometimes"
    try:
        hvd.init()
    except ValueError as error:
        return str(error)
    return "accepted"


def host_cpus() -> tuple[int, int]:
    """(CPUs of both ranks together, those of this one), each of which is on a CPU of its own."""
    every = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {every[int(os.environ["HOROVOD_RANK"]) % len(every)]})
    hvd.init()
    together = world.host_cpus()
    hvd.shutdown()
    return together, len(os.sched_getaffinity(0))


def everything() -> tuple[dict[str, bool], str, tuple[int, int]]:
    """All of it, in one start of ranks."""
    found = settings(), refusal()
    os.environ[VARIABLE] = ""
    return *found, host_cpus()
