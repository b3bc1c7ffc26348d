"""Arrays on GPUs, made by any library.

Such an array is any object with ``__cuda_array_interface__``: those of CuPy and Numba, and
`DeviceArray`, the engine's own.
"""

from __future__ import annotations

import math
import sys
from typing import Any

from hvdtune._native import DeviceArray
from hvdtune.core.operations import DTYPES, Buffer, running_engine

__all__ = ["DeviceArray", "as_given", "buffer", "fresh", "is_one"]

# NumPy's type texts; bfloat16 has none.
_CODES = {
    "|u1": DTYPES["uint8"],
    "|i1": DTYPES["int8"],
    "<u2": DTYPES["uint16"],
    "<i2": DTYPES["int16"],
    "<i4": DTYPES["int32"],
    "<i8": DTYPES["int64"],
    "<f2": DTYPES["float16"],
    "<f4": DTYPES["float32"],
    "<f8": DTYPES["float64"],
    "|b1": DTYPES["bool"],
}


def is_one(array: object) -> bool:
    """Whether `array` is an array in a GPU's memory."""
    return hasattr(array, "__cuda_array_interface__")


def buffer(array: Any, written: bool = False) -> Buffer:
    """The array's memory, kept alive by the buffer.

    Raises ValueError for a type that the engine has no arithmetic for, a layout with gaps, memory
    that is ``written`` but read-only, and if there is no CUDA driver.
    """
    interface = array.__cuda_array_interface__
    typestr = interface["typestr"]
    code = _CODES.get(typestr)
    if code is None:
        accepted = ", ".join(name for name in DTYPES if name != "bfloat16")
        raise ValueError(f"Tensor type {typestr} is not supported. Accepted: {accepted}")
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    if interface.get("mask") is not None or not (
        strides is None or _without_gaps(shape, tuple(strides), int(typestr[2:]))
    ):
        raise ValueError("arrays on a GPU are required to be contiguous, without a mask")
    pointer, read_only = interface["data"]
    if written and read_only:
        raise ValueError("an array that is reduced or received in place must be writeable")
    stream = interface.get("stream")
    device = running_engine().device_of(pointer or 0)
    streams = () if stream is None else (int(stream),)
    current = None if stream is None else lambda: int(stream)
    return Buffer(pointer or 0, code, shape, array, device, streams, current)


def _without_gaps(shape: tuple[int, ...], strides: tuple[int, ...], item: int) -> bool:
    if 0 in shape:
        return True
    expected = item
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


def fresh(array: Any) -> Any:
    """An uninitialised array of the type and shape of ``array``, on its GPU and of its library."""
    like = buffer(array)
    memory = running_engine().device_memory(like.shape, like.dtype, like.device)
    return as_given(array, memory)


def as_given(array: Any, result: DeviceArray) -> Any:
    """``result`` as an array of the same library as ``array``, without a copy.

    If that is neither CuPy nor Numba, ``result`` itself.
    """
    library = type(array).__module__.partition(".")[0]
    module = sys.modules.get(library)
    if module is None or math.prod(result.shape) == 0:
        return result
    if library == "cupy":
        return module.asarray(result)
    if library == "numba":
        return module.cuda.as_cuda_array(result)
    return result
