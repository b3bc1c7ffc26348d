"""Rank programs about the threads that help a rank to reduce."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

import hvdtune as hvd

LARGE = 1 << 20  # elements of float32: well above what is not worth sharing


def helper_threads() -> dict[int, int]:
    """This process's helpers: by thread id, how often each was switched from or to."""
    found = {}
    for folder in Path("/proc/self/task").iterdir():
        try:
            name = (folder / "comm").read_text()
            status = (folder / "status").read_text().splitlines()
        except OSError:
            continue  # another thread, which has just ended
        if not name.startswith("hvdtune-help"):
            continue
        counts = [line.split()[1] for line in status if "ctxt_switches" in line]
        found[int(folder.name)] = sum(map(int, counts))
    return found


def check_allreduce(name: str) -> None:
    values = np.arange(LARGE, dtype=np.float32) + hvd.rank()
    total = hvd.allreduce(values, op=hvd.Sum, name=name)
    first = hvd.size() * (hvd.size() - 1) / 2
    assert (total == np.arange(LARGE, dtype=np.float32) * hvd.size() + first).all()


def come_and_go(cpus: int = 0) -> list[int]:
    """How many helpers there are in a job, behind it, and in the next one.

    `cpus`: to which the ranks are bound together; 0: as they are.
    """
    if cpus:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cpus])
    counts = []
    for _ in range(2):
        hvd.init()
        check_allreduce("large")
        counts.append(len(helper_threads()))
        hvd.shutdown()
        counts.append(len(helper_threads()))
    return counts


def sleep_when_idle() -> bool:
    """Whether helpers are not scheduled any more once there is nothing to do."""
    hvd.init()
    for _ in range(20):
        check_allreduce("large")
    hvd.barrier()
    quiet = 0
    before = helper_threads()
    for _ in range(150):
        time.sleep(0.2)
        now = helper_threads()
        quiet = quiet + 1 if now == before else 0
        before = now
        if quiet == 5:
            break
    hvd.barrier()
    check_allreduce("large")  # they can be woken again
    hvd.shutdown()
    return quiet == 5


def fork_between_reductions(rounds: int) -> list[int]:
    """Children have no helpers and end as Python programs do; the parents' go on helping."""
    hvd.init()
    codes = []
    for turn in range(rounds):
        check_allreduce(f"before {turn}")
        child = os.fork()
        if child == 0:
            sys.exit(7 if not helper_threads() else 8)
        check_allreduce(f"behind {turn}")
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    hvd.shutdown()
    return codes
