"""Rank program: the gradients against finite differences of the loss over all ranks.

The loss is L = sum over ranks of sum(w * y**2), with other weights w on every rank and element. It
is quadratic in every input, so central differences are exact but for rounding. What autograd gives
is dL/dx times what Horovod's definition of the operation's gradient differs by:

    allreduce (Sum, Average, factors), alltoall    1: dL/dx itself
    allgather, broadcast                           1/n: that of the mean loss of n ranks
    reducescatter (Sum, Average, factors)          n
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from rank_programs.torch_cases import run_checks

import hvdtune.torch as hvd

Shape = tuple[int, ...]
STEP = 1e-3
some = hvd.ProcessSet([0, 1])  # replaced in run()


@dataclass(frozen=True)
class Case:
    """A differentiable function of tensors, given by the shapes of its inputs on each rank."""

    shapes: Callable[[int], Sequence[Shape]]
    call: Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]
    ratio: float = 1.0


def values(rank: int, case: str, shapes: Sequence[Shape]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * rank + len(case))
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def loss_here(case: Case, inputs: list[torch.Tensor]) -> torch.Tensor:
    """This rank's term of the loss."""
    loss = torch.zeros((), dtype=torch.float64)
    for index, output in enumerate(case.call(inputs)):
        weights = 1 + torch.arange(output.numel(), dtype=torch.float64) + 10 * hvd.rank() + index
        loss = loss + (weights.reshape(output.shape) * output**2).sum()
    return loss


def loss_everywhere(case: Case, inputs: list[torch.Tensor]) -> float:
    with torch.no_grad():
        return hvd.allreduce(loss_here(case, inputs), op=hvd.Sum).item()


def numeric_gradients(
    case: Case, inputs: list[torch.Tensor], sizes: list[list[int]]
) -> list[torch.Tensor]:
    """dL/dx of this rank's inputs; ``sizes[r]`` are the numbers of elements that rank r has."""
    gradients = [torch.zeros_like(tensor) for tensor in inputs]
    for owner, counts in enumerate(sizes):
        for index, count in enumerate(counts):
            for element in range(count):
                losses = []
                for step in (STEP, -STEP):
                    changed = [tensor.clone() for tensor in inputs]
                    if owner == hvd.rank():
                        changed[index].view(-1)[element] += step
                    losses.append(loss_everywhere(case, changed))
                if owner == hvd.rank():
                    slope = (losses[0] - losses[1]) / (2 * STEP)
                    gradients[index].view(-1)[element] = slope
    return gradients


def check(name: str, case: Case) -> None:
    inputs = values(hvd.rank(), name, case.shapes(hvd.rank()))
    sizes = [
        [int(torch.Size(shape).numel()) for shape in case.shapes(rank)]
        for rank in range(hvd.size())
    ]
    numeric = numeric_gradients(case, inputs, sizes)
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    loss_here(case, leaves).backward()
    for index, (leaf, slope) in enumerate(zip(leaves, numeric, strict=True)):
        gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        torch.testing.assert_close(
            gradient,
            slope * case.ratio,
            rtol=1e-6,
            atol=1e-6,
            msg=lambda text, index=index: f"{name}, tensor {index}: {text}",
        )


def check_all(cases: dict[str, Case]) -> None:
    for name, case in cases.items():
        print(name, flush=True)
        check(name, case)


def reductions() -> None:
    factors = {"prescale_factor": 0.5, "postscale_factor": 3.0}
    cases = {}
    for op in (hvd.Sum, hvd.Average):
        cases[f"allreduce {op}"] = Case(
            lambda rank: [(2, 2)], lambda x, op=op: [hvd.allreduce(x[0], op=op)]
        )
        cases[f"allreduce {op} with factors"] = Case(
            lambda rank: [()], lambda x, op=op: [hvd.allreduce(x[0], op=op, **factors)]
        )
        cases[f"grouped_allreduce {op}"] = Case(
            lambda rank: [(3,), (), (0,)],
            lambda x, op=op: hvd.grouped_allreduce(x, op=op, **factors),
        )
    check_all(cases)


def gathers() -> None:
    mean = 1.0 / hvd.size()
    check_all(
        {
            "allgather": Case(
                lambda rank: [(rank, 2)], lambda x: [hvd.allgather(x[0])], ratio=mean
            ),
            "grouped_allgather": Case(
                lambda rank: [(rank + 1,), (2 * rank, 1)],
                lambda x: hvd.grouped_allgather(x),
                ratio=mean,
            ),
            "broadcast": Case(
                lambda rank: [(2, 2)],
                lambda x: [hvd.broadcast(x[0], hvd.size() - 1)],
                ratio=mean,
            ),
        }
    )


def splits_of(sender: int) -> list[int]:
    return [(sender + 2 * receiver) % 3 for receiver in range(hvd.size())]


def alltoall() -> None:
    check_all(
        {
            "even": Case(lambda rank: [(hvd.size(), 2)], lambda x: [hvd.alltoall(x[0])]),
            "uneven": Case(
                lambda rank: [(sum(splits_of(rank)) + 1, 2)],  # the last row is not sent
                lambda x: [hvd.alltoall(x[0], splits_of(hvd.rank()))[0]],
            ),
        }
    )


def reducescatter() -> None:
    factors = {"prescale_factor": 0.5, "postscale_factor": 3.0}
    cases = {}
    for op in (hvd.Sum, hvd.Average):
        cases[f"reducescatter {op}"] = Case(
            lambda rank: [(hvd.size() + 1, 2)],
            lambda x, op=op: [hvd.reducescatter(x[0], op=op, **factors)],
            ratio=hvd.size(),
        )
        cases[f"grouped_reducescatter {op}"] = Case(
            lambda rank: [(hvd.size() + 1,), (1, 2)],
            lambda x, op=op: hvd.grouped_reducescatter(x, op=op),
            ratio=hvd.size(),
        )
    check_all(cases)


def inside_a_process_set() -> None:
    members = some.size()
    assert members
    first = some.ranks[0]  # type: ignore[index]

    def of_set(call: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., list[torch.Tensor]]:
        return lambda x: [call(x[0]) if some.included() else 2 * x[0]]

    def shapes(rank: int) -> list[Shape]:
        return [(members, 1)]

    # The others take part with a function of their own, whose gradient is dL/dx.
    def ratio(of_members: float) -> float:
        return of_members if some.included() else 1.0

    check_all(
        {
            "allreduce": Case(shapes, of_set(lambda x: hvd.allreduce(x, process_set=some))),
            "allgather": Case(
                shapes, of_set(lambda x: hvd.allgather(x, process_set=some)), ratio(1 / members)
            ),
            "broadcast": Case(
                shapes,
                of_set(lambda x: hvd.broadcast(x, first, process_set=some)),
                ratio(1 / members),
            ),
            "alltoall": Case(shapes, of_set(lambda x: hvd.alltoall(x, process_set=some))),
            "reducescatter": Case(
                shapes, of_set(lambda x: hvd.reducescatter(x, process_set=some)), ratio(members)
            ),
        }
    )


def run() -> list[str]:
    size = int(os.environ["HOROVOD_SIZE"])
    some.ranks = [1] if size == 2 else [0, size - 1]
    hvd.init(process_sets=[some])
    return run_checks(reductions, gathers, alltoall, reducescatter, inside_a_process_set)
