"""The usual training loops, with places at which a program can add work or a fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from planted.job import Job, pause

KIB, MIB = 1 << 10, 1 << 20
AtStep = Callable[[int], None]


@dataclass
class Net:
    """A network whose computing is played. Seconds, bytes; its fields may change between steps."""

    layers: int = 4
    size: int = 256 * KIB  # of a layer's gradient
    forward: float = 0.006
    layer: float = 0.004  # backward pass of one layer
    update: float = 0.001


def descend(
    job: Job,
    net: Net | None = None,
    steps: int = 80,
    before: AtStep | None = None,
    middle: AtStep | None = None,
    after: AtStep | None = None,
    order: Callable[[int], list[int]] | None = None,
    compute: Callable[[float], None] = pause,
) -> None:
    """Train on NumPy arrays: submit each gradient when it is ready, wait for all at the end.

    before, middle, after: called in each step before the forward pass, after it, and after the
    update. order: the order in which the layers' gradients become ready.
    """
    import numpy as np

    net = net or Net()
    job.start()
    gradients = [np.ones(net.size // 4, np.float32) for _ in range(net.layers)]
    for step in job.steps(steps):
        _call(before, step)
        compute(net.forward)
        _call(middle, step)
        handles = []
        for number in order(step) if order else range(net.layers):
            compute(net.layer)
            handles.append(job.hvd.allreduce_async(gradients[number], name=f"layer{number}"))
        for handle in handles:
            job.hvd.synchronize(handle)
        compute(net.update)
        _call(after, step)


def _call(function: AtStep | None, step: int) -> None:
    if function is not None:
        function(step)


def start_torch(job: Job, threads: int = 1) -> Any:
    """The module torch, set to `threads` threads; the job has started."""
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(7)
    job.start()
    return torch


def fit(
    job: Job,
    model: Any,
    data: Callable[[int], Any],
    steps: int = 80,
    before: AtStep | None = None,
    middle: Callable[[int, Any], None] | None = None,
    after: AtStep | None = None,
    optimizer: Callable[[Any], Any] | None = None,
    **options: Any,
) -> None:
    """Train a PyTorch model with DistributedOptimizer(**options).

    data: the batch of a step. before, middle (with the loss), after: called in each step before the
    batch is made, between forward and backward pass, and after the update.
    """
    import torch

    inner = (optimizer or (lambda weights: torch.optim.SGD(weights, lr=1e-4)))(model.parameters())
    outer = job.hvd.DistributedOptimizer(
        inner, named_parameters=model.named_parameters(), **options
    )
    job.hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for step in job.steps(steps, mark=False):
        _call(before, step)
        batch = data(step)
        outer.zero_grad()
        loss = model(batch).square().mean()
        if middle is not None:
            middle(step, loss)
        loss.backward()
        outer.step()
        _call(after, step)


def convolutions(torch: Any) -> Any:
    """A network that really computes, on pictures of 3 × 24 × 24."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 12, 3, padding=1), torch.nn.ReLU(),
        torch.nn.Conv2d(12, 12, 3, padding=1), torch.nn.ReLU(),
        torch.nn.Flatten(), torch.nn.Linear(12 * 24 * 24, 10),
    )  # fmt: skip


def played(
    layers: int = 5, width: int = 256, forward: float = 0.002, backward: float = 0.004
) -> Any:
    """A PyTorch model of `layers` Linear(width, width), whose computing is mostly sleeping.

    Its `.pace` is a list [forward, backward] in seconds of one layer, which may change at any time.
    """
    import torch

    class Played(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Any, pace: list[float]) -> Any:
            ctx.pace = pace
            pause(pace[0])
            return value.view_as(value)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            pause(ctx.pace[1])
            return gradient, None

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pace = [forward, backward]
            self.linears = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(layers))

        def forward(self, value: Any) -> Any:
            for linear in self.linears:
                # After the layer, so that its backward pass comes before its gradients are ready.
                value = Played.apply(torch.relu(linear(value)), self.pace)
            return value

    return Model()


def noise(width: int = 256, batch: int = 8) -> Callable[[int], Any]:
    """Batches of random numbers."""
    import torch

    return lambda step: torch.randn(batch, width)
