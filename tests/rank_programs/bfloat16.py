"""bfloat16, which NumPy lacks: its bits travel as uint16 through the core, without a framework."""

from __future__ import annotations

from typing import Any

import numpy as np

import hvdtune as hvd
from hvdtune.core import operations
from hvdtune.core.operations import Buffer

SIZES = (0, 1, 1000, 1_000_003)
REDUCTIONS: dict[int, Any] = {
    hvd.Sum: np.sum,
    hvd.Average: np.mean,
    hvd.Min: np.min,
    hvd.Max: np.max,
    hvd.Product: np.prod,
}
ROUNDING = 2.0**-8  # a correctly rounded result is at most this far off, relatively


def to_bits(values: np.ndarray) -> np.ndarray:
    """Values that bfloat16 holds exactly, as its bits."""
    bits = values.astype(np.float32).view(np.uint32)
    assert not (bits & 0xFFFF).any()
    return (bits >> 16).astype(np.uint16)


def to_values(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def buffer(bits: np.ndarray) -> Buffer:
    address = operations.array_address(bits)
    return Buffer(address, operations.DTYPES["bfloat16"], bits.shape, bits)


def values_of(rank: int, size: int) -> np.ndarray:
    """1 or 2, different on every rank and place: sums and products of 8 ranks are exact."""
    return 1.0 + (np.arange(size) * 7 + rank * 3) % 5 % 2


def first(completed: operations.Completed) -> np.ndarray:
    return completed.outputs[0]


def every_operation() -> None:
    hvd.init()
    ranks, rank = hvd.size(), hvd.rank()
    for size in SIZES:
        everybody = [values_of(r, size) for r in range(ranks)]
        mine = to_bits(everybody[rank])
        for op, reduce in REDUCTIONS.items():
            check_reductions(op, reduce(np.stack(everybody), axis=0), mine, f"{size}.{op}")
        name = str(size)
        gathered = operations.allgather_async([buffer(mine)], name=name, finish=first)
        np.testing.assert_array_equal(
            to_values(operations.synchronize(gathered)), np.concatenate(everybody)
        )
        for root in range(ranks):
            out = np.zeros_like(mine)
            handle = operations.broadcast_async(
                buffer(mine), buffer(out), root, name=f"{size}.{root}", finish=lambda done: None
            )
            operations.synchronize(handle)
            np.testing.assert_array_equal(to_values(out), everybody[root])
        splits = [size // ranks] * ranks
        sent = operations.alltoall_async(buffer(mine), splits, name=name, finish=first)
        part = slice(rank * splits[0], (rank + 1) * splits[0])
        np.testing.assert_array_equal(
            to_values(operations.synchronize(sent)), np.concatenate([v[part] for v in everybody])
        )
    hvd.shutdown()


def check_reductions(op: int, expected: np.ndarray, mine: np.ndarray, name: str) -> None:
    """Allreduce, and reducescatter where it is defined; the same bits on all ranks."""
    out = np.zeros_like(mine)
    operations.synchronize(
        operations.allreduce_async(
            [buffer(mine)], [buffer(out)], name=name, op=op, finish=lambda done: None
        )
    )
    tolerance = ROUNDING if op == hvd.Average else 0.0
    np.testing.assert_allclose(to_values(out), expected, rtol=tolerance, atol=0)
    assert len(set(hvd.allgather_object(out.tobytes(), name=f"bits.{name}"))) == 1
    if op not in (hvd.Sum, hvd.Average):
        return
    share = operations.synchronize(
        operations.reducescatter_async([buffer(mine)], name=name, op=op, finish=first)
    )
    parts = np.array_split(expected, hvd.size())
    np.testing.assert_allclose(to_values(share), parts[hvd.rank()], rtol=tolerance, atol=0)
