"""MXNet's NDArrays as hvdtune takes and returns them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call
from mxnet.ndarray import NDArray
from mxnet.ndarray.ndarray import _new_alloc_handle

from hvdtune.core.operations import DTYPES, Buffer, array_address
from hvdtune.faces import arguments

_NAMES = ("uint8", "int8", "int32", "int64", "float16", "float32", "float64", "bool")
#: The engine's codes, by `NDArray.dtype`.
CODES: dict[Any, int] = {
    **{np.dtype(name).type: DTYPES[name] for name in _NAMES},
    **{np.dtype(name): DTYPES[name] for name in _NAMES},  # arrays of mx.np
    np.dtype([("bfloat16", np.uint16)]): DTYPES["bfloat16"],
}


def code_of(tensor: Any, operation: str) -> int:
    """The code of an NDArray's type. TypeError for non-NDArrays, ValueError for other types."""
    try:
        if isinstance(tensor, NDArray):
            return CODES[tensor.dtype]
    except KeyError:
        raise ValueError(
            f"Tensor type {tensor.dtype} is not supported. {operation} takes "
            f"{', '.join(_NAMES)} and bfloat16."
        ) from None
    raise TypeError(f"{operation} takes an NDArray of MXNet, not a {type(tensor).__name__}.")


def like(tensor: NDArray, shape: Sequence[int]) -> NDArray:
    """An uninitialised NDArray of the class and type of ``tensor``."""
    return type(tensor)(_new_alloc_handle(tuple(shape), tensor.context, True, tensor.dtype))


class MxnetAdapter:
    """See `faces.adapter.Adapter`: for calls that wait until their inputs are computed.

    These are the operations whose result shapes only the ranks together know.
    """

    codes: dict[Any, int] = CODES

    def buffer(self, tensor: NDArray, operation: str, *, written: bool = False) -> Buffer:
        """The NDArray's memory, once it is computed. Raises MXNetError if computing has failed."""
        code = code_of(tensor, operation)
        if tensor.stype != "default":
            raise ValueError(
                f"{operation} takes dense NDArrays, not {tensor.stype}; give it tostype('default')."
            )
        if tensor.context.device_type == "gpu":
            raise ValueError(
                f"{operation} takes NDArrays on the CPU; give it as_in_context(mx.cpu())."
            )
        tensor.wait_to_read()
        address = ctypes.c_void_p()
        check_call(_LIB.MXNDArrayGetData(tensor.handle, ctypes.byref(address)))
        return Buffer(address.value or 0, code, tensor.shape, tensor)

    def fresh(self, tensor: NDArray, rows: int | None = None) -> NDArray:
        """`like` ``tensor``, or with ``rows`` rows."""
        return like(tensor, tensor.shape if rows is None else (rows, *tensor.shape[1:]))

    def result(self, tensor: NDArray, output: Any) -> NDArray:
        """A copy of an engine's array as an NDArray of the type of ``tensor``."""
        copy = like(tensor, output.shape)
        if output.size:
            address = ctypes.c_void_p(array_address(output))
            check_call(
                _LIB.MXNDArraySyncCopyFromCPU(copy.handle, address, ctypes.c_size_t(output.size))
            )
        return copy

    def plain_output(self, tensor: NDArray) -> None:
        """None: MXNet must know of everything that is written."""

    def members(self, tensors: Iterable[NDArray], operation: str) -> list[NDArray]:
        """The NDArrays of a group."""
        return arguments.group_members(tensors, isinstance(tensors, NDArray), operation)

    def splits(self, splits: Any) -> list[int] | None:
        """The rows for each receiver. Raises ValueError unless they are 32-bit integers."""
        if splits is None:
            return None
        if not isinstance(splits, NDArray):
            return arguments.split_sizes(splits)
        arguments.check_splits(splits.shape, np.dtype(splits.dtype).name)
        rows: list[int] = splits.asnumpy().tolist()
        return rows

    def received(self, splits: Any, counts: Sequence[int]) -> NDArray:
        """The rows from each sender, int32, as an array of MXNet's NumPy if ``splits`` is one."""
        array = mx.np.array if isinstance(splits, mx.np.ndarray) else mx.nd.array
        return array(counts, dtype="int32")
