"""The speed of this machine's memory: the yardstick of the column `share`.

As many ranks as there are usable CPUs work at the same time, each on its own arrays; the other
ranks sleep. There are two kernels, of which an allreduce through shared memory consists:

- copy: ``numpy.copyto(z, x)``; the rate counts the bytes copied (as memcpy benchmarks do);
- stream: ``numpy.add(z, x, out=z)``; the rate counts all traffic, two reads and one write.

Each is measured for several array sizes, since a copy within the cache is several times faster
than one in memory. It is repeated in rounds that all ranks begin together. A round's rate is the
bytes of all ranks over the time of the slowest, and the best round counts: a bound must not
depend on who else was using the machine. Between sizes the rates are interpolated over log S.

`metrics.memory_bound_seconds` makes a bound for each operation from the two rates. For an
allreduce, T_bound = 2(n−1)S / B_copy + (n+1)S / B_stream: per rank, (3 − 2/n)S is read and
(2 − 1/n)S written. Reading the peers' arrays in place would save one copy of (n−1)S, but
needs kernel support that containers lack; so a share above 1 appears only if ranks find each
other's data in a shared cache.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

MIB = 1 << 20

#: Array sizes measured, in bytes; a sweep beyond the last one uses the last one's rates.
SIZES = (MIB // 4, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)

#: Below this size latencies dominate an operation, and a share of the bandwidth says nothing.
LEAST_SIZE = 64 * 1024

_ROUND_SECONDS = 0.012

#: Rounds go on until the three best agree this well, or for at most this long.
_AGREEMENT = 0.9
_LIMIT_SECONDS = 0.5


@dataclass(frozen=True)
class MemoryPoint:
    """Rates of all measuring ranks together, in bytes/s, with arrays of `size_bytes`."""

    size_bytes: int
    copy_rate: float
    stream_rate: float


@dataclass(frozen=True)
class MemoryCurve:
    """The measured points, ascending in size, and how many ranks measured them at once."""

    workers: int
    points: tuple[MemoryPoint, ...]

    def rates(self, size_bytes: int) -> tuple[float, float]:
        """(copy, stream) in bytes/s at a size, interpolated over log2; constant outside."""
        points = self.points
        above = bisect_left([point.size_bytes for point in points], size_bytes)
        if above == 0:
            return points[0].copy_rate, points[0].stream_rate
        if above == len(points):
            return points[-1].copy_rate, points[-1].stream_rate
        low, high = points[above - 1], points[above]
        span = math.log2(high.size_bytes / low.size_bytes)
        weight = math.log2(size_bytes / low.size_bytes) / span
        return (
            low.copy_rate + weight * (high.copy_rate - low.copy_rate),
            low.stream_rate + weight * (high.stream_rate - low.stream_rate),
        )


def sizes_up_to(largest: int) -> tuple[int, ...]:
    """The sizes worth measuring when the largest operation has `largest` bytes."""
    needed = [size for size in SIZES if size <= largest]
    return tuple(needed) or SIZES[:1]


def measure(
    rank: int,
    workers: int,
    sizes: Sequence[int],
    barrier: Callable[[], None],
    slowest: Callable[[float], float],
) -> MemoryCurve:
    """Measure on ranks 0 … workers−1; every rank calls this and gets the same curve.

    `barrier()` holds until every rank has called it; `slowest(x)` is the largest x of all ranks.
    """
    import numpy as np

    points = []
    for size in sizes:
        mine = rank < workers
        elements = size // 4
        target = np.zeros(elements if mine else 0, np.float32)
        source = np.ones(elements if mine else 0, np.float32)

        def copy(target: Any = target, source: Any = source) -> None:
            np.copyto(target, source)

        def stream(target: Any = target, source: Any = source) -> None:
            np.add(target, source, out=target)

        rates = [
            _best_rate(kernel if mine else None, workers * traffic, barrier, slowest)
            for kernel, traffic in ((copy, size), (stream, 3 * size))
        ]
        points.append(MemoryPoint(size, rates[0], rates[1]))
    return MemoryCurve(workers, tuple(points))


def _best_rate(
    kernel: Callable[[], None] | None,
    traffic: int,
    barrier: Callable[[], None],
    slowest: Callable[[float], float],
) -> float:
    """Bytes/s of the best round; `kernel` is None on ranks that do not measure."""
    repeats = 1
    if kernel is not None:
        kernel()  # brings in the pages
        started = time.perf_counter()
        kernel()
        once = time.perf_counter() - started
        repeats = max(1, int(_ROUND_SECONDS / max(once, 1e-7)))
    repeats = int(slowest(repeats if kernel is not None else 0))
    rates: list[float] = []
    spent = 0.0
    while True:
        barrier()
        elapsed = 0.0
        if kernel is not None:
            started = time.perf_counter()
            for _ in range(repeats):
                kernel()
            elapsed = time.perf_counter() - started
        elapsed = slowest(elapsed)
        spent += elapsed
        rates = sorted([*rates, traffic * repeats / elapsed], reverse=True)
        agree = len(rates) > 3 and rates[2] >= _AGREEMENT * rates[0]
        if agree or spent > _LIMIT_SECONDS:
            return rates[0]
