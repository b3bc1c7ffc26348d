"""Rank programs about process sets: collectives of some of the ranks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

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
    """Sets that cannot be, in an init that starts the job and in one that does not."""
    first, same, good = hvd.ProcessSet([0, 1]), hvd.ProcessSet([1, 0]), hvd.ProcessSet([2, 1])
    outcomes = {
        "out of range": outcome(lambda: hvd.init(process_sets=[hvd.ProcessSet([0, 77])])),
        "repeated": outcome(lambda: hvd.init(process_sets=[good, hvd.ProcessSet([0, 0])])),
        "empty": outcome(lambda: hvd.init(process_sets=[hvd.ProcessSet([])])),
        "still down": ("", repr((hvd.is_initialized(), good.process_set_id))),
        "duplicate": outcome(lambda: hvd.init(process_sets=[first, same, good])),
    }
    check_alive("duplicate")
    outcomes["ids"] = ("", repr([s.process_set_id for s in (first, same, good)]))
    outcomes["clean list"] = outcome(lambda: hvd.init(process_sets=[good, same]))
    outcomes["ids by the clean list"] = ("", repr([s.process_set_id for s in (same, good)]))
    outcomes["global set"] = outcome(lambda: hvd.init(process_sets=[hvd.global_process_set]))
    outcomes["full list"] = outcome(lambda: hvd.init(process_sets=[hvd.ProcessSet(range(3))]))
    outcomes["out of range later"] = outcome(
        lambda: hvd.init(process_sets=[hvd.ProcessSet([0, 3])])
    )
    check_alive("later")
    hvd.shutdown()
    outcomes["ids at the end"] = ("", repr([s.process_set_id for s in (first, same, good)]))
    outcomes["size at the end"] = outcome(good.size)
    return outcomes


def one_rank_is_wrong() -> list[Outcome]:
    """One rank's set cannot be, one rank's set is another: nobody starts; then all agree."""
    last = int(os.environ["HOROVOD_RANK"]) == 1
    outcomes = []
    for wrong in ([0, 2], [0]):
        ranks = wrong if last else [1]
        outcomes.append(outcome(lambda ranks=ranks: hvd.init(process_sets=[hvd.ProcessSet(ranks)])))
        assert not hvd.is_initialized()
    dynamic = "1" if last else "0"
    os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = dynamic
    outcomes.append(outcome(hvd.init))
    del os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"]
    hvd.init(process_sets=[hvd.ProcessSet([1])])
    check_alive("agreement")
    hvd.shutdown()
    return outcomes


def static_lives() -> list[object]:
    """Sets through several inits: more of them while the job runs, numbers void at its end."""
    one, two, three = hvd.ProcessSet([0]), hvd.ProcessSet([0, 1]), hvd.ProcessSet([1, 2])
    hvd.init(process_sets=[one, two])
    hvd.init(process_sets=[three, one])
    seen: list[object] = [s.process_set_id for s in (one, two, three)]
    seen.append(outcome(lambda: hvd.add_process_set([0, 2])))
    seen.append(outcome(lambda: hvd.remove_process_set(one)))
    if three.included():
        total = hvd.allreduce(np.ones(2), op=hvd.Sum, process_set=three)
        assert total.tolist() == [2.0, 2.0]
    hvd.barrier()  # a shutdown would end the others' operation
    hvd.shutdown()
    seen += [s.process_set_id for s in (one, two, three)]
    hvd.init(process_sets=[three, two])
    seen += [s.process_set_id for s in (one, two, three)]
    check_alive("second life")
    hvd.shutdown()
    return seen


# -- sets that come and go -------------------------------------------------------------------------


def dynamic_errors() -> dict[str, Outcome]:
    """What add_process_set and remove_process_set refuse: on every rank, and the job goes on."""
    hvd.init(process_sets="dynamic")
    odd = hvd.rank() == 1
    kept = hvd.add_process_set([1, 0])
    other = hvd.add_process_set([2])
    calls = {
        "duplicate": lambda: hvd.add_process_set([0, 1]),
        "itself": lambda: hvd.add_process_set(kept),
        "full list": lambda: hvd.add_process_set(range(hvd.size())),
        "out of range": lambda: hvd.add_process_set([0, 3]),
        "negative": lambda: hvd.add_process_set([-1, 0]),
        "too large for the wire": lambda: hvd.add_process_set([0, 10**12]),
        "repeated": lambda: hvd.add_process_set([0, 2, 2]),
        "empty": lambda: hvd.add_process_set([]),
        "different ranks": lambda: hvd.add_process_set([0, 2] if odd else [1, 2]),
        "out of range on one": lambda: hvd.add_process_set([0, 77] if odd else [1, 2]),
        "different removals": lambda: hvd.remove_process_set(other if odd else kept),
        "removal and addition": lambda: (
            hvd.remove_process_set(other) if odd else hvd.add_process_set([0])
        ),
    }
    outcomes = {}
    for case, call in calls.items():
        outcomes[case] = outcome(call)
        check_alive(case)
        assert [kept.process_set_id, other.process_set_id] == [1, 2], case
    outcomes["numpy ints"] = outcome(lambda: hvd.add_process_set(np.arange(2)))
    alias, unknown = hvd.ProcessSet([2]), hvd.ProcessSet([0])
    hvd.init(process_sets=[alias])
    unknown.process_set_id = 77
    outcomes["unknown's size"] = outcome(unknown.size)
    outcomes["unknown"] = outcome(lambda: hvd.remove_process_set(unknown))
    outcomes["known"] = outcome(lambda: hvd.remove_process_set(other))
    outcomes["again"] = outcome(lambda: hvd.remove_process_set(other))
    hvd.add_process_set([0, 2])  # has the number that `alias` still names
    outcomes["vanished size"] = outcome(alias.size)
    outcomes["vanished rank"] = outcome(alias.rank)
    outcomes["vanished set removed"] = outcome(lambda: hvd.remove_process_set(alias))
    outcomes["vanished set used"] = outcome(lambda: hvd.allreduce(np.ones(1), process_set=alias))
    outcomes["vanished included"] = outcome(alias.included)
    outcomes["rank"] = outcome(kept.rank)
    check_alive("the end")
    hvd.shutdown()
    return outcomes


def numbers_come_back() -> list[int | None]:
    """Numbers of removed sets are given out again, longest removed first."""
    hvd.init(process_sets="dynamic")
    first, second, third = (hvd.add_process_set([rank]) for rank in range(3))
    assert hvd.remove_process_set(second)
    assert hvd.remove_process_set(first)
    again = hvd.add_process_set(first)
    assert again is first
    numbers = [first.process_set_id, second.process_set_id, third.process_set_id]
    numbers += [hvd.add_process_set(ranks).process_set_id for ranks in ([0, 1], [1, 2])]
    hvd.shutdown()
    return numbers


def names_start_over() -> float:
    """Unnamed operations in a set whose number belonged to another set, of other ranks."""
    hvd.init(process_sets="dynamic")
    total = 0.0
    for ranks in ([0, 1], [1, 2], [0, 2]):
        process_set = hvd.add_process_set(ranks)
        assert process_set.process_set_id == 1
        if process_set.included():
            for _ in range(ranks[0] + 2):
                total += hvd.allreduce(np.ones(1), op=hvd.Sum, process_set=process_set)[0]
                same = hvd.allreduce(np.ones(1), op=hvd.Sum, name="n", process_set=process_set)
                assert same[0] == 2.0
        assert hvd.remove_process_set(process_set)
    hvd.shutdown()
    return total


def removed_with_operations() -> list[Outcome]:
    """A set goes while two operations wait in it: one known for long, one never seen before."""
    hvd.init(process_sets="dynamic")
    pair = hvd.add_process_set([0, 1])
    outcomes = []
    for turn in range(2):
        handles = []
        if pair.included():
            hvd.allreduce(np.ones(3), name="known", process_set=pair)
        hvd.barrier()
        if hvd.rank() == turn:
            handles.append(hvd.allreduce_async(np.ones(3), name="known", process_set=pair))
            handles.append(hvd.allgather_async(np.ones(3), name="new", process_set=pair))
        assert hvd.remove_process_set(pair)
        outcomes += [outcome(lambda h=handle: hvd.synchronize(h)) for handle in handles]
        check_alive(f"removal {turn}")
        hvd.add_process_set(pair)
        assert pair.process_set_id == 1
    hvd.shutdown()
    return outcomes


def _in_threads(*calls: Callable[[], Any]) -> list[Any]:
    """Run calls at once, one thread each; their results. Raises what one of them raised."""
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(call) for call in calls]
        return [future.result() for future in futures]


def overlapping_sets_in_threads(steps: int) -> list[str]:
    """Each set has a thread of its own, on every rank; names are the same in all of them."""
    sets = [hvd.ProcessSet(ranks) for ranks in MEMBERS]
    hvd.init(process_sets=sets)

    def train(process_set: hvd.ProcessSet) -> str:
        ranks = process_set.ranks or []
        for step in range(steps):
            mine = np.arange(50.0) * step + hvd.rank()
            total = hvd.allreduce(mine, op=hvd.Sum, name=f"n{step % 3}", process_set=process_set)
            if not np.array_equal(total, np.arange(50.0) * step * len(ranks) + sum(ranks)):
                return f"{ranks}, step {step}: {total}"
        return ""

    mine = [s for s in [hvd.global_process_set, *sets] if s.included()]
    faults = _in_threads(*(lambda s=process_set: train(s) for process_set in mine))
    hvd.barrier()  # a shutdown would end the others' operations
    hvd.shutdown()
    return [str(fault) for fault in faults if fault]


def change_while_working() -> bool:
    """One thread adds a set and removes another, while a second one works.

    Rank 2 comes to that only after the others have worked together: nobody is held up.
    """
    hvd.init(process_sets="dynamic")
    pair, old = hvd.add_process_set([0, 1]), hvd.add_process_set([1, 2])
    new = hvd.ProcessSet([0, 2])
    worked = threading.Event()

    def work() -> None:
        for _ in range(30):
            if pair.included():
                hvd.allreduce(np.ones(100), name="w", process_set=pair)
        hvd.barrier()
        worked.set()

    def change() -> bool:
        if hvd.rank() == 2:
            worked.wait()
        return hvd.add_process_set(new) is new and hvd.remove_process_set(old)

    changed, _ = _in_threads(change, work)
    assert new.process_set_id == 3
    hvd.barrier()
    hvd.shutdown()
    return bool(changed)


def racing_threads(rounds: int) -> int:
    """Three threads, two that add and one that removes, in no agreed order; how many succeeded.

    Each call succeeds on all ranks, or is refused on all of them; nothing hangs.
    """
    hvd.init(process_sets="dynamic")
    successes = 0
    for turn in range(rounds):
        old = hvd.add_process_set([2])
        new = [hvd.ProcessSet([rank]) for rank in range(2)]
        results = _in_threads(
            *(lambda s=s: outcome(lambda: hvd.add_process_set(s))[0] for s in new),
            lambda old=old: outcome(lambda: hvd.remove_process_set(old))[0],
        )
        assert set(results) <= {"", "ValueError"}, results
        ids = [s.process_set_id for s in (*new, old)]
        assert len(set(map(repr, hvd.allgather_object((results, ids), name="equal")))) == 1
        check_alive(f"round {turn}")
        for process_set in (*new, old):
            hvd.remove_process_set(process_set)
        successes += results.count("")
    hvd.shutdown()
    return successes


def ended_while_adding(leaver: int) -> list[Outcome]:
    """One rank ends the job while the others wait for it to add a set."""
    hvd.init(process_sets="dynamic")
    old = hvd.add_process_set([0])
    hvd.barrier()
    if hvd.rank() == leaver:
        hvd.shutdown()
        return []
    results = [outcome(lambda: hvd.add_process_set([0, 1]))]
    results.append(outcome(lambda: hvd.remove_process_set(old)))
    hvd.shutdown()
    return results


def shutdown_beside_adding() -> Outcome:
    """The job ends in one thread of a rank while another one adds a set, which never happens."""
    hvd.init(process_sets="dynamic")
    started = threading.Event()

    def add() -> Outcome:
        started.set()
        return outcome(lambda: hvd.add_process_set([0, 1]))

    def stop() -> None:
        started.wait()
        hvd.shutdown()

    if hvd.rank() == 0:
        return _in_threads(add, stop)[0]
    hvd.shutdown()
    return "not run", ""
