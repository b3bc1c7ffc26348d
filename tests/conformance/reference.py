"""Inputs that every rank can foresee, and what NumPy says of them in float64.

Integers are compared exactly, floating types within the rounding that one reduction in the
accumulation type and one rounding of the result can make. NumPy has no bfloat16: its values are
float32 arrays here, whose lower 16 bits are zero.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache

import numpy as np
from support.models import adasum_model

INTEGERS = ("uint8", "int8", "uint16", "int16", "int32", "int64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
DTYPES = (*INTEGERS, *FLOATS, "bool")

LARGEST = 1_000_003
STEP = 37  # rank r's input starts r * STEP elements into the base array
MAX_RANKS = 64
MOST_MEMBERS = 64  # of a group; member m starts m elements further

# eps and smallest subnormal of NumPy's missing type.
_BFLOAT16 = (2.0**-7, 2.0**-133)
FUNCTIONS = {"Min": np.minimum, "Max": np.maximum, "Product": np.multiply}


def held_in(dtype: str) -> np.dtype:
    """The NumPy type that holds the values of a type."""
    return np.dtype("float32" if dtype == "bfloat16" else dtype)


@cache
def base(dtype: str) -> np.ndarray:
    """Random elements of ``dtype``: the whole range of integers, floats in ±[0.5, 1.5)."""
    random = np.random.default_rng(20240917)
    count = LARGEST + MAX_RANKS * STEP + MOST_MEMBERS
    if dtype == "bool":
        return random.integers(0, 2, count).astype(bool)
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        return random.integers(info.min, info.max, count, dtype=dtype, endpoint=True)
    values = (random.random(count) + 0.5) * random.choice([-1.0, 1.0], count)
    if dtype == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)
    return values.astype(dtype)


def rank_input(dtype: str, rank: int, shape: Sequence[int], member: int = 0) -> np.ndarray:
    """Rank ``rank``'s values; a view that must not be written to."""
    start = rank * STEP + member
    view = base(dtype)[start : start + int(np.prod(shape))].reshape(shape)
    view.flags.writeable = False
    return view


def truncate(values: np.ndarray, dtype: str) -> np.ndarray:
    """float64 to integers: toward zero, saturated to the type's range."""
    info = np.iinfo(dtype)
    result = np.empty(values.shape, dtype)
    high = values >= float(info.max)
    low = values <= float(info.min)
    result[high] = info.max
    result[low] = info.min
    middle = ~(high | low)
    result[middle] = values[middle].astype(dtype)
    return result


def reduce_integers(
    inputs: Sequence[np.ndarray], op: str, prescale: float, postscale: float
) -> np.ndarray:
    """The exact result: scaled in float64 and truncated, reduced with wrap-around."""
    dtype = inputs[0].dtype.name
    if prescale != 1.0:
        inputs = [truncate(x.astype(np.float64) * prescale, dtype) for x in inputs]
    function = FUNCTIONS.get(op, np.add)
    result = inputs[0].copy()
    for x in inputs[1:]:
        function(result, x, out=result)
    if op == "Average":
        postscale *= 1.0 / len(inputs)
    return result if postscale == 1.0 else truncate(result.astype(np.float64) * postscale, dtype)


def reduce_bools(inputs: Sequence[np.ndarray], op: str) -> np.ndarray:
    """Sum and Max of bools are OR, Product and Min are AND."""
    function = np.logical_or if op in ("Sum", "Max") else np.logical_and
    return function.reduce(inputs)


def reduce_floats(
    inputs: Sequence[np.ndarray], dtype: str, op: str, prescale: float, postscale: float
) -> tuple[np.ndarray, np.ndarray]:
    """The result in float64, and how far from it the engine's may be."""
    ranks = len(inputs)
    wide = np.stack([x.astype(np.float64) for x in inputs]) * prescale
    eps, subnormal = _BFLOAT16
    if dtype != "bfloat16":
        eps, subnormal = np.finfo(dtype).eps, float(np.finfo(dtype).smallest_subnormal)
    if op == "Adasum":
        result = adasum_model.tree(list(wide)) * postscale
        # Every level rounds its tensors, whose elements may cancel each other.
        magnitude = np.abs(wide).max(axis=0, initial=0.0) * ranks * abs(postscale)
        return result, 4 * ranks * max(eps, 1e-15) * magnitude + subnormal
    factor = postscale / ranks if op == "Average" else postscale
    result = FUNCTIONS.get(op, np.add).reduce(wide, axis=0) * factor
    # What the accumulation may lose: half a unit for every operation, of the sum of magnitudes (or
    # of the product). 16-bit types accumulate in float32.
    accumulated = np.finfo(np.float64 if dtype == "float64" else np.float32).eps
    magnitude = np.abs(result)
    if op in ("Sum", "Average"):
        magnitude = np.abs(wide).sum(axis=0) * abs(factor)
    tolerance = (ranks + 2) * accumulated * magnitude
    # One rounding to the result's type; a scaled 16-bit input may have been rounded as well.
    tolerance += 0.5 * eps * np.abs(result) + subnormal
    if prescale != 1.0:
        tolerance += 0.5 * eps * magnitude * (ranks if op == "Product" else 1)
    if hosts_come_first():
        # What comes of each host is rounded to the type, too.
        tolerance += 0.5 * eps * magnitude * (ranks if op == "Product" else 1)
    return result, tolerance


def hosts_come_first() -> bool:
    """Whether this job reduces within hosts first, and then between them."""
    return os.environ.get("HOROVOD_HIERARCHICAL_ALLREDUCE") == "1"


def wrong(
    got: np.ndarray,
    inputs: Sequence[np.ndarray],
    dtype: str,
    op: str,
    prescale: float = 1.0,
    postscale: float = 1.0,
) -> int:
    """How many elements of ``got`` are not the reduction of ``inputs``."""
    if dtype == "bool":
        return int(np.count_nonzero(got != reduce_bools(inputs, op)))
    if dtype in INTEGERS:
        return int(np.count_nonzero(got != reduce_integers(inputs, op, prescale, postscale)))
    result, tolerance = reduce_floats(inputs, dtype, op, prescale, postscale)
    return int(np.count_nonzero(~(np.abs(got.astype(np.float64) - result) <= tolerance)))


def rows_of_place(rows: int, place: int, size: int) -> slice:
    """The rows that reducescatter gives to a place: the first places get one more."""
    share, extra = divmod(rows, size)
    start = place * share + min(place, extra)
    return slice(start, start + share + (place < extra))
