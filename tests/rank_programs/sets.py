"""Rank programs about process sets: collectives of some of the ranks."""

from __future__ import annotations

import numpy as np
from rank_programs.mistakes import Outcome, check_alive, outcome

import hvdtune as hvd

MEMBERS = ([0, 1], [1, 2], [2], [0, 2])


def collectives_of_sets() -> list[str]:
    """Every operation in every set, all under the same names; returns what was wrong."""
    sets = [hvd.ProcessSet(ranks) for ranks in MEMBERS]
    hvd.init(process_sets=sets)
    me = hvd.rank()
    faults = [
        f"{s}: id {s.process_set_id}, not {i}" for i, s in enumerate(sets, 1)
        if s.process_set_id != i
    ]  # fmt: skip
    handles = []
    for process_set in [hvd.global_process_set, *sets]:
        if process_set.included():
            mine = np.arange(10.0) + me
            handle = hvd.allreduce_async(mine, op=hvd.Sum, name="same", process_set=process_set)
            handles.append((process_set, handle))
    for process_set, handle in handles:
        ranks = process_set.ranks
        expected = np.arange(10.0) * len(ranks) + sum(ranks)
        if not np.array_equal(hvd.synchronize(handle), expected):
            faults.append(f"allreduce in {ranks}")
    for process_set in sets:
        if process_set.included():
            faults += _other_operations(process_set)
    check_alive("sets")
    hvd.shutdown()
    return faults


def _other_operations(process_set: hvd.ProcessSet) -> list[str]:
    me, ranks = hvd.rank(), process_set.ranks
    place, size = ranks.index(me), len(ranks)
    results = {
        "rank": (process_set.rank(), place),
        "size": (process_set.size(), size),
        "average": (
            hvd.allreduce(np.full(3, float(me)), process_set=process_set, name="a"),
            np.full(3, sum(ranks) / size),
        ),
        "allgather": (
            hvd.allgather(np.full(me + 1, me), process_set=process_set, name="g"),
            np.concatenate([np.full(r + 1, r) for r in ranks]),
        ),
        "broadcast": (
            hvd.broadcast(np.full(2, me), ranks[-1], process_set=process_set, name="b"),
            np.full(2, ranks[-1]),
        ),
        "alltoall": (
            hvd.alltoall(np.arange(size) + 10 * me, process_set=process_set, name="t"),
            np.array([place + 10 * r for r in ranks]),
        ),
        "reducescatter": (
            hvd.reducescatter(np.arange(size * 2), op=hvd.Sum, process_set=process_set, name="r"),
            np.arange(2 * place, 2 * place + 2) * size,
        ),
    }
    hvd.barrier(process_set=process_set)
    return [
        f"{case} in {ranks}: {got}, not {expected}"
        for case, (got, expected) in results.items()
        if not np.array_equal(got, expected)
    ]


def sets_do_not_wait() -> list[float]:
    """An operation that waits for rank 0 in one set does not hold up another set."""
    first, second = hvd.ProcessSet([0, 1]), hvd.ProcessSet([1, 2])
    hvd.init(process_sets=[first, second])
    pending = None
    if hvd.rank() == 1:
        pending = hvd.allreduce_async(np.ones(3), name="n", op=hvd.Sum, process_set=first)
    if hvd.rank() in (1, 2):
        for _ in range(20):
            hvd.allreduce(np.ones(3), name="n", process_set=second)
        assert pending is None or not hvd.poll(pending)
    hvd.barrier()
    if hvd.rank() == 0:
        pending = hvd.allreduce_async(np.ones(3), name="n", op=hvd.Sum, process_set=first)
    result = [2.0] * 3 if pending is None else hvd.synchronize(pending).tolist()
    hvd.barrier()  # a shutdown would end the others' operation
    hvd.shutdown()
    return result


def bad_sets() -> dict[str, Outcome]:
    """Sets that cannot be; the job starts with good ones afterwards."""
    hvd.init()
    hvd.shutdown()
    outcomes = {
        "duplicate": outcome(
            lambda: hvd.init(process_sets=[hvd.ProcessSet([0, 1]), hvd.ProcessSet([1, 0])])
        )
    }
    hvd.shutdown()
    outcomes["out of range"] = outcome(lambda: hvd.init(process_sets=[hvd.ProcessSet([0, 77])]))
    outcomes["still down"] = ("", repr(hvd.is_initialized()))
    hvd.shutdown()
    outcomes["not int"] = outcome(lambda: hvd.ProcessSet([np.int64(0), np.int64(1)]))
    good = hvd.ProcessSet([1, 0])
    hvd.init(process_sets=[good])
    outcomes["sorted"] = ("", repr(good.ranks))
    outcomes["non-member's rank"] = outcome(good.rank)
    check_alive("good sets")
    hvd.shutdown()
    return outcomes
