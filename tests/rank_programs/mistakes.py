"""Rank programs that use the engine wrongly and report what each mistake raised.

An outcome is ``(type of the exception, its text)``, ``("", repr of the result)`` if nothing was
raised, or ``("not run", "")`` on a rank that has no part in the mistake.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

import hvdtune as hvd

Outcome = tuple[str, str]
NOT_RUN: Outcome = ("not run", "")


def outcome(call: Callable[[], Any]) -> Outcome:
    try:
        return "", repr(call())
    except Exception as error:
        return type(error).__name__, str(error)


def check_alive(case: str) -> None:
    """The engine still works: a collective of all ranks gives the right result."""
    result = hvd.allreduce(np.full(7, hvd.rank() + 1.0), op=hvd.Sum, name=f"after {case}")
    assert result.tolist() == [sum(range(1, hvd.size() + 1))] * 7, (case, result)


# -- found by the coordinator: every rank gets the same error ------------------------------------

ones = np.ones
f4 = np.float32


def _mismatches() -> dict[str, Callable[[bool], Any]]:
    """Calls with an argument that says whether this rank is the odd one."""

    def grouped(odd: bool, shapes: list[int], others: list[int]) -> Any:
        tensors = [ones(n, f4) for n in (shapes if odd else others)]
        return hvd.grouped_allreduce(tensors, name="x")

    return {
        "allreduce dtype": lambda odd: hvd.allreduce(ones(4, np.int32 if odd else f4), name="x"),
        "allgather dtype": lambda odd: hvd.allgather(ones(4, np.int32 if odd else f4), name="x"),
        "broadcast dtype": lambda odd: hvd.broadcast(ones(4, np.int32 if odd else f4), 0, name="x"),
        "alltoall dtype": lambda odd: hvd.alltoall(ones(9, np.int32 if odd else f4), name="x"),
        "reducescatter dtype": lambda odd: hvd.reducescatter(
            ones(9, np.int32 if odd else f4), name="x"
        ),
        "allreduce shape": lambda odd: hvd.allreduce(ones(5 if odd else 4, f4), name="x"),
        "allreduce dimensions": lambda odd: hvd.allreduce(
            ones((2, 2) if odd else (4,), f4), name="x"
        ),
        "allreduce_ shape": lambda odd: hvd.allreduce_(ones(5 if odd else 4, f4), name="x"),
        "broadcast shape": lambda odd: hvd.broadcast(ones(5 if odd else 4, f4), 0, name="x"),
        "reducescatter shape": lambda odd: hvd.reducescatter(ones(5 if odd else 4, f4), name="x"),
        "prescale": lambda odd: hvd.allreduce(
            ones(4, f4), op=hvd.Sum, prescale_factor=0.5 if odd else 1.0, name="x"
        ),
        "postscale": lambda odd: hvd.allreduce(
            ones(4, f4), op=hvd.Sum, postscale_factor=2.0 if odd else 1.0, name="x"
        ),
        "reduce op": lambda odd: hvd.allreduce(
            ones(4, f4), op=hvd.Max if odd else hvd.Sum, name="x"
        ),
        "reducescatter op": lambda odd: hvd.reducescatter(
            ones(4, f4), op=hvd.Average if odd else hvd.Sum, name="x"
        ),
        "allgather dimensions": lambda odd: hvd.allgather(
            ones((4, 2) if odd else (4,), f4), name="x"
        ),
        "allgather second dimension": lambda odd: hvd.allgather(
            ones((4, 3) if odd else (4, 2), f4), name="x"
        ),
        "alltoall second dimension": lambda odd: hvd.alltoall(
            ones((9, 3) if odd else (9, 2), f4), name="x"
        ),
        "root ranks": lambda odd: hvd.broadcast(ones(4, f4), 1 if odd else 2, name="x"),
        "group sizes": lambda odd: grouped(odd, [4, 4], [4, 4, 4]),
        "group and single group": lambda odd: grouped(odd, [4], [4, 4]),
        "group member's shape": lambda odd: grouped(odd, [4, 5, 6], [4, 4, 6]),
        "grouped_allgather dimensions": lambda odd: hvd.grouped_allgather(
            [ones(2), ones((4, 2) if odd else (4,), f4)], name="x"
        ),
    }


def run_mismatches() -> dict[tuple[str, int], Outcome]:
    """Every mismatch with each rank in turn as the odd one; the name is free again at once."""
    hvd.init()
    outcomes = {}
    for case, call in _mismatches().items():
        for odd in range(hvd.size()):
            mistake = outcome(lambda call=call, odd=odd: call(hvd.rank() == odd))
            outcomes[case, odd] = mistake
            check_alive(f"{case} {odd}")
            again = outcome(lambda call=call: call(False))
            assert again[0] == "", (case, odd, again)
    hvd.shutdown()
    return outcomes


def cached_then_mismatched() -> list[Outcome]:
    """A name that has run well many times: its description is cached when it changes."""
    hvd.init()
    outcomes = []
    for odd in range(hvd.size()):
        for _ in range(5):
            hvd.allreduce(ones(4, f4), name="cached")
        mine = ones(5 if hvd.rank() == odd else 4, f4)
        outcomes.append(outcome(lambda mine=mine: hvd.allreduce(mine, name="cached")))
        # All change together: that is no mistake.
        for count in (6, 7, 4):
            result = hvd.allreduce(ones(count), op=hvd.Sum, name="cached")
            assert result.tolist() == [hvd.size()] * count
    hvd.shutdown()
    return outcomes


# -- found where they are made: only the rank that makes them gets the error ----------------------


def _duplicates() -> dict[str, Callable[[], int]]:
    return {
        "allreduce": lambda: hvd.allreduce_async(ones(4), name="twice", op=hvd.Sum),
        "allreduce_": lambda: hvd.allreduce_async_(ones(4), name="twice", op=hvd.Sum),
        "grouped_allreduce": lambda: hvd.grouped_allreduce_async(
            [ones(4), ones(3)], name="twice", op=hvd.Sum
        ),
        "allgather": lambda: hvd.allgather_async(ones(4), name="twice"),
        "broadcast": lambda: hvd.broadcast_async(ones(4), 0, name="twice"),
        "alltoall": lambda: hvd.alltoall_async(ones(hvd.size()), name="twice"),
        "reducescatter": lambda: hvd.reducescatter_async(ones(4), name="twice", op=hvd.Sum),
    }


def run_duplicates() -> dict[tuple[str, int], Outcome]:
    """Each rank in turn uses a name that it has in flight; its first operation is not harmed."""
    hvd.init()
    outcomes = {}
    for case, call in _duplicates().items():
        for guilty in range(hvd.size()):
            outcomes[case, guilty] = NOT_RUN
            if hvd.rank() == guilty:
                first = call()  # cannot finish: the others submit after the barrier
                outcomes[case, guilty] = outcome(call)
                hvd.barrier()
            else:
                hvd.barrier()
                first = call()
            result = hvd.synchronize(first)
            if case == "allreduce":
                assert result.tolist() == [hvd.size()] * 4
            check_alive(f"{case} {guilty}")
    hvd.shutdown()
    return outcomes


def _local_mistakes(pair: Any, unregistered: Any) -> dict[str, Callable[[], Any]]:
    size = hvd.size()
    rows = ones(2 * size)
    strided = ones((8, 8))[:, ::2]
    return {
        "root below": lambda: hvd.broadcast(ones(3), -1, name="bad"),
        "root above": lambda: hvd.broadcast(ones(3), size, name="bad"),
        "root outside the set": lambda: hvd.broadcast(
            ones(3), size - 1, name="bad", process_set=pair
        ),
        "splits missing": lambda: hvd.alltoall(ones(2 * size + 1), name="bad"),
        "splits too large": lambda: hvd.alltoall(rows, splits=[3] * size, name="bad"),
        "splits too few": lambda: hvd.alltoall(rows, splits=[1] * (size - 1), name="bad"),
        "splits negative": lambda: hvd.alltoall(rows, splits=[-1] + [1] * (size - 1), name="bad"),
        "splits of 64 bits": lambda: hvd.alltoall(rows, splits=np.ones(size, np.int64), name="bad"),
        "splits of two dimensions": lambda: hvd.alltoall(
            rows, splits=np.ones((size, 1), np.int32), name="bad"
        ),
        "alltoall of a scalar": lambda: hvd.alltoall(np.array(1.0), name="bad"),
        "reducescatter of a scalar": lambda: hvd.reducescatter(np.array(1.0), name="bad"),
        "reducescatter Min": lambda: hvd.reducescatter(rows, op=hvd.Min, name="bad"),
        "op and average": lambda: hvd.allreduce(rows, average=True, op=hvd.Sum, name="bad"),
        "complex": lambda: hvd.allreduce(rows.astype(np.complex128), name="bad"),
        "strided": lambda: hvd.allreduce(strided, name="bad"),
        "strided in place": lambda: hvd.allreduce_(strided, name="bad"),
        "strided in a group": lambda: hvd.grouped_allreduce([rows, strided], name="bad"),
        "complex in a group": lambda: hvd.grouped_allreduce(
            [rows, rows.astype(np.complex64)], name="bad"
        ),
        "read-only in place": lambda: hvd.allreduce_(np.frombuffer(bytes(16)), name="bad"),
        "unregistered set": lambda: hvd.allreduce(rows, name="bad", process_set=unregistered),
        "poll an unknown handle": lambda: hvd.poll(987_654),
        "synchronize an unknown handle": lambda: hvd.synchronize(987_654),
    }


def run_local_mistakes() -> dict[str, Outcome]:
    """Every rank makes every mistake, one rank after another; nobody else notices."""
    pair = hvd.ProcessSet([0, 1])
    hvd.init(process_sets=[pair])
    outcomes = {}
    for turn in range(hvd.size()):
        if hvd.rank() == turn:
            unregistered = hvd.ProcessSet([0, 1])
            for case, call in _local_mistakes(pair, unregistered).items():
                outcomes[case] = outcome(call)
                if not pair.included() and case == "root outside the set":
                    outcomes[case] = NOT_RUN
        check_alive(f"turn of {turn}")
    # The name was free each time, and a group that was refused left none of its members behind.
    results = hvd.grouped_allreduce([ones(2), ones(3)], name="bad", op=hvd.Sum)
    assert [r.tolist() for r in results] == [[hvd.size()] * 2, [hvd.size()] * 3]
    hvd.shutdown()
    return outcomes


def run_non_member() -> dict[str, Outcome]:
    """The last rank calls operations of a set that it is not in; the members' go on."""
    members = list(range(int(os.environ["HOROVOD_SIZE"]) - 1))
    subset = hvd.ProcessSet(members)
    hvd.init(process_sets=[subset])
    calls: dict[str, Callable[[], Any]] = {
        "allreduce": lambda: hvd.allreduce(ones(3), op=hvd.Sum, name="s", process_set=subset),
        "grouped_allreduce": lambda: hvd.grouped_allreduce(
            [ones(3)], op=hvd.Sum, name="s", process_set=subset
        ),
        "allgather": lambda: hvd.allgather(ones(1), name="s", process_set=subset),
        "broadcast": lambda: hvd.broadcast(ones(3), 0, name="s", process_set=subset),
        "alltoall": lambda: hvd.alltoall(ones(len(members)), name="s", process_set=subset),
        "reducescatter": lambda: hvd.reducescatter(ones(3), name="s", process_set=subset),
        "barrier": lambda: hvd.barrier(process_set=subset),
    }
    outcomes = {}
    for case, call in calls.items():
        outcomes[case] = outcome(call)
        check_alive(case)
    hvd.shutdown()
    return outcomes


def run_uninitialised() -> dict[str, Outcome]:
    """Queries and operations before init and after shutdown."""
    calls: dict[str, Callable[[], Any]] = {
        name: getattr(hvd, name)
        for name in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
    }
    calls["is_homogeneous"] = hvd.is_homogeneous
    calls["allreduce"] = lambda: hvd.allreduce(ones(3))
    calls["allgather"] = lambda: hvd.allgather(ones(3))
    calls["broadcast"] = lambda: hvd.broadcast(ones(3), 0)
    calls["alltoall"] = lambda: hvd.alltoall(ones(3))
    calls["reducescatter"] = lambda: hvd.reducescatter(ones(3))
    calls["barrier"] = hvd.barrier
    assert hvd.is_initialized() is False
    hvd.shutdown()  # without init: nothing happens
    outcomes = {f"{name} before": outcome(call) for name, call in calls.items()}
    hvd.init()
    assert hvd.is_initialized() is True
    check_alive("init")
    hvd.shutdown()
    hvd.shutdown()
    assert hvd.is_initialized() is False
    outcomes.update({f"{name} after": outcome(call) for name, call in calls.items()})
    return outcomes
