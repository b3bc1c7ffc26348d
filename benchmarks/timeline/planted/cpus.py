"""Programs short of CPUs: others take them, there are too many threads, or ranks share one."""

from __future__ import annotations

import os
from typing import Any

from planted.job import Job, crunch
from planted.networks import Net, descend, fit, start_torch
from planted.program import Programs

programs = Programs()

SAME_CPU = ("bound to the same CPU", "CPUs taken")


def _multiplies(torch: Any, width: int = 512, layers: int = 4) -> Any:
    parts = [torch.nn.Linear(width, width)]
    for _ in range(layers):
        parts += [torch.nn.ReLU(), torch.nn.Linear(width, width)]
    return torch.nn.Sequential(*parts)


@programs.faulty("other programs take the CPUs", "CPUs taken", framework="torch", culprits=None)
def _hogs(job: Job) -> None:
    torch = start_torch(job)
    with job.other_programs(4 if job.fault else 0):
        fit(job, _multiplies(torch), lambda step: torch.randn(160, 512), steps=60)


@programs.faulty("two other programs", "CPUs taken", culprits=None)
def _two_hogs(job: Job) -> None:
    job.start()
    with job.other_programs(2 if job.fault else 0):
        descend(job, Net(forward=30, layer=12, update=1), compute=lambda x: crunch(int(x)))


def _threads(count: int) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(count), "OPENBLAS_NUM_THREADS": str(count)}


@programs.faulty(
    "eight threads a rank", "too many threads", framework="torch", culprits=None,
    faulty_environment=_threads(8),
)  # fmt: skip
def _eight_threads(job: Job) -> None:
    torch = start_torch(job, 8 if job.fault else 1)
    fit(job, _multiplies(torch, 256, 8), lambda step: torch.randn(192, 256), steps=60)


@programs.faulty(
    "many threads of four ranks", "too many threads", framework="torch", ranks=4, culprits=None,
    faulty_environment=_threads(4),
)  # fmt: skip
def _many_threads(job: Job) -> None:
    torch = start_torch(job, 4 if job.fault else 1)
    fit(job, _multiplies(torch, 256, 6), lambda step: torch.randn(96, 256), steps=150)


@programs.faulty("all on one CPU", SAME_CPU, culprits=None)
def _one_cpu(job: Job) -> None:
    if job.fault:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    descend(job, Net(forward=20, layer=10, update=1), compute=lambda x: crunch(int(x)))


@programs.faulty("all on one CPU, PyTorch", SAME_CPU, framework="torch", culprits=None)
def _one_cpu_torch(job: Job) -> None:
    if job.fault:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch = start_torch(job)
    fit(job, _multiplies(torch), lambda step: torch.randn(128, 512), steps=60)
