"""Rank programs for jobs on several hosts."""

from __future__ import annotations

import hashlib
import os
import time
from typing import Any

import numpy as np

import hvdtune as hvd
from hvdtune.core import tuning, world


def train(steps: int) -> str:
    """A digest of what many sums of all sizes come to, each step beginning with the last one's."""
    hvd.init()
    random = np.random.default_rng(hvd.rank())
    weights = [random.standard_normal(size).astype(np.float32) for size in (3, 1000, 300_001)]
    for step in range(steps):
        handles = [
            hvd.allreduce_async(weight, op=hvd.Average, name=f"weight.{index}")
            for index, weight in enumerate(weights)
        ]
        noise = [random.standard_normal(weight.size).astype(np.float32) for weight in weights]
        sums = [hvd.synchronize(handle) for handle in handles]
        weights = [total + n * np.float32(0.1) for total, n in zip(sums, noise, strict=True)]
        small = hvd.allreduce(np.full(2, step + hvd.rank(), np.float32), op=hvd.Sum, name="small")
        weights[0] = weights[0] + small[0]
    last = [hvd.allreduce(w, op=hvd.Sum, name=f"last.{i}") for i, w in enumerate(weights)]
    hvd.shutdown()
    return hashlib.sha256(b"".join(array.tobytes() for array in last)).hexdigest()


def train_both_ways(steps: int) -> dict[str, Any]:
    """`train` flat, then with each host first; and what carried the tensors."""
    hvd.init()
    enabled = (hvd.mpi_enabled(), hvd.gloo_enabled())
    hosts = world.engine().hosts()
    hvd.shutdown()
    flat = train(steps)
    os.environ["HOROVOD_HIERARCHICAL_ALLREDUCE"] = "1"
    return {"flat": flat, "hosts first": train(steps), "enabled": enabled, "hosts": hosts}


def sums_of(elements: int, times: int) -> float:
    """Sum as many float32 of all ranks, so often; seconds of the fastest."""
    hvd.init()
    data = np.full(elements, hvd.rank(), np.float32)
    seconds = []
    for _ in range(times):
        hvd.barrier()
        begin = time.monotonic()
        total = hvd.allreduce(data, op=hvd.Sum, name="sum")
        seconds.append(time.monotonic() - begin)
        assert (total == sum(range(hvd.size()))).all()
    hvd.barrier()
    hvd.shutdown()
    return min(seconds)


def sum_digest() -> str:
    """A digest of a sum and of an allgather, whose bits tell the order of the sum."""
    mine = np.random.default_rng(hvd.rank()).normal(size=70_001).astype(np.float32)
    total = hvd.allreduce(mine, op=hvd.Sum, name="digest")
    gathered = hvd.allgather(mine[: 100 + hvd.rank()], name="gathered")
    return hashlib.sha256(total.tobytes() + gathered.tobytes()).hexdigest()


def one_digest() -> str:
    """`sum_digest` of a job that goes one way."""
    hvd.init()
    digest = sum_digest()
    hvd.shutdown()
    return digest


def change_ways(changes: int) -> dict[bool, set[str]]:
    """Go the two ways in turn, changed by rank 0 in the middle of traffic; the digests of each."""
    hvd.init()
    seen: dict[bool, set[str]] = {False: set(), True: set()}
    for turn in range(changes):
        way = turn % 2 == 0
        values = {"hierarchical_allreduce": way, "hierarchical_allgather": way}
        handles = [hvd.allreduce_async(np.ones(50_000), name=f"before.{n}") for n in range(3)]
        if hvd.rank() == 0:
            tuning.apply(values)
        for handle in handles:
            hvd.synchronize(handle)
        in_force = 0
        while not in_force:  # on all ranks
            now = tuning.current()
            mine = int(all(now[key] == value for key, value in values.items()))
            in_force = hvd.allreduce(np.array([mine], np.int32), op=hvd.Min, name="in force")[0]
        seen[way].add(sum_digest())
    hvd.shutdown()
    return seen


def tunable() -> set[str]:
    """What may be changed while the job runs."""
    hvd.init()
    keys = set(tuning.current())
    hvd.barrier()
    hvd.shutdown()
    return keys


def places() -> dict[str, Any]:
    """Who is where, as this rank sees it."""
    hvd.init()
    answer = {
        "hosts": world.engine().hosts(),
        "homogeneous": hvd.is_homogeneous(),
        "local": (hvd.local_rank(), hvd.local_size()),
    }
    hvd.barrier()
    hvd.shutdown()
    return answer


def sets_come_and_go(rounds: int) -> int:
    """Sets of all kinds are made, used and removed; rounds that went well."""
    hvd.init(process_sets="dynamic")
    size = hvd.size()
    members = [[0, 1], [size - 2, size - 1], [0, size - 1], [1, 2]]
    good = 0
    for turn in range(rounds):
        ranks = members[turn % len(members)]
        process_set = hvd.add_process_set(ranks)
        if hvd.rank() in ranks:
            for name in ("a", "b"):
                for _ in range(4):
                    total = hvd.allreduce(
                        np.full(10 + turn, hvd.rank() + 1, np.int64),
                        op=hvd.Sum, name=f"{name}.{turn % 3}", process_set=process_set,
                    )  # fmt: skip
                    assert (total == sum(rank + 1 for rank in ranks)).all()
        everybody = hvd.allreduce(np.ones(4, np.float64), op=hvd.Sum, name="everybody")
        assert (everybody == size).all()
        hvd.remove_process_set(process_set)
        good += 1
    hvd.shutdown()
    return good


def many_names(rounds: int) -> int:
    """More names than the cache has slots, all used again; rounds that went well."""
    hvd.init()
    good = 0
    for _ in range(rounds):
        handles = [
            hvd.allreduce_async(np.full(5, index, np.float32), op=hvd.Sum, name=f"n.{index}")
            for index in range(50)
        ]
        sums = [hvd.synchronize(handle) for handle in handles]
        assert all((total == index * hvd.size()).all() for index, total in enumerate(sums))
        good += 1
    hvd.shutdown()
    return good


def start_and_stop(times: int) -> int:
    """init and shutdown, again and again."""
    for turn in range(times):
        hvd.init()
        total = hvd.allreduce(np.full(3, turn, np.int32), op=hvd.Sum, name="turn")
        assert (total == turn * hvd.size()).all()
        hvd.shutdown()
    return times


def start_and_stop_at_once(times: int) -> int:
    """The same with nothing in between: fast ranks leave while slow ones still come."""
    for _ in range(times):
        hvd.init()
        hvd.shutdown()
    return times


def one_leaves(leaver: int) -> str:
    """One rank shuts down while the others wait for it; what they are told."""
    hvd.init()
    hvd.allreduce(np.ones(3, np.float32), name="together")
    if hvd.rank() == leaver:
        hvd.shutdown()
        return "left"
    try:
        hvd.allreduce(np.ones(3, np.float32), name="without.it")
    except hvd.HorovodInternalError as error:
        return str(error)
    return "no error"


def init_alone() -> str:
    """What init says."""
    try:
        hvd.init()
    except ValueError as error:
        return str(error)
    hvd.shutdown()
    return "no error"
