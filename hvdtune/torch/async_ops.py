"""The collectives that return a handle at once, and waiting for handles.

Every function returns an int handle for ``poll`` and ``synchronize``; the result is what
``synchronize`` returns. Inputs are kept alive until then, and must not be changed before. Names
match tensors between ranks; without one, calls match by their order. Errors of the call itself
(tensor type, layout, process set, a name already in flight) are raised at once: ValueError.
What only the ranks together can find out (different shapes, a dead rank, a shutdown) is raised by
``synchronize``: HorovodInternalError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch

from hvdtune.core import operations, results
from hvdtune.core.operations import Completed, barrier, join, poll, synchronize
from hvdtune.core.process_sets import ProcessSet, global_process_set
from hvdtune.core.reduce_ops import Average
from hvdtune.torch.arguments import allreduce_op, split_sizes
from hvdtune.torch.buffers import CODES, as_buffer, as_buffers, group_members, tensor_from

__all__ = [
    "allgather_async",
    "allreduce_async",
    "allreduce_async_",
    "allreduce_at_once",
    "alltoall_async",
    "at_once",
    "barrier",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather_async",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "reducescatter_async",
    "sparse_allreduce_async",
    "synchronize",
]


def _given(result: Any) -> Callable[[Completed], Any]:
    """A ``finish`` that returns what is known before the operation ran: the output's tensors."""
    return lambda completed: result


def _first(dtype: torch.dtype, completed: Completed) -> torch.Tensor:
    """The only output of an operation whose result's shape the engine decides."""
    return tensor_from(completed.outputs[0], dtype)


def _all(dtypes: Sequence[torch.dtype], completed: Completed) -> tuple[torch.Tensor, ...]:
    """The outputs of a group whose results' shapes the engine decides."""
    return tuple(
        tensor_from(array, dtype) for array, dtype in zip(completed.outputs, dtypes, strict=True)
    )


def _fresh(tensor: torch.Tensor, rows: int | None = None) -> torch.Tensor:
    """An uninitialised tensor of the type and shape of ``tensor``, or with so many rows.

    Dense in memory.
    """
    shape = tensor.shape if rows is None else (rows, *tensor.shape[1:])
    dtype = tensor.dtype
    if not tensor.is_cpu:
        return torch.empty(shape, dtype=dtype, device=tensor.device)
    size = math.prod(shape) * tensor.element_size()
    if size < results.LARGE_RESULT_BYTES:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.frombuffer(results.result_memory(size), dtype=dtype).view(shape)


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start reducing ``tensor`` (same type and shape on all ranks) into a new tensor.

    ``postscale_factor * op over ranks (prescale_factor * tensor)``; ``op`` is Average unless given.
    """
    op = allreduce_op(op, average)
    source = as_buffer(tensor, "allreduce")
    output = _fresh(tensor)
    return operations.allreduce_async(
        [source],
        [as_buffer(output, "allreduce")],
        name=name,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
        finish=_given(output),
    )


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """``allreduce_async`` in place: the result is ``tensor`` itself."""
    handle = operations.allreduce_tensor_async(
        tensor, CODES, average, name, op, prescale_factor, postscale_factor, process_set
    )
    if handle is not None:
        return handle
    op = allreduce_op(op, average)
    buffers = [as_buffer(tensor, "allreduce")]
    return operations.allreduce_async(
        buffers,
        buffers,
        name=name,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
        finish=_given(tensor),
    )


def allreduce_at_once(
    tensor: torch.Tensor,
    average: bool | None,
    name: str | None,
    op: int | None,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
) -> torch.Tensor:
    """``allreduce_async``, and wait: what is not large needs no coordinator then."""
    dense = isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided
    dense = dense and tensor.dtype in CODES and not tensor.is_nested
    if dense and name is not None and tensor.is_contiguous() and tensor.is_cpu:
        output = _fresh(tensor)
        if operations.allreduce_tensor(
            tensor, CODES, average, name, op, prescale_factor, postscale_factor, process_set, output
        ):
            return output
    return synchronize(
        allreduce_async(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    )


def at_once(
    kind: int, tensor: torch.Tensor, name: str | None, process_set: ProcessSet, *rest: Any
) -> torch.Tensor | None:
    """Any other operation, and wait: what is not large needs no coordinator then.

    ``rest``: of a broadcast the root; of a reducescatter 0, the operator and both factors. None,
    and nothing is submitted, where only the ``_async`` function knows what to do, or to say.
    """
    if name is None:
        return None
    done = operations.exchange_at_once(kind, tensor, CODES, name, process_set, _fresh, *rest)
    return tensor_from(done[0][0], tensor.dtype) if type(done) is tuple else done


def grouped_allreduce_async(
    tensors: Iterable[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start reducing ``tensors`` as one: all of them are reduced together or none is.

    The result is a tuple of new tensors; types and shapes may differ between the members.
    """
    op = allreduce_op(op, average)
    members = group_members(tensors, "grouped_allreduce")
    sources = as_buffers(members, "grouped_allreduce")
    outputs = tuple(_fresh(tensor) for tensor in members)
    return operations.allreduce_async(
        sources,
        as_buffers(outputs, "grouped_allreduce"),
        name=name,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
        grouped=True,
        finish=_given(outputs),
    )


def grouped_allreduce_async_(
    tensors: Iterable[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """``grouped_allreduce_async`` in place: the result is a tuple of the tensors themselves."""
    op = allreduce_op(op, average)
    members = group_members(tensors, "grouped_allreduce")
    buffers = as_buffers(members, "grouped_allreduce")
    return operations.allreduce_async(
        buffers,
        buffers,
        name=name,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
        grouped=True,
        finish=_given(tuple(members)),
    )


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Start gathering the entries of a sparse COO tensor (same shape on all ranks).

    Returns a function, not a handle: calling it waits and returns the sparse result, whose
    repeated indices are not added up yet. With Average the values are divided by the number of
    ranks; any other ``op`` leaves them, which is a sum once coalesced.
    """
    if not (isinstance(tensor, torch.Tensor) and tensor.layout is torch.sparse_coo):
        raise ValueError(f"sparse_allreduce_async of {name!r} takes a sparse COO tensor.")
    # Entries are joined along the first dimension, which for indices is the second one.
    indices_handle = allgather_async(
        tensor._indices().t().contiguous(), f"{name}.indices", process_set
    )
    values_handle = allgather_async(tensor._values().contiguous(), f"{name}.values", process_set)
    shape = tensor.shape

    def wait() -> torch.Tensor:
        try:
            values = synchronize(values_handle)
        finally:
            indices = synchronize(indices_handle)
        if op == Average:
            values = values / process_set.size()
        return torch.sparse_coo_tensor(indices.t(), values, shape, check_invariants=False)

    return wait


def allgather_async(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start joining every rank's ``tensor`` along the first dimension, in the order of ranks.

    The first dimension may differ between ranks, and be 0; type and other dimensions must agree. A
    0-d tensor has no first dimension: HorovodInternalError on all ranks.
    """
    return operations.allgather_async(
        [as_buffer(tensor, "allgather")],
        name=name,
        process_set=process_set,
        finish=partial(_first, tensor.dtype),
    )


def grouped_allgather_async(
    tensors: Iterable[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """``allgather_async`` of all ``tensors`` as one; the result is a tuple."""
    members = group_members(tensors, "grouped_allgather")
    return operations.allgather_async(
        as_buffers(members, "grouped_allgather"),
        name=name,
        process_set=process_set,
        grouped=True,
        finish=partial(_all, [tensor.dtype for tensor in members]),
    )


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start copying the ``tensor`` of global rank ``root_rank`` into a new tensor on every rank."""
    source = as_buffer(tensor, "broadcast")
    output = _fresh(tensor)
    return operations.broadcast_async(
        source,
        as_buffer(output, "broadcast"),
        root_rank,
        name=name,
        process_set=process_set,
        finish=_given(output),
    )


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """``broadcast_async`` in place: every rank's ``tensor`` becomes that of ``root_rank``."""
    buffer = as_buffer(tensor, "broadcast")
    return operations.broadcast_async(
        buffer, buffer, root_rank, name=name, process_set=process_set, finish=_given(tensor)
    )


def alltoall_async(
    tensor: torch.Tensor,
    splits: Sequence[int] | torch.Tensor | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start sending ``splits[r]`` rows of ``tensor`` to rank ``r`` of the set, in order.

    ``splits`` (1-D, 32-bit integers) may sum up to less than the rows there are; without it every
    rank gets the same number. The result is ``(tensor, received_splits)``: the rows received, in
    the order of senders, and an int32 tensor of how many came from each.
    """
    source = as_buffer(tensor, "alltoall")

    def finish(completed: Completed) -> tuple[torch.Tensor, torch.Tensor]:
        received = torch.tensor(completed.received_splits, dtype=torch.int32, device="cpu")
        if isinstance(splits, torch.Tensor):
            received = received.to(splits.device)
        return _first(tensor.dtype, completed), received

    return operations.alltoall_async(
        source,
        split_sizes(splits),
        name=name,
        process_set=process_set,
        finish=finish,
    )


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start reducing ``tensor`` (same type and shape on all ranks) and cutting it into rows.

    Rank ``r`` of ``n`` gets ``rows // n`` rows, and one more if ``r < rows % n``.
    """
    return operations.reducescatter_async(
        [as_buffer(tensor, "reducescatter")],
        name=name,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
        finish=partial(_first, tensor.dtype),
    )


def grouped_reducescatter_async(
    tensors: Iterable[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """``reducescatter_async`` of all ``tensors`` as one; the result is a tuple."""
    members = group_members(tensors, "grouped_reducescatter")
    return operations.reducescatter_async(
        as_buffers(members, "grouped_reducescatter"),
        name=name,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
        grouped=True,
        finish=partial(_all, [tensor.dtype for tensor in members]),
    )
