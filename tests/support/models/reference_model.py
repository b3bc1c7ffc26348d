"""What the collectives mean, in NumPy: the result of every rank from the inputs of all.

Arrays of bfloat16, which NumPy lacks, are float32 arrays whose values bfloat16 can hold. 16-bit
floats are reduced in float32 and rounded once, when the result is stored; integers wrap around, and
scaling them cuts off toward zero. Adasum is in adasum_model.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

INTEGERS = ("uint8", "int8", "uint16", "int16", "int32", "int64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
HALVES = ("float16", "bfloat16")
BOOL = "bool"

# The distance from 1 to the next number.
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
SMALLEST = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 5e-324}

_FUNCTIONS = {"Min": np.minimum, "Max": np.maximum, "Product": np.multiply}


@dataclass(frozen=True)
class Reduction:
    """What an allreduce or reducescatter is asked for."""

    op: str = "Sum"
    prescale: float = 1.0
    postscale: float = 1.0


def storage(dtype: str) -> np.dtype:
    """The NumPy type that holds values of ``dtype`` here."""
    return np.dtype(np.float32 if dtype == "bfloat16" else dtype)


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Floating values to the nearest of ``dtype``, ties to even."""
    if dtype != "bfloat16":
        return values.astype(dtype)
    bits = np.atleast_1d(values.astype(np.float32)).view(np.uint32)
    upper = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return (upper << np.uint32(16)).view(np.float32).reshape(values.shape)


def truncated(values: np.ndarray, dtype: str) -> np.ndarray:
    """float64 to integers: toward zero, and to the nearest end of the type's range beyond it."""
    info = np.iinfo(dtype)
    result = np.empty(values.shape, dtype)
    high, low = values >= float(info.max), values <= float(info.min)
    result[high], result[low] = info.max, info.min
    middle = ~(high | low)
    result[middle] = values[middle].astype(dtype)
    return result


def scaled(values: np.ndarray, factor: float, dtype: str) -> np.ndarray:
    """``values`` of ``dtype`` times a factor, as a tensor of ``dtype`` holds it."""
    if factor == 1.0:
        return values
    if dtype in INTEGERS:
        return truncated(values.astype(np.float64) * factor, dtype)
    wide = np.float64 if dtype == "float64" else np.float32
    return rounded(np.asarray(values.astype(wide) * wide(factor)), dtype)


def total_factor(reduction: Reduction, members: int) -> float:
    """What the reduced values are multiplied by: Average is a Sum times 1/members."""
    average = reduction.op == "Average"
    return reduction.postscale * (1.0 / members) if average else reduction.postscale


def reduced(inputs: Sequence[np.ndarray], reduction: Reduction, dtype: str) -> np.ndarray:
    """The reduction of every rank's input; exact for floats wherever any order of summation is."""
    if dtype == BOOL:
        either = reduction.op in ("Sum", "Max")
        return (np.logical_or if either else np.logical_and).reduce(list(inputs))
    function = _FUNCTIONS.get(reduction.op, np.add)
    accumulator = np.dtype(np.float32) if dtype in HALVES else storage(dtype)
    contributions = [scaled(x, reduction.prescale, dtype).astype(accumulator) for x in inputs]
    total = contributions[0]
    with np.errstate(over="ignore"):  # integers wrap around
        for values in contributions[1:]:
            # NumPy turns the result of 0-d arrays into a scalar.
            total = np.asarray(function(total, values), accumulator)
    factor = total_factor(reduction, len(inputs))
    if dtype in INTEGERS:
        return scaled(total, factor, dtype)
    return rounded(np.asarray(total * accumulator.type(factor)), dtype)


def tolerance(inputs: Sequence[np.ndarray], reduction: Reduction, dtype: str) -> np.ndarray:
    """How far a correct result may be from ``reduced`` when the order of the sum matters.

    Half a unit of the accumulation type for every operation, relative to the sum of magnitudes
    (for products: to the product), and the roundings of the result and of scaled inputs to
    ``dtype``.
    """
    ranks = len(inputs)
    wide = np.stack([values.astype(np.float64) for values in inputs]) * reduction.prescale
    factor = abs(total_factor(reduction, ranks))
    if reduction.op in ("Sum", "Average"):
        magnitude = np.abs(wide).sum(axis=0) * factor
    else:
        magnitude = np.abs(_FUNCTIONS[reduction.op].reduce(wide, axis=0)) * factor
    accumulated = EPSILON["float32" if dtype in HALVES else dtype]
    stored = EPSILON[dtype]
    # Both this model's result and the engine's are off by that much at most: twice.
    bound = 2 * (ranks + 2) * accumulated * magnitude + stored * magnitude
    if reduction.prescale != 1.0:
        bound += stored * magnitude * (ranks if reduction.op == "Product" else 1)
    return bound + 4 * SMALLEST[dtype]


def share_of_rows(rows: int, index: int, members: int) -> slice:
    """The rows that reducescatter gives to the ``index``-th member."""
    start = index * (rows // members) + min(index, rows % members)
    return slice(start, start + rows // members + (index < rows % members))


def received_rows(
    inputs: Sequence[np.ndarray], splits: Sequence[Sequence[int]], index: int
) -> np.ndarray:
    """What alltoall gives to the ``index``-th member; ``splits[s][r]`` rows go from s to r."""
    blocks = []
    for sender, values in enumerate(inputs):
        start = sum(splits[sender][:index])
        blocks.append(values[start : start + splits[sender][index]])
    return np.concatenate(blocks)
