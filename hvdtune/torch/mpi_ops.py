"""The collectives of ``horovod.torch``; those that return a handle come from async_ops.

``allreduce``, ``grouped_allreduce``, ``allgather``, ``grouped_allgather``, ``broadcast``,
``alltoall``, ``reducescatter`` and ``grouped_reducescatter`` return new tensors and support
autograd; functions whose names end in ``_`` work in place and do not. The ``_async`` function of
the same name describes parameters, results and errors; waiting can also raise
HorovodInternalError. The module has Horovod's name because scripts import from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from hvdtune.core.exceptions import HorovodInternalError
from hvdtune.core.process_sets import ProcessSet, global_process_set
from hvdtune.core.reduce_ops import Average
from hvdtune.faces import basics
from hvdtune.faces.basics import *  # noqa: F403
from hvdtune.faces.basics import _basics  # noqa: F401 (as Horovod's modules have it)
from hvdtune.torch import autograd
from hvdtune.torch.adapter import group_members
from hvdtune.torch.async_ops import (
    allgather_async,
    allreduce_async,
    allreduce_async_,
    alltoall_async,
    barrier,
    broadcast_async,
    broadcast_async_,
    collectives,
    grouped_allgather_async,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter_async,
    join,
    poll,
    reducescatter_async,
    sparse_allreduce_async,
    synchronize,
)
from hvdtune.torch.compression import Compression

__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "sparse_allreduce_async",
    "synchronize",
]
OPERATIONS = tuple(__all__)
__all__ += ["HorovodInternalError"]
__all__ += basics.__all__


allreduce_ = collectives.allreduce_
broadcast_ = collectives.broadcast_
grouped_allreduce_ = collectives.grouped_allreduce_


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce ``tensor`` (same type and shape on all ranks) over the ranks into a new tensor.

    The average, unless ``op`` is given. ``average`` is the deprecated form of ``op``.
    """
    compressed, context = compression.compress(tensor)
    reduced = autograd.run(
        autograd.Allreduce,
        compressed,
        average,
        name,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
    )
    return compression.decompress(reduced, context)


def grouped_allreduce(
    tensors: Iterable[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduce ``tensors`` together over the ranks into new tensors; an empty group gives ``[]``."""
    members = group_members(tensors, "grouped_allreduce")
    if not members:
        return []
    pairs = [compression.compress(tensor) for tensor in members]
    reduced = autograd.run(
        autograd.GroupedAllreduce,
        average,
        name,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
        *(compressed for compressed, _ in pairs),
    )
    return [
        compression.decompress(tensor, context)
        for tensor, (_, context) in zip(reduced, pairs, strict=True)
    ]


def allgather(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Join every rank's ``tensor`` along the first dimension (which may differ) in rank order."""
    return autograd.run(autograd.Allgather, tensor, name, process_set)


def grouped_allgather(
    tensors: Iterable[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Sequence[torch.Tensor]:
    """``allgather`` of all ``tensors`` together, as a tuple; an empty group gives ``[]``."""
    members = group_members(tensors, "grouped_allgather")
    return autograd.run(autograd.GroupedAllgather, name, process_set, *members) if members else []


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """A new tensor with the ``tensor`` of global rank ``root_rank``, on every rank."""
    return autograd.run(autograd.Broadcast, tensor, root_rank, name, process_set)


def alltoall(
    tensor: torch.Tensor,
    splits: Sequence[int] | torch.Tensor | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Send ``splits[r]`` rows to rank ``r`` of the set and receive what the others send here.

    Returns the received rows in the order of senders. With ``splits`` given, returns a pair of
    them and an int32 tensor of how many rows each rank has sent.
    """
    output, received_splits = autograd.run(autograd.Alltoall, tensor, splits, name, process_set)
    return output if splits is None else (output, received_splits)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduce ``tensor`` over the ranks (Average or Sum) and return this rank's share of its rows.

    Rank ``r`` of ``n`` gets ``rows // n`` rows, plus one if ``r < rows % n``.
    """
    compressed, context = compression.compress(tensor)
    reduced = autograd.run(
        autograd.Reducescatter, compressed, name, op, process_set, prescale_factor, postscale_factor
    )
    return compression.decompress(reduced, context)


def grouped_reducescatter(
    tensors: Iterable[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """``reducescatter`` of all ``tensors`` together, as a list; an empty group gives ``[]``."""
    members = group_members(tensors, "grouped_reducescatter")
    if not members:
        return []
    pairs = [compression.compress(tensor) for tensor in members]
    reduced = autograd.run(
        autograd.GroupedReducescatter,
        name,
        op,
        process_set,
        prescale_factor,
        postscale_factor,
        *(compressed for compressed, _ in pairs),
    )
    return [
        compression.decompress(tensor, context)
        for tensor, (_, context) in zip(reduced, pairs, strict=True)
    ]
