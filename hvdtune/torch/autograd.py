"""The collectives as differentiable functions.

Gradients are Horovod's. They describe the loss summed or averaged over ranks, as training scripts
use it; they are not always the mathematical transpose. With ``g`` the gradient of the output:

    allreduce        allreduce(g), same operator and factors
    allgather        this rank's rows of the average of g over ranks
    broadcast        average of g over ranks on the root, zero elsewhere
    alltoall         alltoall(g) with the received splits: every row's gradient goes back
    reducescatter    allgather(g) * factors, and * number of ranks when the operator is Sum

Backward collectives are unnamed: all ranks must go backward through the same functions in the same
order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hvdtune.core import operations
from hvdtune.core.process_sets import ProcessSet
from hvdtune.core.reduce_ops import Average, Sum
from hvdtune.core.world import rank
from hvdtune.torch import async_ops as ops


class _NoGradient:
    """Stands for the context if no backward function will ever read it."""

    def mark_non_differentiable(self, *tensors: torch.Tensor) -> None:
        """Does nothing."""


def run(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """Run ``function``; via ``apply``, which costs microseconds, only if gradients are needed."""
    if torch.is_grad_enabled():
        for one in arguments:
            if isinstance(one, torch.Tensor) and one.requires_grad:
                return function.apply(*arguments)
    return function.forward(_NoGradient(), *arguments)


class Allreduce(torch.autograd.Function):
    """See ``mpi_ops.allreduce``."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        """Reduce ``tensor``."""
        ctx.settings = (op, prescale_factor, postscale_factor, process_set)
        ctx.average = average
        return ops.collectives.allreduce(
            tensor, average, name, op, prescale_factor, postscale_factor, process_set
        )

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Reduce the gradient the same way."""
        (gradient,) = gradients
        reduced = Allreduce.apply(gradient.contiguous(), ctx.average, None, *ctx.settings)
        return reduced, None, None, None, None, None, None


class GroupedAllreduce(torch.autograd.Function):
    """See ``mpi_ops.grouped_allreduce``."""

    @staticmethod
    def forward(
        ctx: Any,
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Reduce ``tensors`` together."""
        ctx.settings = (op, prescale_factor, postscale_factor, process_set)
        ctx.average = average
        handle = ops.grouped_allreduce_async(
            tensors, average, name, op, prescale_factor, postscale_factor, process_set
        )
        return ops.synchronize(handle)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Reduce the gradients the same way."""
        dense = [gradient.contiguous() for gradient in gradients]
        reduced = GroupedAllreduce.apply(ctx.average, None, *ctx.settings, *dense)
        return (None, None, None, None, None, None, *reduced)


def _own_rows(gradient: torch.Tensor, rows: int, process_set: ProcessSet) -> torch.Tensor:
    """This rank's part of the averaged gradient of an allgather; ``rows`` is its length."""
    every = ops.allgather_async(
        torch.tensor([rows], dtype=torch.int64, device="cpu"), None, process_set
    )
    average = Allreduce.apply(gradient.contiguous(), None, None, Average, 1.0, 1.0, process_set)
    index = process_set.rank()
    assert index is not None
    before = int(ops.synchronize(every)[:index].sum())
    return average.narrow(0, before, rows)


class Allgather(torch.autograd.Function):
    """See ``mpi_ops.allgather``."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        """Concatenate the ranks' rows."""
        gathered = ops.collectives.allgather(tensor, name, process_set)
        ctx.rows = tensor.shape[0]
        ctx.process_set = process_set
        return gathered

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Average over ranks and keep this rank's rows."""
        return _own_rows(gradients[0], ctx.rows, ctx.process_set), None, None


class GroupedAllgather(torch.autograd.Function):
    """See ``mpi_ops.grouped_allgather``."""

    @staticmethod
    def forward(
        ctx: Any, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Concatenate the ranks' rows of every tensor."""
        gathered = ops.synchronize(ops.grouped_allgather_async(tensors, name, process_set))
        ctx.rows = [tensor.shape[0] for tensor in tensors]
        ctx.process_set = process_set
        return gathered

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Average over ranks and keep this rank's rows, for every tensor."""
        # The gathered table has a row for every rank: how many rows it has of each tensor.
        process_set = ctx.process_set
        table = ops.allgather_async(
            torch.tensor([ctx.rows], dtype=torch.int64, device="cpu"), None, process_set
        )
        # Members of other types have no gradient, and not all types have an average.
        places = [i for i, gradient in enumerate(gradients) if gradient.is_floating_point()]
        dense = [gradients[i].contiguous() for i in places]
        averages = GroupedAllreduce.apply(None, None, Average, 1.0, 1.0, process_set, *dense)
        before = ops.synchronize(table)[: process_set.rank()].sum(0).tolist()
        own: list[torch.Tensor | None] = [None] * len(gradients)
        for i, average in zip(places, averages, strict=True):
            own[i] = average.narrow(0, before[i], ctx.rows[i])
        return (None, None, *own)


class Broadcast(torch.autograd.Function):
    """See ``mpi_ops.broadcast``."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        """Copy the root's tensor to every rank."""
        ctx.root_rank = root_rank
        ctx.process_set = process_set
        return ops.collectives.broadcast(tensor, root_rank, name, process_set)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """The root gets the average over ranks, the others zeros."""
        average = Allreduce.apply(
            gradients[0].contiguous(), None, None, Average, 1.0, 1.0, ctx.process_set
        )
        if rank() != ctx.root_rank:
            average = torch.zeros_like(average)
        return average, None, None, None


class Alltoall(torch.autograd.Function):
    """See ``mpi_ops.alltoall``."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        splits: Sequence[int] | torch.Tensor | None,
        name: str | None,
        process_set: ProcessSet,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Exchange rows. Without ``splits`` and gradients, the received ones are not returned."""
        if splits is None and isinstance(ctx, _NoGradient):
            received = ops.collectives.at_once(operations.ALLTOALL, tensor, name, process_set)
            if received is not None:
                return received, None
        handle = ops.alltoall_async(tensor, splits, name, process_set)
        output, received_splits = ops.synchronize(handle)
        ctx.received_splits = received_splits
        ctx.rows = tensor.shape[0]
        ctx.process_set = process_set
        ctx.mark_non_differentiable(received_splits)
        return output, received_splits

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Send every row's gradient back to where the row came from."""
        returned, _ = Alltoall.apply(
            gradients[0].contiguous(), ctx.received_splits, None, ctx.process_set
        )
        unsent = ctx.rows - returned.shape[0]
        if unsent > 0:  # rows beyond the sum of the splits went nowhere
            rest = returned.new_zeros((unsent, *returned.shape[1:]))
            returned = torch.cat([returned, rest])
        return returned, None, None, None


def _scatter_scale(settings: tuple[int, float, float, ProcessSet]) -> float:
    """The factor for the gathered gradient of a reducescatter."""
    op, prescale_factor, postscale_factor, process_set = settings
    size = process_set.size() if op == Sum else 1
    assert size is not None
    return size * prescale_factor * postscale_factor


class Reducescatter(torch.autograd.Function):
    """See ``mpi_ops.reducescatter``."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
    ) -> torch.Tensor:
        """Reduce and keep this rank's rows."""
        factors = (prescale_factor, postscale_factor)
        ctx.settings = (op, *factors, process_set)
        return ops.collectives.reducescatter(tensor, name, op, process_set, *factors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Concatenate the ranks' gradients and scale them."""
        scaled = gradients[0].contiguous() * _scatter_scale(ctx.settings)
        joined = Allgather.apply(scaled, None, ctx.settings[3])
        return joined, None, None, None, None, None


class GroupedReducescatter(torch.autograd.Function):
    """See ``mpi_ops.grouped_reducescatter``."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Reduce and keep this rank's rows, for every tensor."""
        handle = ops.grouped_reducescatter_async(
            tensors, name, op, process_set, prescale_factor, postscale_factor
        )
        ctx.settings = (op, prescale_factor, postscale_factor, process_set)
        return ops.synchronize(handle)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Concatenate the ranks' gradients and scale them, for every tensor."""
        scale = _scatter_scale(ctx.settings)
        scaled = [gradient.contiguous() * scale for gradient in gradients]
        joined = GroupedAllgather.apply(None, ctx.settings[3], *scaled)
        return (None, None, None, None, None, *joined)
