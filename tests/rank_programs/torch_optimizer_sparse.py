"""Rank programs: sparse gradients that some ranks do not have, or have in another form."""

from __future__ import annotations

from typing import Any

import torch
from rank_programs.torch_cases import error_of

import hvdtune.torch as hvd


class Words(torch.nn.Module):
    """An embedding whose gradient is sparse, dense or missing, as the call has it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.table = torch.nn.Parameter(torch.randn(6, 3, dtype=torch.float64))
        self.scale = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, word: int | None, form: str = "sparse") -> torch.Tensor:
        if word is None:
            return self.scale.sum()
        index = torch.tensor([word, word])
        rows = torch.nn.functional.embedding(index, self.table, sparse=form != "dense")
        if form == "both":  # a sparse and a dense part in one backward pass make a dense gradient
            return (rows * self.scale).sum() + self.table[word].sum()
        return (rows * self.scale).sum()


def make(**options: Any) -> tuple[Words, Any]:
    model = Words()
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    return model, hvd.DistributedOptimizer(inner, model.named_parameters(), **options)


def train(steps: list[list[tuple[int | None, str]]], **options: Any) -> None:
    """Every step has a call for every rank; compares with the average over all calls."""
    model, optimizer = make(**options)
    alone = Words()
    plain = torch.optim.SGD(alone.parameters(), lr=1.0)
    for number, calls in enumerate(steps):
        optimizer.zero_grad()
        word, form = calls[hvd.rank() % len(calls)]
        model(word, form).backward()
        optimizer.step()
        plain.zero_grad()
        losses = [alone(*calls[rank % len(calls)]) for rank in range(hvd.size())]
        factor = 1.0 if options.get("op") == hvd.Sum else 1.0 / hvd.size()
        (factor * torch.stack(losses).sum()).backward()
        for parameter in alone.parameters():  # a parameter without gradient has zeros
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()
        plain.step()
        for name, parameter in alone.named_parameters():
            got = model.get_parameter(name)
            assert torch.allclose(got, parameter, atol=1e-12), (number, name, got, parameter)
            every = hvd.allgather(got.detach().reshape(1, -1))
            assert (every == every[0]).all(), (number, name)


MISSING = (None, "")


def missing_at_first() -> None:
    for options in ({}, {"op": hvd.Sum}, {"sparse_as_dense": True}):
        train([[(1, "sparse"), MISSING], [MISSING, (2, "sparse")], [(3, "sparse")]], **options)


def missing_on_all_ranks_at_first() -> None:
    train([[MISSING], [MISSING], [(1, "sparse"), MISSING], [MISSING, (2, "sparse")]])


def dense_on_some_ranks() -> None:
    mixed = [(1, "sparse"), (2, "both")]
    for options in ({}, {"op": hvd.Sum}, {"sparse_as_dense": True}):
        # At first, when nobody knows; then with what was agreed on.
        train([mixed, mixed, [MISSING, (3, "sparse")], [(3, "dense"), MISSING]], **options)
        train([[(1, "sparse")], mixed, [(2, "dense"), (3, "sparse")], [MISSING]], **options)
        train([[(1, "dense")], mixed, [(2, "sparse")]], **options)
    train([mixed, mixed], compression=hvd.Compression.none, backward_passes_per_step=2)


def results_stay_sparse() -> None:
    model, optimizer = make()
    for step in range(2):
        optimizer.zero_grad()
        model(1 if hvd.rank() == 0 else None).backward()
        optimizer.step()
        assert model.table.grad.is_sparse, step
    model, optimizer = make(sparse_as_dense=True)
    model(1).backward()
    optimizer.step()
    assert model.table.grad.is_sparse


def another_default_device() -> None:
    """A gradient that a rank lacks is on the device of its parameter."""
    model, optimizer = make()
    for _step in range(2):
        expected = 2 * model.scale.detach() / hvd.size()  # rank 0 uses the word twice
        optimizer.zero_grad()
        model(1 if hvd.rank() == 0 else None).backward()
        with torch.device("meta"):
            optimizer.step()
        gradient = model.table.grad
        assert gradient.is_sparse
        assert gradient.device.type == "cpu"
        assert torch.allclose(gradient.to_dense()[1], expected)


def reductions_without_sparse_form() -> None:
    for op in (hvd.Min, hvd.Max, hvd.Product):
        model, optimizer = make(op=op)
        model(1 if hvd.rank() == 0 else None).backward()
        error_of(optimizer.step, ValueError, "'table'", "sparse_as_dense")
        model, optimizer = make(op=op, sparse_as_dense=True)
        model(hvd.rank()).backward()
        optimizer.step()
    assert torch.equal(hvd.allreduce(torch.ones(2), op=hvd.Max), torch.ones(2))


CHECKS = (
    missing_at_first,
    missing_on_all_ranks_at_first,
    dense_on_some_ranks,
    results_stay_sparse,
    another_default_device,
    reductions_without_sparse_form,
)
