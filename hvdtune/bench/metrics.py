"""Formulas of the benchmark: numbers in, numbers out.

======== ==================================================================== ==========
symbol   meaning                                                              unit
======== ==================================================================== ==========
n        ranks                                                                1
S        size of one operation, as nccl-tests counts it: the array every      bytes
         rank holds (allreduce, broadcast), the whole gathered array
         (allgather), the whole array before scattering (reducescatter),
         everything one rank sends, itself included (alltoall)
t        time of one operation: mean over ranks and timed iterations          s
algbw    S / t                                                                GB/s
f        busbw factor of the operation, see `busbw_factor`                    1
busbw    algbw · f: comparable between operations and rank counts             GB/s
B_copy   bytes copied a second by all usable cores together, each between     bytes/s
         arrays of S bytes
B_stream memory traffic of ``z += x`` (two reads, one write) of all usable    bytes/s
         cores together, arrays of S bytes
T_bound  the shortest time in which memory can carry the operation through    s
         shared memory, see `memory_bound_seconds`
share    T_bound / t = busbw / (the busbw at T_bound)                         1
======== ==================================================================== ==========

1 GB is 10⁹ bytes. Definitions follow nccl-tests, doc/PERFORMANCE.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

GIGA = 1e9

OPERATIONS = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier")


def busbw_factor(operation: str, ranks: int) -> float | None:
    """f such that busbw = algbw · f; None if a bus bandwidth means nothing.

    allreduce 2(n−1)/n; allgather, reducescatter, alltoall (n−1)/n; broadcast 1. With one rank
    nothing crosses a bus, and a barrier carries no data: None. ValueError for another operation.
    """
    if operation not in OPERATIONS:
        raise ValueError(f"unknown operation {operation!r}; accepted: {', '.join(OPERATIONS)}")
    if ranks < 1:
        raise ValueError(f"the number of ranks must be at least 1, not {ranks}")
    if ranks == 1 or operation == "barrier":
        return None
    if operation == "allreduce":
        return 2.0 * (ranks - 1) / ranks
    if operation == "broadcast":
        return 1.0
    return (ranks - 1) / ranks


def algbw_gbs(size_bytes: int, seconds: float) -> float:
    """algbw = S / t in GB/s; t must be positive."""
    return size_bytes / seconds / GIGA


def busbw_gbs(operation: str, size_bytes: int, seconds: float, ranks: int) -> float | None:
    """busbw = S / t · f in GB/s, or None if the operation has no bus bandwidth."""
    factor = busbw_factor(operation, ranks)
    return None if factor is None else algbw_gbs(size_bytes, seconds) * factor


def memory_bound_seconds(
    operation: str, size_bytes: int, ranks: int, copy_rate: float, stream_rate: float
) -> float | None:
    """T_bound: the least time for memory to carry the operation between n processes.

    Processes do not see each other's arrays, so data that others read are copied into shared memory
    once ("published"), and arriving data are copied out once; data that only their owner reads are
    not published. All ranks together therefore move at least:

    ============= ==================== ========== ======================================
    operation     copied               streamed   because
    ============= ==================== ========== ======================================
    allreduce     2(n−1)S              (n+1)S     publish and fetch all but the own part;
                                                  each part: n reads and one write
    reducescatter (n−1)S               (n+1)S     as above, nothing is fetched
    allgather     (n+1)S               0          publish n·S/n; every rank stores S
    broadcast     nS                   0          publish S; n−1 ranks store S
    alltoall      (2n−1)S              0          publish (n−1)S; every rank stores S
    ============= ==================== ========== ======================================

    T_bound = copied / copy_rate + streamed / stream_rate, rates in bytes/s measured with arrays
    of S bytes on all usable cores at once. None for a barrier, one rank, or S = 0.
    """
    if busbw_factor(operation, ranks) is None or size_bytes == 0:
        return None
    n = ranks
    copied, streamed = {
        "allreduce": (2 * (n - 1), n + 1),
        "reducescatter": (n - 1, n + 1),
        "allgather": (n + 1, 0),
        "broadcast": (n, 0),
        "alltoall": (2 * n - 1, 0),
    }[operation]
    return size_bytes * (copied / copy_rate + streamed / stream_rate)


@dataclass(frozen=True)
class Summary:
    """The statistics of one case's durations, all in seconds."""

    iterations: int
    mean: float
    minimum: float
    p50: float
    p99: float


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """Nearest-rank percentile of ascending values: the ⌈fraction·N⌉-th of them.

    The answer is always a measured value; with fewer than 100 values, p99 is the
    largest.
    """
    if not ordered:
        raise ValueError("a percentile needs at least one value")
    return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)]


def summarise(durations: Sequence[Sequence[float]]) -> Summary:
    """Summary of durations[rank][iteration] in seconds, ranks and iterations pooled.

    Iterations follow each other without a barrier, so a rank that arrives early waits inside its
    own measurement. Pooling counts every second of every rank once, and the mean is the one that
    nccl-tests prints (its ``-a 1``).
    """
    pooled = sorted(value for rank in durations for value in rank)
    if not pooled:
        raise ValueError("no durations to summarise")
    return Summary(
        iterations=len(durations[0]),
        mean=math.fsum(pooled) / len(pooled),
        minimum=pooled[0],
        p50=percentile(pooled, 0.50),
        p99=percentile(pooled, 0.99),
    )


def iterations_for(seconds_each: float, budget: float, least: int, most: int) -> int:
    """How many iterations of `seconds_each` fit into `budget` seconds, within [least, most]."""
    if seconds_each <= 0.0:
        return most
    return min(most, max(least, int(budget / seconds_each)))
