"""Inputs of random programs, and what every rank must get: any rank can compute all of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from support.models.adasum_model import tree
from support.models.random_programs import Operation, Program, Shape, Tensor
from support.models.reference_model import (
    BOOL,
    EPSILON,
    FLOATS,
    INTEGERS,
    SMALLEST,
    Reduction,
    received_rows,
    reduced,
    rounded,
    share_of_rows,
    storage,
    tolerance,
)


@dataclass(frozen=True)
class Expected:
    """A result, and how far from it is still right (None: not at all)."""

    values: np.ndarray
    tolerance: np.ndarray | None = None


# Multiples of 1/step up to the limit: sums of eight of them, scaled by 4, are exact in the type
# that they are summed up in.
_GRID = {
    "float16": (500.0, 2.0),
    "bfloat16": (128.0, 1.0),
    "float32": (4096.0, 8.0),
    "float64": (4096.0, 1024.0),
}
_FACTORS = np.array([-2.0, -1.0, -0.5, 0.5, 1.0, 2.0, 3.0])  # products of four are exact


def _random_values(
    random: np.random.Generator, dtype: str, shape: Shape, exact: bool, op: str
) -> np.ndarray:
    if dtype == BOOL:
        return random.integers(0, 2, shape).astype(bool)
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        return random.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    if not exact:
        return rounded(np.asarray(random.normal(size=shape)), dtype)
    if op == "Product":
        return rounded(np.asarray(random.choice(_FACTORS, shape)), dtype)
    limit, step = _GRID[dtype]
    return rounded(np.asarray(np.rint(random.uniform(-limit, limit, shape) * step) / step), dtype)


def input_of(program: Program, operation: Operation, index: int, rank: int) -> np.ndarray:
    """Tensor ``index`` of the operation on global rank ``rank``."""
    random = np.random.default_rng([program.seed, program.size, operation.index, index, rank])
    tensor = operation.tensors[index]
    shape = tensor.shapes[operation.ranks.index(rank)]
    if rank in operation.joined:
        return np.zeros(shape, storage(tensor.dtype))
    exact = operation.exact
    return _random_values(random, tensor.dtype, shape, exact, operation.reduction.op)


@dataclass(frozen=True)
class Entries:
    """A rank's part of a sparse tensor: ``indices`` (2, n), ``values`` (n,)."""

    indices: np.ndarray
    values: np.ndarray


def entries_of(program: Program, operation: Operation, rank: int) -> Entries:
    """The entries of global rank ``rank``: some ranks have none, some have an index twice."""
    random = np.random.default_rng([program.seed, program.size, operation.index, 0, rank])
    tensor = operation.tensors[0]
    count = int(random.integers(0, 6))
    indices = np.stack([random.integers(0, extent, count) for extent in tensor.shapes[0]])
    return Entries(indices, _random_values(random, tensor.dtype, (count,), True, "Sum"))


def expected_entries(program: Program, operation: Operation) -> Entries:
    """All ranks' entries in the order of ranks; the values divided when they are averaged."""
    parts = [entries_of(program, operation, rank) for rank in operation.ranks]
    values = np.concatenate([part.values for part in parts])
    if operation.reduction.op == "Average":
        dtype = operation.tensors[0].dtype
        wide = np.float64 if dtype == "float64" else np.float32
        values = rounded(values.astype(wide) / wide(len(parts)), dtype)
    return Entries(np.concatenate([part.indices for part in parts], axis=1), values)


def _reduction(inputs: list[np.ndarray], operation: Operation, tensor: Tensor) -> Expected:
    dtype, wire = tensor.dtype, tensor.dtype
    if operation.compressed and dtype in FLOATS:
        wire = "float16"
        inputs = [values.astype(np.float16) for values in inputs]
    if operation.reduction.op == "Adasum":
        return _adasum(inputs, operation.reduction, wire)
    values = reduced(inputs, operation.reduction, wire)
    if operation.exact or dtype not in FLOATS:
        return Expected(rounded(values, dtype) if dtype in FLOATS else values)
    return Expected(values, tolerance(inputs, operation.reduction, wire))


def _adasum(inputs: list[np.ndarray], reduction: Reduction, dtype: str) -> Expected:
    factor = reduction.prescale * reduction.postscale
    values = tree(inputs) * factor
    # What cancels out is as wrong as the largest input is; see also rank_programs/torch_adasum.py.
    worked = EPSILON["float64" if dtype == "float64" else "float32"]
    largest = max(float(np.abs(x.astype(np.float64)).max(initial=0.0)) for x in inputs)
    unit = EPSILON[dtype] * (1.0 + len(inputs) * (reduction.prescale != 1.0))
    bound = unit * np.abs(values) + 32 * worked * largest * abs(factor) + 4 * SMALLEST[dtype]
    if reduction.prescale != 1.0:  # scaled inputs are rounded as well
        bound += EPSILON[dtype] * largest * abs(factor) * len(inputs)
    return Expected(rounded(values, dtype), bound)


def expected(program: Program, operation: Operation, rank: int) -> list[Expected]:
    """The results of an operation on global rank ``rank``, one for each tensor."""
    place = operation.ranks.index(rank)
    results = []
    for index, tensor in enumerate(operation.tensors):
        inputs = [input_of(program, operation, index, r) for r in operation.ranks]
        if operation.kind == "allreduce":
            results.append(_reduction(inputs, operation, tensor))
        elif operation.kind == "reducescatter":
            whole = _reduction(inputs, operation, tensor)
            own = share_of_rows(tensor.shapes[0][0], place, len(operation.ranks))
            bound = whole.tolerance
            results.append(Expected(whole.values[own], None if bound is None else bound[own]))
        elif operation.kind == "broadcast":
            results.append(Expected(inputs[operation.ranks.index(operation.root)]))
        elif operation.kind == "allgather":
            results.append(Expected(np.concatenate(inputs)))
        else:
            results.append(Expected(received_rows(inputs, splits_of(operation), place)))
    return results


def splits_of(operation: Operation) -> tuple[tuple[int, ...], ...]:
    """How many rows of an alltoall go from each sender to each receiver."""
    if operation.splits is not None:
        return operation.splits
    members = len(operation.ranks)
    return tuple((shape[0] // members,) * members for shape in operation.tensors[0].shapes)


def difference(got: np.ndarray, wanted: Expected) -> str:
    """What is wrong with a result; "" if nothing is."""
    values = wanted.values
    if got.dtype != values.dtype or got.shape != values.shape:
        return f"got {got.dtype}{got.shape} instead of {values.dtype}{values.shape}"
    if wanted.tolerance is None:
        wrong = got != values
    else:
        distance = np.abs(got.astype(np.float64) - values.astype(np.float64))
        wrong = ~(distance <= wanted.tolerance)
    if not wrong.any():
        return ""
    first = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    return (
        f"{int(np.count_nonzero(wrong))} of {wrong.size} elements are wrong, the first at "
        f"{tuple(map(int, first))}: {got[first]!r} instead of {values[first]!r}"
    )
