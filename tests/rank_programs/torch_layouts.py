"""Tensors whose memory is not simply their values, given to every collective."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

import hvdtune.torch as hvd

Make = Callable[[], Any]


def makers() -> dict[str, Make]:
    dense = torch.arange(16.0).reshape(4, 4)
    parts = [torch.ones(2), torch.ones(3)]
    return {
        "csr": dense.to_sparse_csr,
        "csc": dense.to_sparse_csc,
        "bsr": lambda: dense.to_sparse_bsr((2, 2)),
        "bsc": lambda: dense.to_sparse_bsc((2, 2)),
        "coo": dense.to_sparse,
        "mkldnn": dense.to_mkldnn,
        "quantized": lambda: torch.quantize_per_tensor(dense, 0.1, 0, torch.qint8),
        "nested": lambda: torch.nested.nested_tensor(parts),
        "jagged": lambda: torch.nested.nested_tensor(parts, layout=torch.jagged),
        "meta": lambda: torch.ones(4, 4, device="meta"),
        "complex": lambda: torch.ones(4, 4, dtype=torch.complex64),
        "conjugate": lambda: torch.ones(4, 4, dtype=torch.complex64).conj(),
        "negated": lambda: torch._neg_view(torch.ones(4, 4)),
        "zeros without memory": lambda: torch._efficientzerotensor((4, 4)),
    }


def collectives() -> dict[str, Callable[[Any], Any]]:
    return {
        "allreduce": hvd.allreduce,
        "allreduce named": lambda t: hvd.allreduce(t, name="n"),
        "allreduce fp16": lambda t: hvd.allreduce(t, compression=hvd.Compression.fp16),
        "allreduce_": lambda t: hvd.allreduce_(t, name="n"),
        "allreduce_async": hvd.allreduce_async,
        "allreduce_async_": hvd.allreduce_async_,
        "grouped_allreduce": lambda t: hvd.grouped_allreduce([torch.ones(1), t]),
        "grouped_allreduce_": lambda t: hvd.grouped_allreduce_([torch.ones(1), t]),
        "allgather": lambda t: hvd.allgather(t, name="n"),
        "allgather_async": hvd.allgather_async,
        "grouped_allgather": lambda t: hvd.grouped_allgather([t]),
        "broadcast": lambda t: hvd.broadcast(t, 0, name="n"),
        "broadcast_": lambda t: hvd.broadcast_(t, 0, name="n"),
        "broadcast_async_": lambda t: hvd.broadcast_async_(t, 0),
        "alltoall": lambda t: hvd.alltoall(t, name="n"),
        "reducescatter": lambda t: hvd.reducescatter(t, name="n"),
        "grouped_reducescatter": lambda t: hvd.grouped_reducescatter([t]),
        "broadcast_parameters": lambda t: hvd.broadcast_parameters({"w": t}, 0),
    }


def refusals() -> dict[tuple[str, str], str]:
    """By tensor and collective: the error."""
    warnings.simplefilter("ignore")
    hvd.init()
    answers = {}
    for tensor, make in makers().items():
        for collective, call in collectives().items():
            try:
                answer = f"result: {call(make())}"
            except Exception as error:
                answer = f"{type(error).__name__}: {error}"
            answers[tensor, collective] = answer
    assert hvd.allreduce(torch.ones(1)).item() == 1.0  # and nothing is broken
    return answers


def gradients() -> list[str]:
    """What the optimizer says of gradients of such layouts."""
    warnings.simplefilter("ignore")
    hvd.init()
    answers = []
    for name in ("negated", "zeros without memory"):
        for groups in (None, 1):
            weight = torch.nn.Parameter(torch.ones(4, 4))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([weight], lr=0.1), [("w", weight)], groups=groups
            )
            weight.grad = makers()[name]()
            try:
                optimizer.step()
                answers.append("stepped")
            except ValueError as error:
                answers.append(str(error))
    return answers


def sparse_gradients() -> list[str]:
    """The same of a compressed sparse parameter, whose gradient torch lets be compressed."""
    warnings.simplefilter("ignore")
    hvd.init()
    answers = []
    for name in ("csr", "csc", "bsr", "mkldnn"):
        weight = torch.nn.Parameter(makers()[name](), requires_grad=True)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), [("w", weight)])
        weight.grad = makers()[name]()
        try:
            optimizer.step()
            answers.append("stepped")
        except ValueError as error:
            answers.append(str(error))
    return answers
