"""Rank program: when DistributedOptimizer reduces gradients, by the setting and by the CPUs."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from functools import partial

import torch

import hvdtune.torch as hvd
from hvdtune.core import tuning, world
from hvdtune.torch.optimizer import overlap

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


class Clock:
    """Seconds of a job that never ran: every look at it takes 1 ms, and a step what it is told."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1_000_000
        return self.now


def losses(
    choice: str,
    steps: int,
    *,
    saves: float = 0.0,
    load: float = 0.1,
    clips: bool = False,
    joins_after: int = 0,
    after: Callable[[], None] = lambda: None,
) -> tuple[list[bool], list[list[float]]]:
    """(whether each step's gradients were under way after backward(), the parameters at the end).

    In a job whose host has one CPU a rank. Steps take 20 ms, with overlapping `saves` less, of a
    clock of their own, and use the CPU for the share `load`. `clips`: gradients are changed before
    they are reduced. `joins_after`: rank 0 joins after so many steps, the others after all.
    """
    os.environ[VARIABLE] = choice
    torch.set_num_threads(1)
    hvd.init()
    clock, real = Clock(), (world.host_cpus, overlap.OverlapTrial)
    world.host_cpus = lambda: hvd.size()
    overlap.OverlapTrial = partial(real[1], clock=clock, cpu_clock=lambda: int(load * clock.now))
    try:
        torch.manual_seed(hvd.rank())  # every rank its own data
        model = torch.nn.Sequential(*[torch.nn.Linear(9, 9) for _ in range(5)]).double()
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model.named_parameters()
        )
        ways = []
        for step in range(steps):
            if joins_after and step == joins_after and hvd.rank() == 0:
                break
            optimizer.zero_grad()
            model(torch.randn(4, 9, dtype=torch.float64)).square().mean().backward()
            ways.append(bool(optimizer._reducer._submissions))
            clock.now += int(1e6 * (20 - (saves if ways[-1] else 0.0)))
            if clips:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)
                    model[0].weight.grad.mul_(0.5)
                    optimizer.step()
            else:
                optimizer.step()
            after()
        if joins_after:
            hvd.join()
            for _ in range(50):  # as before; nobody finds out any more
                optimizer.zero_grad()
                model(torch.ones(1, 9, dtype=torch.float64)).square().mean().backward()
                ways.append(bool(optimizer._reducer._submissions))
                optimizer.step()
        return ways, [parameter.flatten().tolist() for parameter in model.parameters()]
    finally:
        world.host_cpus, overlap.OverlapTrial = real
        hvd.shutdown()


def trials() -> dict[str, tuple[list[bool], list[list[float]]]]:
    """What is found out, by what there is to find out."""
    return {
        "on": losses("on", 60),
        "off": losses("off", 60, saves=4),
        "auto, it saves time": losses("auto", 60, saves=4),
        "auto, it costs time": losses("auto", 60, saves=-4),
        "auto, no CPU is idle": losses("auto", 60, saves=4, load=0.9),
        "auto, gradients are changed": losses("auto", 60, saves=4, clips=True),
        "auto, a rank joins early": losses("auto", 60, saves=4, joins_after=20),
        "auto, a rank joins late": losses("auto", 60, saves=4, joins_after=55),
    }


def trial_beside_the_tuner() -> tuple[list[bool], list[bool]]:
    """(whether gradients were under way, whether the tuner was kept waiting) after each step."""
    os.environ["HOROVOD_AUTOTUNE"] = "1"
    waits: list[bool] = []
    try:
        ways, _ = losses("auto", 60, saves=4, after=lambda: waits.append(tuning.is_held()))
    finally:
        del os.environ["HOROVOD_AUTOTUNE"]
    return ways, waits


class Sleep(torch.autograd.Function):
    """A layer that waits for a device, as it were."""

    @staticmethod
    def forward(ctx, rows, seconds):  # type: ignore[no-untyped-def]
        ctx.seconds = seconds
        time.sleep(seconds)
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        time.sleep(ctx.seconds)
        return gradient, None


def what_is_found_out(seconds: float, width: int, rows: int, steps: int) -> list[str]:
    """What the trial tells of real steps: four layers that wait so long, or compute if 0."""
    told: list[str] = []
    os.environ[VARIABLE] = "auto"
    torch.set_num_threads(1)
    hvd.init()
    world.host_cpus = lambda: min(hvd.size(), os.cpu_count() or 1)
    overlap._tell = told.append
    layers = torch.nn.ModuleList([torch.nn.Linear(width, width) for _ in range(4)])
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(layers.parameters(), lr=1e-6), layers.named_parameters()
    )
    begin = torch.randn(rows, width, requires_grad=True)
    for _ in range(steps):
        optimizer.zero_grad()
        values = begin
        for layer in layers:
            values = layer(Sleep.apply(values, seconds) if seconds else values)
        values.square().mean().backward()
        optimizer.step()
    hvd.shutdown()
    return told
