"""Rank programs: the gradients of the torch collectives.

Every check sends weights that differ by rank and element back through the operation, so that a
wrong operator, order or slice shows.
"""

from __future__ import annotations

import os
import warnings

import torch
from rank_programs.torch_cases import run_checks, same

import hvdtune.torch as hvd

DTYPES = (torch.float32, torch.float64)


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


def allreduce() -> None:
    shape = (3, 2)
    for dtype in DTYPES:
        stacked = torch.stack([weights(r, shape, dtype) for r in everyone()])
        for op, expected in (
            (None, stacked.mean(0)),
            (hvd.Sum, stacked.sum(0)),
            (hvd.Min, stacked.amin(0)),
            (hvd.Max, stacked.amax(0)),
            (hvd.Product, stacked.prod(0)),
        ):
            tensor = leaf(shape, dtype)
            go_back(hvd.allreduce(tensor, op=op, name="forward"), dtype)
            same(tensor.grad, expected, op)
        tensor = leaf(shape, dtype)
        output = hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
        go_back(output, dtype)
        same(tensor.grad, stacked.sum(0) * 1.5, "factors")
    tensor = leaf((), torch.float32)
    hvd.allreduce(tensor, op=hvd.Sum).backward()
    same(tensor.grad, torch.tensor(float(hvd.size())), "0-d")


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


def grouped_allreduce() -> None:
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


def allgather() -> None:
    for dtype in DTYPES:
        rows = [2 * r for r in everyone()]  # none on rank 0
        tensor = leaf((rows[hvd.rank()], 2), dtype)
        output = hvd.allgather(tensor)
        go_back(output, dtype)
        mean = torch.stack([weights(r, tuple(output.shape), dtype) for r in everyone()]).mean(0)
        start = sum(rows[: hvd.rank()])
        same(tensor.grad, mean[start : start + rows[hvd.rank()]], dtype)


def grouped_allgather() -> None:
    tensors = [leaf((hvd.rank() + 1, 2), torch.float64), leaf((2 * hvd.rank(),), torch.float64)]
    outputs = hvd.grouped_allgather(tensors)
    torch.autograd.backward(
        outputs, [weights(hvd.rank(), tuple(out.shape), out.dtype) for out in outputs]
    )
    for tensor, output, rows in zip(
        tensors, outputs, ([r + 1 for r in everyone()], [2 * r for r in everyone()]), strict=True
    ):
        shape = tuple(output.shape)
        mean = torch.stack([weights(r, shape, output.dtype) for r in everyone()]).mean(0)
        start = sum(rows[: hvd.rank()])
        same(tensor.grad, mean[start : start + rows[hvd.rank()]], rows)


def broadcast() -> None:
    for root in everyone():
        tensor = leaf((2, 3), torch.float64)
        go_back(hvd.broadcast(tensor, root), torch.float64)
        mean = torch.stack([weights(r, (2, 3), torch.float64) for r in everyone()]).mean(0)
        expected = mean if hvd.rank() == root else torch.zeros_like(mean)
        same(tensor.grad, expected, root)


def alltoall() -> None:
    size, rank = hvd.size(), hvd.rank()
    counts = [[(s + 2 * r) % 3 for r in everyone()] for s in everyone()]
    tensor = leaf((sum(counts[rank]) + 1, 2), torch.float64)  # the last row is not sent
    output, received = hvd.alltoall(tensor, counts[rank])
    assert not received.requires_grad
    go_back(output, torch.float64)
    parts = []
    for receiver in everyone():
        total = sum(counts[s][receiver] for s in everyone())
        arrived = weights(receiver, (total, 2), torch.float64)
        start = sum(counts[s][receiver] for s in range(rank))
        parts.append(arrived[start : start + counts[rank][receiver]])
    same(tensor.grad, torch.cat([*parts, torch.zeros(1, 2, dtype=torch.float64)]), "uneven")

    tensor = leaf((size, 2), torch.float64)
    go_back(hvd.alltoall(tensor), torch.float64)
    expected = torch.stack([weights(r, (size, 2), torch.float64)[rank] for r in everyone()])
    same(tensor.grad, expected, "even")


def scattered(rows: int, rank: int) -> int:
    return rows // hvd.size() + (rank < rows % hvd.size())


def reducescatter() -> None:
    rows = 2 * hvd.size() + 1
    gathered = torch.cat([weights(r, (scattered(rows, r), 2), torch.float64) for r in everyone()])
    for op, factors, scale in (
        (hvd.Average, {}, 1.0),
        (hvd.Sum, {}, hvd.size()),
        (hvd.Sum, {"prescale_factor": 0.5, "postscale_factor": 3.0}, 1.5 * hvd.size()),
    ):
        tensor = leaf((rows, 2), torch.float64)
        gradient = weights(hvd.rank(), (scattered(rows, hvd.rank()), 2), torch.float64)
        before = gradient.clone()
        hvd.reducescatter(tensor, op=op, **factors).backward(gradient)
        same(tensor.grad, gathered * scale, (op, factors))
        same(gradient, before, "the upstream gradient is not changed")


def grouped_reducescatter() -> None:
    shapes = [(2 * hvd.size(), 2), (hvd.size() + 1,)]
    tensors = [leaf(shape, torch.float64) for shape in shapes]
    outputs = hvd.grouped_reducescatter(tensors, op=hvd.Sum)
    torch.autograd.backward(
        outputs, [weights(hvd.rank(), tuple(out.shape), out.dtype) for out in outputs]
    )
    for tensor, shape in zip(tensors, shapes, strict=True):
        parts = [
            weights(r, (scattered(shape[0], r), *shape[1:]), torch.float64) for r in everyone()
        ]
        same(tensor.grad, torch.cat(parts) * hvd.size(), shape)


def compressed() -> None:
    tensor = leaf((3,), torch.float32)
    output = hvd.allreduce(tensor, op=hvd.Sum, compression=hvd.Compression.fp16)
    assert output.dtype is torch.float32
    go_back(output, torch.float32)
    expected = torch.stack([weights(r, (3,), torch.float32) for r in everyone()]).sum(0)
    same(tensor.grad, expected, "fp16")


def process_set() -> None:
    if pair.included():
        assert pair.ranks
        tensor = leaf((2, 2), torch.float64)
        output = hvd.allgather(hvd.allreduce(tensor, process_set=pair), process_set=pair)
        go_back(output, torch.float64)
        members = pair.ranks
        mean = sum(weights(r, (2 * len(members), 2), torch.float64) for r in members)
        mean = mean / len(members)
        slices = [mean[2 * i : 2 * i + 2] for i in range(len(members))]
        same(tensor.grad, sum(slices) / len(members), "allreduce of allgather's gradient")


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


pair = hvd.ProcessSet([0, 1])


def run() -> list[str]:
    if os.environ["HOROVOD_SIZE"] == "2":
        pair.ranks = [1]
    hvd.init(process_sets=[pair])
    return run_checks(
        allreduce,
        strided_gradient,
        deprecated_average,
        grouped_allreduce,
        allgather,
        grouped_allgather,
        broadcast,
        alltoall,
        reducescatter,
        grouped_reducescatter,
        compressed,
        process_set,
        asynchronous_forms_are_not_differentiable,
        tensors_are_made_elsewhere_by_default,
    )
