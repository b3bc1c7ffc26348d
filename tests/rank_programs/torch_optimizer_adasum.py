"""Rank programs: DistributedOptimizer with op=Adasum against the formula, in NumPy's float64."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rank_programs.torch_cases import error_of
from rank_programs.torch_training import (
    SHARE,
    Model,
    adam,
    backward,
    batch,
    distributed,
    front,
    loss_of,
    new_model,
    sgd,
)

import hvdtune.torch as hvd

Make = Callable[[Any], torch.optim.Optimizer]


def adasum(tensors: list[np.ndarray]) -> np.ndarray:
    """Neighbours first, then pairs of pairs, and so on."""
    if len(tensors) == 1:
        return tensors[0]
    pairs = zip(tensors[::2], tensors[1::2], strict=True)
    return adasum([pair(a, b) for a, b in pairs])


def pair(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    dot, first, second = np.vdot(a, b), np.vdot(a, a), np.vdot(b, b)
    tiny = np.sqrt(np.finfo(np.float64).tiny)
    keep_a = 1.0 - dot / (2.0 * first) if first >= tiny else 1.0
    keep_b = 1.0 - dot / (2.0 * second) if second >= tiny else 1.0
    return keep_a * a + keep_b * b


class Reference:
    """All ranks in this process: a model and an optimizer each, with equal weights at every step.

    Each optimizer keeps a state of its own, and what it would add is what is combined.
    """

    def __init__(self, make: Make, model: Callable[[], Model] = new_model) -> None:
        self.models = [model() for _ in range(hvd.size())]
        self.optimizers = [make(m.parameters()) for m in self.models]

    def step(self, losses: Callable[[int, Model], list[torch.Tensor]]) -> None:
        deltas: list[list[np.ndarray]] = []
        starts = [p.detach().clone() for p in self.models[0].parameters()]
        for rank, (model, optimizer) in enumerate(zip(self.models, self.optimizers, strict=True)):
            optimizer.zero_grad()
            for loss in losses(rank, model):
                loss.backward()
            optimizer.step()
            deltas.append(
                [
                    (p.detach() - start).numpy()
                    for p, start in zip(model.parameters(), starts, strict=True)
                ]
            )
        for index, start in enumerate(starts):
            combined = torch.from_numpy(adasum([delta[index] for delta in deltas]))
            for model in self.models:
                with torch.no_grad():
                    list(model.parameters())[index].copy_(start + combined)

    def check(self, got: Model, what: object, tolerance: float = 1e-12) -> None:
        for name, parameter in self.models[0].named_parameters():
            other = got.get_parameter(name)
            difference = (other - parameter).abs().max().item()
            assert difference <= tolerance, (what, name, difference)
            every = hvd.allgather(other.detach().reshape(1, -1))
            assert (every == every[0]).all(), (what, name, "differs between ranks")


def rows_of(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = batch(step)
    cut = slice(SHARE * rank, SHARE * (rank + 1))
    return inputs[cut], targets[cut]


def losses_of(step: int, passes: int = 1) -> Callable[[int, Model], list[torch.Tensor]]:
    return lambda rank, model: [
        loss_of(model, *rows_of(rank, step + part)) for part in range(passes)
    ]


def training() -> None:
    for make in (
        sgd,
        adam,
        lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01),
        lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
        lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    ):
        reference, model = Reference(make), new_model()
        optimizer = distributed(model, make, op=hvd.Adasum)
        assert isinstance(optimizer, type(make(model.parameters())))
        for step in range(4):
            optimizer.zero_grad()
            backward(model, step)
            assert any((p.grad != 0).any() for p in model.parameters())
            optimizer.synchronize()  # nothing to be seen
            optimizer.step()
            reference.step(losses_of(step))
        reference.check(model, optimizer, 1e-9)


def equal_and_orthogonal_steps() -> None:
    weight = torch.nn.Parameter(torch.zeros(hvd.size()))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=hvd.Adasum)
    weight.sum().backward()
    optimizer.step()
    assert torch.equal(weight.detach(), -torch.ones(hvd.size()))  # equal ones are averaged
    optimizer.zero_grad()
    weight[hvd.rank()].backward()
    optimizer.step()
    assert torch.equal(weight.detach(), -2 * torch.ones(hvd.size()))  # orthogonal ones are added


def several_backward_passes() -> None:
    reference, model = Reference(sgd), new_model()
    optimizer = distributed(model, op=hvd.Adasum, backward_passes_per_step=2)
    for step in range(0, 6, 2):
        optimizer.zero_grad()
        backward(model, step)
        backward(model, step + 1)
        optimizer.step()
        reference.step(losses_of(step, 2))
    reference.check(model, "two passes")
    optimizer.zero_grad()
    backward(model, 7)  # one pass of two: the step takes it as it is
    optimizer.step()
    reference.step(losses_of(7))
    reference.check(model, "one pass of two")


def compression() -> None:
    reference, model = Reference(sgd), new_model()
    optimizer = distributed(model, op=hvd.Adasum, compression=hvd.Compression.fp16)
    for step in range(3):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
        reference.step(losses_of(step))
    reference.check(model, "fp16", 1e-2)


def parameter_groups_without_names() -> None:
    """Default names of two groups do not collide, and each group keeps its settings."""

    def make(parameters: Any) -> torch.optim.Optimizer:
        everything = list(parameters)
        groups = [{"params": everything[:3]}, {"params": everything[3:], "lr": 0.01}]
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9)

    reference, model = Reference(make), new_model()
    optimizer = hvd.DistributedOptimizer(make(model.parameters()), op=hvd.Adasum)
    for step in range(3):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
        reference.step(losses_of(step))
        assert [len(group["params"]) for group in optimizer.param_groups] == [3, 3]
    reference.check(model, "two groups")


def missing_frozen_and_closures() -> None:
    def losses(rank: int, model: Model) -> list[torch.Tensor]:
        inputs, targets = rows_of(rank, 0)
        if rank == 0:  # the others use the first layers only
            return [loss_of(model, inputs, targets)]
        return [model[:3](inputs).square().mean()]

    reference, model = Reference(sgd), new_model()
    optimizer = distributed(model, op=hvd.Adasum)

    def evaluate() -> torch.Tensor:
        optimizer.zero_grad()
        [loss] = losses(hvd.rank(), model)
        loss.backward()
        return loss

    assert isinstance(optimizer.step(evaluate), torch.Tensor)
    reference.step(losses)
    reference.check(model, "missing gradients")
    for one in (*reference.models, model):
        one[2].requires_grad_(False)
    for chosen in (*reference.optimizers, optimizer):
        chosen.zero_grad()
    before = model[2].weight.clone()
    optimizer.step(evaluate)
    reference.step(losses)
    reference.check(model, "frozen")
    assert torch.equal(model[2].weight, before)


def graph_is_left_alone() -> None:
    """A second backward pass through the same graph: the weights look unchanged in between."""
    model = new_model()
    optimizer = distributed(model, op=hvd.Adasum)
    inputs, _ = batch(0)
    inputs = inputs.requires_grad_()
    output = model(inputs).sum()
    before = [p.detach().clone() for p in model.parameters()]
    output.backward(retain_graph=True)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    torch.autograd.grad(output, inputs)
    optimizer.step()


def hooks_schedules_and_state() -> None:
    model = new_model()
    inner = sgd(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(inner, 1, 0.5)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters(), op=hvd.Adasum)
    calls = []
    optimizer.register_step_pre_hook(lambda *unused: calls.append("before"))
    optimizer.register_step_post_hook(lambda *unused: calls.append("after"))
    reference = Reference(sgd)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(3):
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()
            reference.step(losses_of(step))
            schedule.step()
            for other in reference.optimizers:
                other.param_groups[0]["lr"] *= 0.5
    assert optimizer.param_groups[0]["lr"] == 0.0125
    assert calls == ["before", "after"] * 3
    reference.check(model, "learning rates")
    twin_model, twin = copy.deepcopy((model, optimizer))
    for one, chosen in ((model, optimizer), (twin_model, twin)):
        chosen.load_state_dict(chosen.state_dict())
        chosen.zero_grad()
        backward(one, 5)
        chosen.step()
    reference.step(losses_of(5))
    reference.check(model, "after load_state_dict")
    reference.check(twin_model, "deepcopy")
    assert calls == ["before", "after"] * 4


def misuse() -> None:
    model = new_model()
    optimizer = distributed(model, op=hvd.Adasum)
    error_of(optimizer.skip_synchronize, AssertionError, "skip_synchronize", "Adasum")
    backward(model, 0)
    error_of(optimizer.zero_grad, AssertionError, "zero_grad()")
    error_of(lambda: backward(model, 0), AssertionError, "backward_passes_per_step", "'3.")
    optimizer.step()
    error_of(
        lambda: distributed(new_model(), op=hvd.Adasum, process_set=front), NotImplementedError
    )
    error_of(
        lambda: distributed(new_model(), torch.optim.LBFGS, op=hvd.Adasum), ValueError, "LBFGS"
    )
    error_of(
        lambda: distributed(new_model(), op=hvd.Adasum, backward_passes_per_step=0),
        ValueError,
        "must be > 0",
    )
    odd = torch.nn.Parameter(torch.ones(3 if hvd.rank() == 0 else 2))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([odd], lr=0.1), [("odd", odd)], op=hvd.Adasum
    )
    odd.sum().backward()
    error_of(optimizer.step, hvd.HorovodInternalError, "'odd'", "Mismatched")
    assert torch.equal(odd.detach(), torch.ones_like(odd))  # as if there had been no step
    assert torch.equal(hvd.allreduce(torch.ones(2), op=hvd.Sum)[0], torch.tensor(float(hvd.size())))


def wrong_number_of_ranks() -> None:
    error_of(
        lambda: distributed(new_model(), op=hvd.Adasum), NotImplementedError, "power of two", "3"
    )


CHECKS = (
    training,
    equal_and_orthogonal_steps,
    several_backward_passes,
    compression,
    parameter_groups_without_names,
    missing_frozen_and_closures,
    graph_is_left_alone,
    hooks_schedules_and_state,
    misuse,
)
