"""Rank programs that are recorded."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import numpy as np
from rank_programs.mistakes import Outcome, outcome

import hvdtune as hvd

LAYERS = ("layer0", "layer1", 'a "quoted" \\ name', "line\nbreak, \x01 and é")


def train(steps: int) -> None:
    """Each step: allreduce of every layer, submitted before any is waited for."""
    hvd.init()
    for _ in range(steps):
        one_step()
    hvd.shutdown()


def one_step() -> None:
    handles = [
        hvd.allreduce_async(np.ones((2, 3 + i), np.float32), name=name)
        for i, name in enumerate(LAYERS)
    ]
    for handle in handles:
        hvd.synchronize(handle)


def all_operations() -> None:
    """Each kind of operation once, with an array of rank + 1 or 6 rows."""
    hvd.init()
    ones = np.ones((6, 2), np.float64)
    hvd.allreduce(ones, name="r")
    hvd.grouped_allreduce([ones, ones[:2]], name="many")
    hvd.allgather(np.ones((hvd.rank() + 1, 2), np.int64), name="g")
    hvd.broadcast(ones, 0, name="b")
    hvd.alltoall(ones, name="a")
    hvd.reducescatter(ones, name="s")
    hvd.barrier()
    hvd.shutdown()


def disagree() -> list[Outcome]:
    """One rejected operation between two good ones of the same name."""
    hvd.init()
    rows = [4, 4 + hvd.rank(), 4]
    seen = [outcome(lambda n=n: hvd.allreduce(np.ones(n), name="x")) for n in rows]
    hvd.shutdown()
    return seen


def last_by_appointment(steps: int, late_rank: int, directory: str) -> None:
    """`late_rank` submits each step's tensor when all others certainly have."""
    hvd.init()
    for step in range(steps):
        others = [
            Path(directory) / f"{step}.{rank}" for rank in range(hvd.size()) if rank != late_rank
        ]
        if hvd.rank() == late_rank:
            while not all(path.exists() for path in others):
                time.sleep(0.001)
        handle = hvd.allreduce_async(np.ones(8), name="x")
        if hvd.rank() != late_rank:
            (Path(directory) / f"{step}.{hvd.rank()}").touch()
        hvd.synchronize(handle)
    hvd.shutdown()


def start_and_stop(directory: str) -> None:
    """Three steps in first.json, none recorded, five in second.json, which ends with the job."""
    hvd.init()
    one_step()
    hvd.start_timeline(f"{directory}/first.json", mark_cycles=True)
    for _ in range(3):
        one_step()
    hvd.stop_timeline()
    hvd.barrier()
    one_step()
    hvd.barrier()
    hvd.start_timeline("/dev/null/t.json")
    one_step()
    hvd.barrier()
    hvd.start_timeline(f"{directory}/second.json")
    hvd.barrier()
    for _ in range(5):
        one_step()
    hvd.shutdown()


def start_without_the_variable(path: str) -> Outcome:
    hvd.init()
    seen = outcome(lambda: hvd.start_timeline(path))
    one_step()
    hvd.shutdown()
    return seen


def train_until_killed() -> None:
    hvd.init()
    for step in range(1_000_000):
        one_step()
        if step == 50:
            print("running", flush=True)


def train_on_a_full_disk(path: str, limit: int) -> int:
    """Files of this process may not grow over `limit` bytes. Returns the number of steps."""
    hvd.init()
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    steps = 300
    for step in range(steps):
        one_step()
        # What is written at once fits whole or not at all: let the first steps be written.
        while step == 5 and hvd.rank() == 0 and Path(path).stat().st_size < 2000:
            time.sleep(0.01)
    hvd.shutdown()
    return steps
