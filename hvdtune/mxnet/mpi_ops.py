"""Horovod's operations on MXNet's NDArrays (those of `mx.nd` and of `mx.np`) on the CPU.

`allreduce`, `broadcast` and their like return at once: they are operations of MXNet's engine, which
runs them when their inputs are computed, and makes readers of their results wait. There is one
exception: if an operation is short, its inputs are computed and no other is in flight, the call
itself waits for the other ranks, at most half a millisecond, because the operation is usually
complete before MXNet's threads would be awake. Operations on different NDArrays may run in any
order, because ranks match them by name; the name of an incomplete operation is refused for other
NDArrays. `allgather`, `alltoall` and `reducescatter` wait, because only then the shapes of their
results are known. NDArrays may have the type uint8, int8, int32, int64, float16, float32, float64,
bool or bfloat16.

Errors that the call itself can detect are raised at once: ValueError and TypeError (types, layouts,
arguments, process sets), HorovodInternalError (no init, the job has ended). A lost rank, and errors
that only the ranks together can detect, are raised as MXNet's MXNetError when the result is read,
or by the operations that wait. `priority` is passed to MXNet's engine, which on CPUs ignores it and
starts operations in the order in which their inputs are computed. The module has Horovod's name
because programs import from it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from itertools import starmap
from typing import Any

import mxnet as mx
from mxnet.base import _LIB, MXNetError
from mxnet.ndarray import NDArray

from hvdtune.core import operations
from hvdtune.core.exceptions import HorovodInternalError
from hvdtune.core.libraries import mxnet_library
from hvdtune.core.observation import call_sites
from hvdtune.core.operations import ALLREDUCE, BROADCAST, barrier
from hvdtune.core.process_sets import ProcessSet, global_process_set, id_of
from hvdtune.core.reduce_ops import Adasum, Average, Sum
from hvdtune.faces import basics
from hvdtune.faces.arguments import allreduce_op
from hvdtune.faces.basics import *  # noqa: F403
from hvdtune.faces.basics import _basics  # noqa: F401 (as Horovod's modules have it)
from hvdtune.faces.collectives import Collectives
from hvdtune.mxnet.adapter import MxnetAdapter, code_of, like

__all__ = [
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "join",
    "reducescatter",
]
__all__ += basics.__all__

_adapter = MxnetAdapter()
collectives = Collectives(_adapter, __name__, "collectives")  # those that wait

try:
    mxnet_library.find_mxnet(_LIB._handle)
except ValueError as error:
    raise ImportError(f"hvdtune.mxnet needs MXNet 1.9: {error}") from None


# ---- operations of MXNet's engine ---------------------------------------------------------------


def allreduce(
    tensor: NDArray,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> NDArray:
    """Reduce ``tensor`` (same type and shape on all ranks) over the ranks into a new NDArray.

    Returns ``postscale_factor * op over ranks (prescale_factor * tensor)``; ``op`` is Average by
    default. ``average`` is the deprecated form of ``op``.
    """
    factors = (prescale_factor, postscale_factor)
    return _allreduce([tensor], False, average, name, priority, factors, process_set, op)[0]


def allreduce_(
    tensor: NDArray,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> NDArray:
    """`allreduce` in place; returns ``tensor``."""
    factors = (prescale_factor, postscale_factor)
    _allreduce([tensor], True, average, name, priority, factors, process_set, op)
    return tensor


def grouped_allreduce(
    tensors: Iterable[NDArray],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[NDArray]:
    """Reduce ``tensors`` together into new NDArrays; types and shapes may differ among them."""
    factors = (prescale_factor, postscale_factor)
    group = _adapter.members(tensors, "grouped_allreduce")
    return _allreduce(group, False, average, name, priority, factors, process_set, op, True)


def grouped_allreduce_(
    tensors: Iterable[NDArray],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[NDArray]:
    """`grouped_allreduce` in place; returns the NDArrays as a list.

    Raises ValueError if two of them share memory.
    """
    factors = (prescale_factor, postscale_factor)
    group = _adapter.members(tensors, "grouped_allreduce")
    return _allreduce(group, True, average, name, priority, factors, process_set, op, True)


def average_gradients(
    gradients: list[NDArray],
    name: str,
    priority: int,
    factors: tuple[float, float],
    process_set: ProcessSet,
    grouped: bool,
    tied: Sequence[NDArray],
) -> None:
    """Average a gradient, or a group of them, in place.

    ``factors``: before the sum, and after it. ``tied``: NDArrays that keep this step's operation in
    order with earlier ones, if the gradients are other NDArrays in each step.
    """
    _allreduce(gradients, True, None, name, priority, factors, process_set, Average, grouped, tied)


def broadcast(
    tensor: NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> NDArray:
    """A new NDArray with the ``tensor`` of global rank ``root_rank``."""
    return _broadcast(tensor, False, root_rank, name, priority, process_set)


def broadcast_(
    tensor: NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> NDArray:
    """Overwrite ``tensor`` with that of global rank ``root_rank``, and return it."""
    return _broadcast(tensor, True, root_rank, name, priority, process_set)


def _allreduce(
    tensors: list[NDArray],
    in_place: bool,
    average: bool | None,
    name: str | None,
    priority: int,
    factors: tuple[float, float],
    process_set: ProcessSet,
    op: int | None,
    grouped: bool = False,
    tied: Sequence[NDArray] = (),
) -> list[NDArray]:
    op = allreduce_op(op, average)
    if grouped and not tensors:
        return tensors
    codes = _codes(tensors, "grouped_allreduce" if grouped else "allreduce", grouped)
    if op == Adasum:
        operations.check_adasum(process_set)
    operations.check_reduction("allreduce", codes, op, *factors)
    return _push(
        ALLREDUCE, tensors, in_place, name, priority, process_set, op, factors, 0, grouped, tied
    )


def _broadcast(
    tensor: NDArray,
    in_place: bool,
    root_rank: int,
    name: str | None,
    priority: int,
    process_set: ProcessSet,
) -> NDArray:
    code_of(tensor, "broadcast")
    operations.check_root(root_rank)
    factors = (1.0, 1.0)
    [result] = _push(
        BROADCAST, [tensor], in_place, name, priority, process_set, Sum, factors, root_rank
    )
    return result


def _codes(tensors: Sequence[Any], operation: str, grouped: bool) -> list[int]:
    codes = []
    for index, tensor in enumerate(tensors):
        try:
            codes.append(code_of(tensor, operation))
        except (TypeError, ValueError) as error:
            if grouped:
                raise type(error)(f"Member {index} of the group: {error}") from None
            raise
    return codes


def _push(
    kind: int,
    tensors: list[NDArray],
    in_place: bool,
    name: str | None,
    priority: int,
    process_set: ProcessSet,
    op: int,
    factors: tuple[float, float],
    root: int,
    grouped: bool = False,
    tied: Sequence[NDArray] = (),
) -> list[NDArray]:
    """Push an operation to MXNet's engine; returns its outputs."""
    operations.running_engine()
    set_id = id_of(process_set)
    on_wire, comes_again = operations.wire_name(kind, grouped, name, set_id)
    if not comes_again and call_sites.is_next():
        call_sites.tell(on_wire.partition(".")[0], set_id, tensors[0].shape)
    inputs = [tensor.handle.value for tensor in tensors]
    outputs = tensors if in_place else [like(tensor, tensor.shape) for tensor in tensors]
    written = inputs if in_place else [output.handle.value for output in outputs]
    ties = [tensor.handle.value for tensor in tied]
    arguments = (
        kind, on_wire, inputs, written, op, *factors, root, set_id, grouped, comes_again, ties,
        priority,
    )  # fmt: skip
    pushed: list[None] = []
    try:
        # A signal handler may raise as soon as a call returns to the interpreter; `extend` notes
        # before that whether MXNet has the operation.
        pushed.extend(starmap(mxnet_library.push_mxnet, [arguments]))
    finally:
        if name is None and not pushed:
            operations.give_back_name(on_wire, set_id)
    return outputs


# ---- operations that wait -----------------------------------------------------------------------


def _waited(handle: int) -> Any:
    """The result of an operation; its errors are MXNet's, like all others."""
    try:
        return operations.synchronize(handle)
    except HorovodInternalError as error:
        raise MXNetError(str(error)) from None


def _together(start: Callable[..., int], tensors: Iterable[NDArray], *arguments: Any) -> Any:
    group = _adapter.members(tensors, start.__name__.removesuffix("_async"))
    return list(_waited(start(group, *arguments))) if group else group


def allgather(
    tensor: NDArray,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> NDArray:
    """Join every rank's ``tensor`` along the first dimension (which may differ) in rank order."""
    return _waited(collectives.allgather_async(tensor, name, process_set))


def grouped_allgather(
    tensors: Iterable[NDArray],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[NDArray]:
    """`allgather` of all ``tensors`` together."""
    return _together(collectives.grouped_allgather_async, tensors, name, process_set)


class InvalidAlltoallError(MXNetError, ValueError):
    """An invalid alltoall: an MXNetError as in Horovod, and a ValueError as in other faces."""


def alltoall(
    tensor: NDArray,
    splits: Any = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send ``splits[r]`` rows to rank ``r`` of the set, and receive what the others send here.

    ``splits``: an int32 NDArray or a list. Returns the received rows in the order of senders; with
    ``splits``, a pair of them and an int32 NDArray of how many each rank has sent. Without, every
    rank gets the same number. Raises InvalidAlltoallError at once for invalid arguments.
    """
    try:
        handle = collectives.alltoall_async(tensor, splits, name, process_set)
    except ValueError as error:
        raise InvalidAlltoallError(str(error)) from None
    received = _waited(handle)
    return received[0] if splits is None else received


def reducescatter(
    tensor: NDArray,
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> NDArray:
    """Reduce ``tensor`` over the ranks (Average or Sum) and return this rank's share of its rows.

    Rank ``r`` of ``n`` gets ``rows // n`` rows, plus one if ``r < rows % n``. Raises ValueError
    for other operators, and for a scalar.
    """
    _check_scattered(op)
    factors = (prescale_factor, postscale_factor)
    return _waited(collectives.reducescatter_async(tensor, name, op, process_set, *factors))


def grouped_reducescatter(
    tensors: Iterable[NDArray],
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[NDArray]:
    """`reducescatter` of all ``tensors`` together."""
    _check_scattered(op)
    factors = (prescale_factor, postscale_factor)
    start = collectives.grouped_reducescatter_async
    return _together(start, tensors, name, op, process_set, *factors)


def _check_scattered(op: int) -> None:
    """Raise ValueError for an unsupported operator."""
    try:
        operations.check_scattered(op)
    except HorovodInternalError as error:
        raise ValueError(str(error)) from None


def join(device: int = -1) -> int:
    """Contribute zeros to allreduces until all ranks have joined; returns the last to join.

    First waits for all operations of MXNet.
    """
    wait_for_all()
    return operations.join(device)


def wait_for_all() -> None:
    """Wait until MXNet has nothing under way. Errors are raised when results are read."""
    with contextlib.suppress(MXNetError):
        mx.nd.waitall()
