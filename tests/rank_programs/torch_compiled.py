"""Rank programs: torch.compile beside hvdtune's functions and optimizers, with no C++ compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from rank_programs.torch_training import (
    backward,
    batch,
    loss_of,
    new_model,
    share_of,
    train_alone,
)

import hvdtune.torch as hvd
from hvdtune.torch.optimizer.reducer import GradientReducer


class Counter:
    """A backend that counts the graphs it is given."""

    def __init__(self, backend: str = "aot_eager") -> None:
        from torch._dynamo import lookup_backend

        self.graphs = 0
        self._compile = lookup_backend(backend)

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        self.graphs += 1
        return self._compile(graph, inputs)


def close(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def a_compiled_model_trains() -> None:
    """As one process alone does on all rows, in each step."""
    alone, counter = new_model(), Counter()
    train_alone(alone, torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9))
    model = new_model()
    compiled = torch.compile(model, backend=counter)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(compiled.parameters(), lr=0.1, momentum=0.9), compiled.named_parameters()
    )
    for step in range(5):
        optimizer.zero_grad()
        backward(compiled, step)
        optimizer.step()
    assert counter.graphs == 1
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        close(one, other)


def a_compiled_step_trains() -> None:
    """The same where all of a step is in a compiled function."""
    alone, counter = new_model(), Counter()
    train_alone(alone, torch.optim.SGD(alone.parameters(), lr=0.1))
    model = new_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )

    @torch.compile(backend=counter)
    def train(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss_of(model, inputs, targets).backward()
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()

    graphs = []
    for step in range(5):
        inputs, targets = batch(step)
        train(share_of(inputs), share_of(targets))
        graphs.append(counter.graphs)
    assert graphs[0] >= 1
    assert graphs[1:] == graphs[1:2] * 4, graphs
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        close(one, other)


def graphs_end_at_collectives() -> None:
    """What is compiled is compiled once: whatever the name, and with what comes of a handle."""
    rank, ranks = hvd.rank(), hvd.size()
    everybody = sum(range(1, ranks + 1))

    def direct(x: torch.Tensor, name: str) -> torch.Tensor:
        return hvd.allreduce(x * 2, name=name, op=hvd.Sum) + 1

    def in_place(x: torch.Tensor, name: str) -> torch.Tensor:
        doubled = x * 2
        hvd.allreduce_(doubled, name=name, op=hvd.Sum)
        return doubled + 1

    def with_handle(x: torch.Tensor, name: str) -> torch.Tensor:
        handle = hvd.allreduce_async(x * 2, name=name, op=hvd.Sum)
        return hvd.synchronize(handle) + 1

    for function in (direct, in_place, with_handle):
        counter = Counter()
        graphs = []
        compiled = torch.compile(function, backend=counter)
        for call in range(12):
            result = compiled(torch.full((5,), float(rank + 1)), f"{function.__name__}.{call % 3}")
            close(result, torch.full((5,), 2.0 * everybody + 1))
            graphs.append(counter.graphs)
        assert graphs[0] >= 1, function.__name__
        assert graphs == graphs[:1] * 12, (function.__name__, graphs)


def gradients_pass_collectives() -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        return (hvd.allreduce(x * 3, op=hvd.Sum) ** 2).sum()

    results = []
    for function in (loss, torch.compile(loss, backend="aot_eager")):
        x = torch.full((4,), float(hvd.rank() + 1), requires_grad=True)
        function(x).backward()
        assert x.grad is not None
        results.append(x.grad)
    close(*results)


def normalised_over_all_ranks() -> None:
    torch.manual_seed(hvd.rank())
    x = torch.randn(6, 4)
    eager = torch.nn.Sequential(torch.nn.Linear(4, 4), hvd.SyncBatchNorm(4), torch.nn.ReLU())
    hvd.broadcast_parameters(eager.state_dict(), root_rank=0)
    compiled = torch.compile(eager, backend="aot_eager")
    close(compiled(x), eager(x))


def refusal() -> str:
    """What a function that must be one graph is told; nothing was sent to the other ranks."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return hvd.allreduce(x * 2, name="refused") + 1

    compiled: Callable[[torch.Tensor], torch.Tensor]
    compiled = torch.compile(function, backend="eager", fullgraph=True)
    try:
        compiled(torch.ones(3))
    except torch._dynamo.exc.Unsupported as error:
        return str(error)
    return ""


def nothing_of_hvdtune_is_compiled() -> None:
    from torch._dynamo import trace_rules

    for function in (hvd.allreduce, hvd.DistributedOptimizer, GradientReducer.synchronize):
        assert trace_rules.check(function.__code__), function
    assert not trace_rules.check(batch.__code__)  # as others' functions are


def everything() -> str:
    """All of the above; what the refusal says."""
    hvd.init()
    for program in (
        graphs_end_at_collectives,
        gradients_pass_collectives,
        a_compiled_model_trains,
        a_compiled_step_trains,
        normalised_over_all_ranks,
        nothing_of_hvdtune_is_compiled,
    ):
        program()
    told = refusal()
    after = hvd.allreduce(torch.ones(2), name="after", op=hvd.Sum)
    close(after, hvd.size() * torch.ones(2))
    hvd.shutdown()
    return told
