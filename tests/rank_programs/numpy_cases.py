"""Inputs of the NumPy matrix and what NumPy says the results must be.

Every rank can compute every rank's input, so no rank has to trust the engine for the reference.
Integers are compared exactly, floating types against float64 within the rounding that one sum in
the accumulation type and one rounding of the result can make.
"""

from __future__ import annotations

import os
from functools import cache

import numpy as np

INTEGERS = ("uint8", "int8", "uint16", "int16", "int32", "int64")
FLOATS = ("float16", "float32", "float64")
DTYPES = (*INTEGERS, *FLOATS, "bool")
SIZES = (0, 1, 1000, 1_000_003)

STEP = 37  # rank r's input starts r * STEP elements into the base array
MAX_RANKS = 64


@cache
def base(dtype: str) -> np.ndarray:
    """Random elements of ``dtype``: the whole range of integers, floats in ±[0.5, 1.5)."""
    random = np.random.default_rng(20240917)
    count = max(SIZES) + MAX_RANKS * STEP
    if dtype == "bool":
        return random.integers(0, 2, count).astype(bool)
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        return random.integers(info.min, info.max, count, dtype=dtype, endpoint=True)
    return ((random.random(count) + 0.5) * random.choice([-1.0, 1.0], count)).astype(dtype)


def rank_input(dtype: str, rank: int, count: int) -> np.ndarray:
    """Rank ``rank``'s ``count`` elements; a view that must not be written to."""
    view = base(dtype)[rank * STEP : rank * STEP + count]
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
    inputs: list[np.ndarray], op: str, prescale: float, postscale: float
) -> np.ndarray:
    """The exact result: scaled in float64 and truncated, reduced with wrap-around."""
    dtype = inputs[0].dtype.name
    if prescale != 1.0:
        inputs = [truncate(x.astype(np.float64) * prescale, dtype) for x in inputs]
    function = {"Min": np.minimum, "Max": np.maximum, "Product": np.multiply}.get(op, np.add)
    result = inputs[0].copy()
    for x in inputs[1:]:
        function(result, x, out=result)
    if op == "Average":
        postscale *= 1.0 / len(inputs)
    return result if postscale == 1.0 else truncate(result.astype(np.float64) * postscale, dtype)


def reduce_bools(inputs: list[np.ndarray], op: str) -> np.ndarray:
    """Sum and Max of bools are OR, Product and Min are AND."""
    function = np.logical_or if op in ("Sum", "Max") else np.logical_and
    return function.reduce(inputs)


def reduce_floats(
    inputs: list[np.ndarray], op: str, prescale: float, postscale: float
) -> tuple[np.ndarray, np.ndarray]:
    """The result in float64, and how far from it the engine's may be."""
    dtype = inputs[0].dtype
    ranks = len(inputs)
    wide = np.stack([x.astype(np.float64) for x in inputs]) * prescale
    factor = postscale / ranks if op == "Average" else postscale
    function = {"Min": np.minimum, "Max": np.maximum, "Product": np.multiply}.get(op, np.add)
    result = function.reduce(wide, axis=0) * factor
    # What the accumulation may lose: half a unit for every operation, of the sum of magnitudes (or
    # of the product). 16-bit types accumulate in float32.
    accumulated = np.finfo(np.float32 if dtype == np.float16 else dtype).eps
    magnitude = np.abs(result)
    if op in ("Sum", "Average"):
        magnitude = np.abs(wide).sum(axis=0) * abs(factor)
    tolerance = (ranks + 2) * accumulated * magnitude
    # One rounding to the result's type; a scaled 16-bit input may have been rounded as well.
    stored = np.finfo(dtype).eps
    tolerance += 0.5 * stored * np.abs(result) + float(np.finfo(dtype).smallest_subnormal)
    if prescale != 1.0:
        tolerance += 0.5 * stored * magnitude * (ranks if op == "Product" else 1)
    if hosts_come_first():
        # What comes of each host is rounded to the type, too.
        tolerance += 0.5 * stored * magnitude * (ranks if op == "Product" else 1)
    return result, tolerance


def hosts_come_first() -> bool:
    """Whether this job reduces within hosts first, and then between them."""
    return os.environ.get("HOROVOD_HIERARCHICAL_ALLREDUCE") == "1"


def wrong(
    got: np.ndarray, inputs: list[np.ndarray], op: str, prescale: float, postscale: float
) -> int:
    """How many elements of ``got`` are not the reduction of ``inputs``."""
    dtype = inputs[0].dtype
    if got.dtype != dtype or got.shape != inputs[0].shape:
        raise AssertionError(f"{got.dtype}{got.shape}, not {dtype}{inputs[0].shape}")
    if dtype == np.bool_:
        return int(np.count_nonzero(got != reduce_bools(inputs, op)))
    if dtype.name in INTEGERS:
        return int(np.count_nonzero(got != reduce_integers(inputs, op, prescale, postscale)))
    result, tolerance = reduce_floats(inputs, op, prescale, postscale)
    return int(np.count_nonzero(~(np.abs(got.astype(np.float64) - result) <= tolerance)))
