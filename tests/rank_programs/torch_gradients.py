"""Rank programs: gradients of torch's own: what arrives, what is asked for, and where.

That every operation's gradient is its adjoint is in tests/conformance.
"""

from __future__ import annotations

import warnings

import torch
from rank_programs.torch_cases import run_checks, same

import hvdtune.torch as hvd


def everyone() -> range:
    return range(hvd.size())


def weights(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """The gradient that arrives at the output on ``rank``."""
    count = int(torch.Size(shape).numel())
    return (torch.arange(count, dtype=dtype) + 10 * rank + 1).reshape(shape)


def leaf(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return (weights(hvd.rank(), shape, dtype) / 4).requires_grad_()


def go_back(output: torch.Tensor, dtype: torch.dtype) -> None:
    output.backward(weights(hvd.rank(), tuple(output.shape), dtype))


def strided_gradient() -> None:
    # The gradient of sum() is one number, expanded with stride 0.
    tensor = leaf((4,), torch.float32)
    hvd.allreduce(tensor, op=hvd.Sum).sum().backward()
    same(tensor.grad, torch.full((4,), float(hvd.size())), "expanded")


def deprecated_average() -> None:
    tensor = leaf((2,), torch.float32)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        hvd.allreduce(tensor, average=False).sum().backward()
    same(tensor.grad, torch.full((2,), float(hvd.size())), "average=False")
    deprecated = [w for w in seen if w.category is DeprecationWarning]
    # Forward and backward; both name the script's file.
    assert len(deprecated) == 2
    assert all(w.filename == __file__ for w in deprecated)


def unused_member() -> None:
    tensors = [leaf((2, 2), torch.float64), leaf((3,), torch.float32), leaf((1,), torch.float32)]
    outputs = hvd.grouped_allreduce(tensors, op=hvd.Sum)
    for output in outputs[:2]:
        assert output.requires_grad
    loss = sum(
        (out * weights(hvd.rank(), tuple(out.shape), out.dtype)).sum().double()
        for out in outputs[:2]
    )
    loss.backward()
    for tensor in tensors[:2]:
        shape = tuple(tensor.shape)
        expected = sum(weights(r, shape, tensor.dtype) for r in everyone())
        same(tensor.grad, expected, "group")
    same(tensors[2].grad, torch.zeros(1), "a member that the loss does not use")


def compressed() -> None:
    tensor = leaf((3,), torch.float32)
    output = hvd.allreduce(tensor, op=hvd.Sum, compression=hvd.Compression.fp16)
    assert output.dtype is torch.float32
    go_back(output, torch.float32)
    expected = torch.stack([weights(r, (3,), torch.float32) for r in everyone()]).sum(0)
    same(tensor.grad, expected, "fp16")


def asynchronous_forms_are_not_differentiable() -> None:
    tensor = leaf((2,), torch.float32)
    assert not hvd.synchronize(hvd.allreduce_async(tensor)).requires_grad
    assert not hvd.synchronize(hvd.allgather_async(tensor)).requires_grad
    with torch.no_grad():
        assert not hvd.allreduce(tensor).requires_grad


def tensors_are_made_elsewhere_by_default() -> None:
    """torch.set_default_device("cuda"), say: results of CPU tensors are CPU tensors."""
    size = hvd.size()
    tensor = torch.ones(size, 2, requires_grad=True)
    with torch.device("meta"):
        for name, operation in {
            "allreduce": lambda: hvd.allreduce(tensor, name="elsewhere", op=hvd.Sum),
            "allgather": lambda: hvd.allgather(tensor),
            "grouped_allgather": lambda: hvd.grouped_allgather([tensor])[0],
            "broadcast": lambda: hvd.broadcast(tensor, 0),
            "alltoall": lambda: hvd.alltoall(tensor, splits=[1] * size)[0],
            "reducescatter": lambda: hvd.reducescatter(tensor, op=hvd.Sum),
        }.items():
            tensor.grad = None
            output = operation()
            assert output.is_cpu, name
            output.sum().backward()
            assert tensor.grad.is_cpu, name


def a_mask_in_a_group() -> None:
    """Members without a gradient, of a type without an average, do not disturb the others."""
    rank, size = hvd.rank(), hvd.size()
    rows = leaf((2, 3), torch.float64)
    mask, number = torch.tensor([True, rank == 0]), torch.tensor([rank])
    gathered, masks, numbers = hvd.grouped_allgather([rows, mask, number])
    assert masks.dtype is torch.bool
    assert numbers.tolist() == list(everyone())
    go_back(gathered, torch.float64)
    every = torch.stack([weights(r, (2 * size, 3), torch.float64) for r in everyone()])
    same(rows.grad, every.mean(0)[2 * rank : 2 * rank + 2], "beside a mask")


def run() -> list[str]:
    hvd.init()
    return run_checks(
        strided_gradient,
        deprecated_average,
        unused_member,
        a_mask_in_a_group,
        compressed,
        asynchronous_forms_are_not_differentiable,
        tensors_are_made_elsewhere_by_default,
    )
