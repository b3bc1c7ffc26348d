"""NumPy's arrays, and those on GPUs, as the engine takes and returns them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hvdtune.core import device_arrays, memory, operations
from hvdtune.core.operations import Buffer
from hvdtune.faces import arguments

Array = npt.NDArray[Any]

_NAMES = [name for name in operations.DTYPES if name != "bfloat16"]


class ArrayAdapter:
    """See `faces.adapter.Adapter`."""

    def __init__(self) -> None:
        # Looking up a dtype object is many times cheaper than having NumPy compose its name.
        self.codes: dict[Any, int] = {np.dtype(name): operations.DTYPES[name] for name in _NAMES}

    def buffer(self, tensor: Array, operation: str, *, written: bool = False) -> Buffer:
        """The array's memory. Raises TypeError or ValueError if the engine cannot use it."""
        if type(tensor) is not np.ndarray and not isinstance(tensor, np.ndarray):
            if device_arrays.is_one(tensor):
                return device_arrays.buffer(tensor, written)
            raise TypeError(
                f"{operation} takes a NumPy array, or an array on a GPU, not a "
                f"{type(tensor).__name__}."
            )
        dtype = self.codes.get(tensor.dtype)
        if dtype is None:
            raise ValueError(
                f"Tensor type {tensor.dtype} is not supported. {operation} takes "
                f"{', '.join(_NAMES)}."
            )
        flags = tensor.flags
        if not flags.c_contiguous:
            raise ValueError(
                f"Tensor is required to be contiguous. {operation} got shape {tensor.shape} with "
                f"strides of {tensor.strides} bytes; call np.ascontiguousarray first."
            )
        if written and not flags.writeable:
            raise ValueError(f"{operation} in place: the array must be writeable.")
        return Buffer(operations.array_address(tensor), dtype, tensor.shape, tensor)

    def fresh(self, tensor: Array, rows: int | None = None) -> Array:
        """An uninitialised array of the type and shape of `tensor`, or with `rows` rows."""
        if type(tensor) is not np.ndarray and device_arrays.is_one(tensor):
            return device_arrays.fresh(tensor)
        if rows is not None:
            shape = (rows, *tensor.shape[1:])
            size = math.prod(shape) * tensor.itemsize
            if size < memory.LARGE_RESULT_BYTES:
                return np.empty(shape, tensor.dtype)
        else:
            shape = tensor.shape
            size = tensor.nbytes
            if type(tensor) is not np.ndarray or size < memory.LARGE_RESULT_BYTES:
                return np.empty_like(tensor)
        if tensor.dtype not in self.codes:
            return tensor  # `buffer` refuses it with an error
        block: Array = memory.result_memory(size)
        return block.view(tensor.dtype).reshape(shape)

    def result(self, tensor: Array, output: Any) -> Array:
        """An output of the engine as an array of the library of `tensor`."""
        return output if type(output) is np.ndarray else device_arrays.as_given(tensor, output)

    def plain_output(self, tensor: Array) -> Array | None:
        """An uninitialised array like a contiguous NumPy array; None for any other."""
        if type(tensor) is not np.ndarray or not tensor.flags.c_contiguous:
            return None
        if tensor.nbytes < memory.LARGE_RESULT_BYTES:
            return np.empty_like(tensor)
        return self.fresh(tensor)

    def members(self, tensors: Iterable[Array], operation: str) -> list[Array]:
        """The arrays of a group."""
        is_array = isinstance(tensors, np.ndarray) or device_arrays.is_one(tensors)
        return arguments.group_members(tensors, is_array, operation)

    def splits(self, splits: Any) -> list[int] | None:
        """The rows for each receiver. Raises ValueError unless they are 32-bit integers."""
        if splits is None:
            return None
        if not isinstance(splits, np.ndarray):
            return arguments.split_sizes(splits)
        arguments.check_splits(splits.shape, splits.dtype.name)
        rows: list[int] = splits.tolist()
        return rows

    def received(self, splits: Any, counts: Sequence[int]) -> Array:
        """The rows from each sender as an int32 array."""
        return np.array(counts, dtype=np.int32)
