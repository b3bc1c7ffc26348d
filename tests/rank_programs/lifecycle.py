"""Rank programs about init and shutdown."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from rank_programs.mistakes import Outcome, check_alive, outcome

import hvdtune as hvd


def start_and_stop(times: int) -> int:
    """init, work, shutdown, again and again; the ranks are late in turn. Returns open files."""
    descriptors = 0
    for turn in range(times):
        hvd.init()
        check_alive(f"start {turn}")
        handles = [hvd.allreduce_async(np.ones(100), name=f"t{i}") for i in range(10)]
        for handle in handles:
            hvd.synchronize(handle)
        if turn % hvd.size() == hvd.rank():
            time.sleep(0.01)
        hvd.shutdown()
        assert not hvd.is_initialized()
        if turn == 4:
            descriptors = open_descriptors()
    return open_descriptors() - descriptors


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def one_rank_stops(leaver: int) -> dict[str, Any]:
    """One rank calls shutdown while the others wait for a collective; then all start anew."""
    hvd.init()
    seen: dict[str, Any] = {}
    if hvd.rank() != leaver:
        handle = hvd.allreduce_async(np.ones(3), name="pending")
        hvd.barrier()
        seen["pending"] = outcome(lambda: hvd.synchronize(handle))
        seen["new"] = outcome(lambda: hvd.allreduce(np.ones(3), name="new"))
        seen["initialised"] = hvd.is_initialized()
        seen["rank"] = hvd.rank() < hvd.size()
    else:
        hvd.barrier()
    hvd.shutdown()
    hvd.init()
    check_alive("second life")
    hvd.shutdown()
    return seen


def one_rank_returns(leaver: int) -> Outcome | None:
    """One rank's program ends normally, without shutdown, while the others still submit."""
    hvd.init()
    for step in range(5):
        hvd.allreduce(np.ones(100), name=f"step.{step % 2}")
    if hvd.rank() == leaver:
        return None
    return outcome(lambda: [hvd.allreduce(np.ones(100), name="more") for _ in range(100)])


def leave_by_exception(leaver: int) -> Outcome:
    """One rank's script fails with an exception that it does not catch."""
    hvd.init()
    check_alive("start")
    if hvd.rank() == leaver:
        sys.exit("the script failed")
    return outcome(lambda: hvd.allreduce(np.ones(100), name="alone"))


def init_twice() -> list[float]:
    """A second init changes nothing; handles from before it stay valid."""
    hvd.init()
    handle = hvd.allreduce_async(np.ones(3), op=hvd.Sum, name="across")
    hvd.init()
    result = hvd.synchronize(handle)
    hvd.shutdown()
    return result.tolist()


def never_shut_down() -> int:
    """Interpreter exit without shutdown, with a finished handle that nobody fetched."""
    hvd.init()
    hvd.allreduce_async(np.ones(3), name="unfetched")
    hvd.barrier()
    return hvd.rank()


def children_come_and_go(rounds: int) -> list[int]:
    """Forked children end as Python programs do, exit handlers and all, while the job goes on."""
    first = hvd.ProcessSet([0])
    hvd.init(process_sets=[first])
    codes = []
    for turn in range(rounds):
        handle = hvd.allreduce_async(np.ones(1000), name="in flight")
        child = os.fork()
        if child == 0:
            assert hvd.rank() == int(os.environ["HOROVOD_RANK"])  # its parent's
            assert first.process_set_id == 1
            assert first.included() == (hvd.rank() == 0)
            sys.exit(7)
        hvd.synchronize(handle)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        check_alive(f"child {turn}")
        assert first.process_set_id == 1
    hvd.shutdown()
    return codes


def child_starts_its_own_job() -> float:
    """A forked child is no rank of the job; it may run one of its own."""
    hvd.init()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        for name in ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"):
            del os.environ[name]
        hvd.init()
        os.write(write, str(hvd.allreduce(np.ones(1), op=hvd.Sum)[0]).encode())
        os._exit(0)
    os.close(write)
    answer = os.read(read, 100)
    os.waitpid(child, 0)
    check_alive("child")
    hvd.shutdown()
    return float(answer)


def goodbye_that_fails() -> bool:
    """Whether the job still runs after a shutdown in which a part of hvdtune failed."""
    from hvdtune.core import job

    def say_goodbye() -> None:
        raise KeyError("gone")

    job.add_lifecycle_hook(lambda: None, say_goodbye)
    hvd.init()
    hvd.shutdown()
    return hvd.is_initialized()
