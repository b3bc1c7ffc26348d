"""Collectives on NumPy arrays: the framework-neutral face, with Horovod's names and signatures.

Arrays must be C-contiguous, of dtype uint8, int8, uint16, int16, int32, int64, float16, float32,
float64 or bool. Those on a GPU (CuPy's, Numba's, whatever has ``__cuda_array_interface__``) are
taken like NumPy's, and give results on that GPU. ``*_async`` return a handle for `poll` and
`synchronize`; names with a trailing underscore work in place. Errors: ValueError at the call for
arguments (dtype, contiguity, a name in flight, …), HorovodInternalError when ranks disagree or the
job breaks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hvdtune.core import device_arrays, operations, results
from hvdtune.core.objects import allgather_object, broadcast_object
from hvdtune.core.operations import Buffer, Completed, barrier, join, poll, synchronize
from hvdtune.core.process_sets import ProcessSet, global_process_set
from hvdtune.core.reduce_ops import Average, Sum

Array = npt.NDArray[Any]

__all__ = [
    "allgather",
    "allgather_async",
    "allgather_object",
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
    "broadcast_object",
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
    "synchronize",
]


# Looking a dtype object up is many times cheaper than its name, which NumPy composes.
_CODES = {np.dtype(name): code for name, code in operations.DTYPES.items() if name != "bfloat16"}


def _buffer(array: Array, written: bool = False) -> Buffer:
    if type(array) is not np.ndarray and not isinstance(array, np.ndarray):
        if device_arrays.is_one(array):
            return device_arrays.buffer(array, written)
        raise ValueError(
            f"a NumPy array, or an array on a GPU, is needed, not {type(array).__name__}"
        )
    dtype = _CODES.get(array.dtype)
    if dtype is None:
        raise ValueError(
            f"Tensor type {array.dtype} is not supported. Accepted: "
            + ", ".join(name for name in operations.DTYPES if name != "bfloat16")
        )
    flags = array.flags
    if not flags.c_contiguous:
        raise ValueError("arrays are required to be contiguous; use np.ascontiguousarray")
    if written and not flags.writeable:
        raise ValueError("an array that is reduced or received in place must be writeable")
    return Buffer(operations.array_address(array), dtype, array.shape, array)


def _fresh(array: Array, rows: int | None = None) -> Array:
    """An uninitialised array of the type and shape of `array`, or with so many rows."""
    if type(array) is not np.ndarray and device_arrays.is_one(array):
        return device_arrays.fresh(array)
    if rows is not None:
        shape = (rows, *array.shape[1:])
        size = math.prod(shape) * array.itemsize
        if size < results.LARGE_RESULT_BYTES:
            return np.empty(shape, array.dtype)
    else:
        shape = array.shape
        size = array.nbytes
        if type(array) is not np.ndarray or size < results.LARGE_RESULT_BYTES:
            return np.empty_like(array)
    if array.dtype not in _CODES:
        return array  # refused by `_buffer`, in words
    memory: Array = results.result_memory(size)
    return memory.view(array.dtype).reshape(shape)


def _given(result: Any) -> Callable[[Completed], Any]:
    return lambda completed: result


def _first(tensor: Array) -> Callable[[Completed], Array]:
    return lambda completed: _like(tensor, completed.outputs[0])


def _all(tensors: Sequence[Array]) -> Callable[[Completed], tuple[Array, ...]]:
    return lambda completed: tuple(map(_like, tensors, completed.outputs))


def _like(tensor: Array, output: Any) -> Array:
    """An output of the engine as an array of the library that `tensor` is of."""
    return output if type(output) is np.ndarray else device_arrays.as_given(tensor, output)


def _at_once(
    kind: int, array: Array, name: str | None, process_set: ProcessSet, *rest: Any
) -> Array | None:
    """The result; None where only the `*_async` function knows what to do, or to say."""
    if name is None:
        return None
    done = operations.exchange_at_once(kind, array, _CODES, name, process_set, _fresh, *rest)
    return done[0][0] if type(done) is tuple else done


def _reduction(average: bool | None, op: int | None) -> int:
    if average is not None:
        if op is not None:
            raise ValueError(
                "The op parameter supersedes average. Please provide only one of them."
            )
        import warnings

        warnings.warn("average is deprecated, use op instead", DeprecationWarning, stacklevel=3)
        return Average if average else Sum
    return Average if op is None else op


# ---- allreduce ----


def _allreduce(
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    result: Any,
    average: bool | None,
    name: str | None,
    op: int | None,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    grouped: bool,
) -> int:
    written = [_buffer(array, written=True) for array in outputs]
    in_place = inputs is outputs
    return operations.allreduce_async(
        written if in_place else [_buffer(array) for array in inputs],
        written,
        name=name,
        op=_reduction(average, op),
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
        grouped=grouped,
        finish=_given(result),
    )


def allreduce_async(
    tensor: Array,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start `allreduce`; the handle's result is the new array."""
    output = _fresh(tensor)
    return _allreduce(
        [tensor], [output], output, average, name, op, prescale_factor, postscale_factor,
        process_set, False,
    )  # fmt: skip


def allreduce_async_(
    tensor: Array,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start `allreduce_`; the handle's result is `tensor`."""
    handle = operations.allreduce_tensor_async(
        tensor, _CODES, average, name, op, prescale_factor, postscale_factor, process_set
    )
    if handle is not None:
        return handle
    tensors = [tensor]
    return _allreduce(
        tensors, tensors, tensor, average, name, op, prescale_factor, postscale_factor,
        process_set, False,
    )  # fmt: skip


def allreduce(
    tensor: Array,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """A new array: the reduction (default: average) of every rank's, which have one shape."""
    if type(tensor) is np.ndarray and name is not None and tensor.flags.c_contiguous:
        output = _fresh(tensor)
        if operations.allreduce_tensor(
            tensor,
            _CODES,
            average,
            name,
            op,
            prescale_factor,
            postscale_factor,
            process_set,
            output,
        ):
            return output
    return synchronize(
        allreduce_async(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    )


def allreduce_(
    tensor: Array,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """`allreduce` in place; returns `tensor`."""
    if operations.allreduce_tensor(
        tensor, _CODES, average, name, op, prescale_factor, postscale_factor, process_set
    ):
        return tensor
    return synchronize(
        allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    )


def grouped_allreduce_async(
    tensors: Iterable[Array],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start `grouped_allreduce`; the handle's result is the tuple of new arrays."""
    tensors = list(tensors)
    outputs = tuple(_fresh(tensor) for tensor in tensors)
    return _allreduce(
        tensors, outputs, outputs, average, name, op, prescale_factor, postscale_factor,
        process_set, True,
    )  # fmt: skip


def grouped_allreduce_async_(
    tensors: Iterable[Array],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start `grouped_allreduce_`; the handle's result is the tuple of `tensors`."""
    tensors = list(tensors)
    return _allreduce(
        tensors, tensors, tuple(tensors), average, name, op, prescale_factor, postscale_factor,
        process_set, True,
    )  # fmt: skip


def grouped_allreduce(
    tensors: Iterable[Array],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """`allreduce` of several arrays (dtypes may differ), all together or not at all."""
    tensors = list(tensors)
    if not tensors:
        return []
    return list(
        synchronize(
            grouped_allreduce_async(
                tensors, average, name, op, prescale_factor, postscale_factor, process_set
            )
        )
    )


def grouped_allreduce_(
    tensors: Iterable[Array],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> tuple[Array, ...]:
    """`grouped_allreduce` in place; returns the arrays."""
    tensors = list(tensors)
    if not tensors:
        return ()
    return synchronize(
        grouped_allreduce_async_(
            tensors, average, name, op, prescale_factor, postscale_factor, process_set
        )
    )


# ---- allgather ----


def allgather_async(
    tensor: Array, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start `allgather`."""
    return operations.allgather_async(
        [_buffer(tensor)], name=name, process_set=process_set, finish=_first(tensor)
    )


def allgather(
    tensor: Array, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """Every rank's array, concatenated along dimension 0, which may differ between ranks."""
    gathered = _at_once(operations.ALLGATHER, tensor, name, process_set)
    if gathered is not None:
        return gathered
    return synchronize(allgather_async(tensor, name, process_set))


def grouped_allgather_async(
    tensors: Iterable[Array],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start `grouped_allgather`."""
    tensors = list(tensors)
    return operations.allgather_async(
        [_buffer(tensor) for tensor in tensors],
        name=name,
        process_set=process_set,
        grouped=True,
        finish=_all(tensors),
    )


def grouped_allgather(
    tensors: Iterable[Array],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tuple[Array, ...]:
    """`allgather` of several arrays, all together or not at all."""
    tensors = list(tensors)
    if not tensors:
        return ()
    return synchronize(grouped_allgather_async(tensors, name, process_set))


# ---- broadcast ----


def broadcast_async(
    tensor: Array,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start `broadcast`."""
    output = _fresh(tensor)
    return operations.broadcast_async(
        _buffer(tensor),
        _buffer(output, written=True),
        root_rank,
        name=name,
        process_set=process_set,
        finish=_given(output),
    )


def broadcast(
    tensor: Array,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """A copy of the array of `root_rank`, a global rank. Shape and dtype must agree."""
    received = _at_once(operations.BROADCAST, tensor, name, process_set, root_rank)
    if received is not None:
        return received
    return synchronize(broadcast_async(tensor, root_rank, name, process_set))


def broadcast_async_(
    tensor: Array,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start `broadcast_`."""
    buffer = _buffer(tensor, written=True)
    return operations.broadcast_async(
        buffer, buffer, root_rank, name=name, process_set=process_set, finish=_given(tensor)
    )


def broadcast_(
    tensor: Array,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Overwrite the array with that of `root_rank`; returns it."""
    if name is not None:
        done = operations.exchange_at_once(
            operations.BROADCAST, tensor, _CODES, name, process_set, None, root_rank
        )
        if done is not None:
            return tensor
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))


# ---- alltoall ----


def alltoall_async(
    tensor: Array,
    splits: Sequence[int] | Array | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start `alltoall`; the handle's result is always (received, received splits)."""

    def finish(completed: Completed) -> tuple[Array, Array]:
        return _first(tensor)(completed), np.array(completed.received_splits, dtype=np.int32)

    return operations.alltoall_async(
        _buffer(tensor), _checked_splits(splits), name=name, process_set=process_set, finish=finish
    )


def _checked_splits(splits: Sequence[int] | Array | None) -> list[int] | None:
    if splits is None:
        return None
    rows = np.asarray(splits)
    if rows.ndim != 1:
        raise ValueError("alltoall expects a 1D splits tensor")
    if isinstance(splits, np.ndarray) and rows.dtype != np.int32:
        raise ValueError("alltoall expects splits to contain 32-bit integer elements")
    if not np.issubdtype(rows.dtype, np.integer) and rows.size:
        raise ValueError("alltoall expects splits to contain 32-bit integer elements")
    return [int(row) for row in rows]


def alltoall(
    tensor: Array,
    splits: Sequence[int] | Array | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send `splits[k]` rows to the k-th rank (None: equal parts); received rows in rank order.

    Returns the array, and with `splits` given also how many rows came from each rank (int32).
    """
    if splits is None:
        equal = _at_once(operations.ALLTOALL, tensor, name, process_set)
        if equal is not None:
            return equal
    received, received_splits = synchronize(alltoall_async(tensor, splits, name, process_set))
    return received if splits is None else (received, received_splits)


# ---- reducescatter ----


def reducescatter_async(
    tensor: Array,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start `reducescatter`."""
    return operations.reducescatter_async(
        [_buffer(tensor)],
        name=name,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
        finish=_first(tensor),
    )


def reducescatter(
    tensor: Array,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Array:
    """This rank's share of the rows of the reduction: R // n, and one more for the first R % n."""
    share = _at_once(
        operations.REDUCESCATTER,
        tensor,
        name,
        process_set,
        0,
        op,
        prescale_factor,
        postscale_factor,
    )
    if share is not None:
        return share
    return synchronize(
        reducescatter_async(tensor, name, op, process_set, prescale_factor, postscale_factor)
    )


def grouped_reducescatter_async(
    tensors: Iterable[Array],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start `grouped_reducescatter`."""
    tensors = list(tensors)
    return operations.reducescatter_async(
        [_buffer(tensor) for tensor in tensors],
        name=name,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
        grouped=True,
        finish=_all(tensors),
    )


def grouped_reducescatter(
    tensors: Iterable[Array],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Array]:
    """`reducescatter` of several arrays, all together or not at all."""
    tensors = list(tensors)
    if not tensors:
        return []
    return list(
        synchronize(
            grouped_reducescatter_async(
                tensors, name, op, process_set, prescale_factor, postscale_factor
            )
        )
    )
