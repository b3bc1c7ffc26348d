"""Rank programs: many allreduces made together, again and again, while their tensors change."""

from __future__ import annotations

from typing import Any

import torch

import hvdtune.torch as hvd
from hvdtune.core import operations
from hvdtune.torch.adapter import CODES

TENSORS = 29


def plan_for(process_set: Any = None) -> Any:
    """A plan of sums."""
    names = tuple([f"tensor.{i}" for i in range(TENSORS)])
    members = process_set or hvd.global_process_set
    return operations.plan_allreduces(CODES, names, hvd.Sum, 1.0, 1.0, members)


def shape_of(i: int, turn: int) -> tuple[int, ...]:
    """Of tensor `i` in a turn: up to 6 dimensions, the last one 5; some change half-way."""
    grown = turn >= 4 and i % 3 == 0
    dims = (i + turn // 8) % 6  # one more in the end
    return (1 + i % 4,) * dims + (2 + grown,)


def dtype_of(i: int, turn: int) -> torch.dtype:
    """The same for the types."""
    return torch.float64 if turn >= 6 and i % 5 == 0 else torch.float32


def faults_of_turns(ranks: list[int], process_set: Any = None) -> list[str]:
    """What came out wrong in ten turns of one plan, in the order found."""
    plan = plan_for(process_set)
    faults = []
    for turn in range(10):
        tensors = [
            torch.full(shape_of(i, turn), hvd.rank() + i + turn, dtype=dtype_of(i, turn))
            for i in range(TENSORS)
        ]
        outcomes: list[Any] = []
        done = plan.reduce(tensors, outcomes)
        if not done or outcomes != [None] * TENSORS:
            faults.append(f"turn {turn}: {outcomes}")
        for i, tensor in enumerate(tensors):
            if not (tensor == sum(rank + i + turn for rank in ranks)).all():
                faults.append(f"turn {turn}, tensor {i}: {tensor}")
    return faults


def changing_tensors() -> list[str]:
    """In the whole job, and in a process set of all ranks but one."""
    hvd.init(process_sets="dynamic")
    faults = faults_of_turns(list(range(hvd.size())))
    ranks = list(range(hvd.size() - 1))
    members = hvd.add_process_set(ranks)
    if hvd.rank() in ranks:
        faults += faults_of_turns(ranks, members)
    hvd.barrier()
    hvd.shutdown()
    return faults


def in_two_jobs() -> list[str]:
    """One plan, used on after another init()."""
    plan = plan_for()
    faults = []
    for job in range(2):
        hvd.init()
        for turn in range(4):
            tensors = [torch.ones(3) for _ in range(TENSORS)]
            if not plan.reduce(tensors, []):
                faults.append(f"job {job}, turn {turn}: not reduced")
            faults += [f"{job}: {t}" for t in tensors if not (t == hvd.size()).all()]
        hvd.shutdown()
        if plan.reduce([torch.ones(3)] * TENSORS, outcomes := []) or any(outcomes):
            faults.append("reduced without an engine")
    return faults


def what_cannot_be_handed_over() -> list[Any]:
    """The outcomes of a turn with a tensor with gaps, and of one with a tensor too few."""
    hvd.init()
    plan = plan_for()
    for _ in range(3):
        plan.reduce([torch.ones(2, 2) for _ in range(TENSORS)], [])
    tensors = [torch.ones(2, 2) for _ in range(TENSORS)]
    tensors[7] = torch.ones(2, 4)[:, ::2]
    outcomes: list[Any] = []
    found: list[Any] = [plan.reduce(tensors, outcomes), outcomes.index(False), len(outcomes)]
    found.append(sum(outcome is None for outcome in outcomes))
    try:
        plan.reduce(tensors[1:], [])
    except TypeError as error:
        found.append(str(error))
    hvd.shutdown()
    return found
