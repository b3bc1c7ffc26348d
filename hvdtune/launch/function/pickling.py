"""How a function travels to the workers: cloudpickle, and the name of the code's file."""

from __future__ import annotations

import io
import types
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import cloudpickle


def dumps(value: Any) -> bytes:
    """`value` pickled with the functions and classes of the caller's script; `pickle` reads it.

    cloudpickle since 3.1.3 replaces the name of the file that a function is from. Here it is kept,
    so that the function's traceback in a worker names the caller's file and shows its lines.
    """
    with io.BytesIO() as file:
        _Pickler(file).dump(value)
        return file.getvalue()


def call(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> bytes:
    """The call `func(*args, **kwargs)`, pickled as (function, args, kwargs).

    Raises TypeError if `func` is not callable, or something cannot be pickled.
    """
    if not callable(func):
        raise TypeError(f"run() takes a function to call, not {func!r}")
    name = getattr(func, "__qualname__", repr(func))
    try:
        return dumps((func, tuple(args), dict(kwargs or {})))
    except Exception as error:
        raise TypeError(
            f"{name} or its arguments cannot be sent to the workers: {error}"
        ) from error


def _reduce_code(code: types.CodeType) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    if code is _make_code.__code__:  # true if hvdtune itself is pickled by value
        return cloudpickle.CloudPickler.dispatch_table[types.CodeType](code)
    make, parts = cloudpickle.CloudPickler.dispatch_table[types.CodeType](code)
    return _make_code, (make, parts, code.co_filename)


def _make_code(
    make: Callable[..., types.CodeType], parts: tuple[Any, ...], filename: str
) -> types.CodeType:
    return make(*parts).replace(co_filename=filename)


class _Pickler(cloudpickle.CloudPickler):
    dispatch_table: ClassVar = ChainMap(
        {types.CodeType: _reduce_code}, cloudpickle.CloudPickler.dispatch_table
    )
