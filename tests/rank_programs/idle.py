"""Rank programs that do nothing for a while, and say how much CPU time that took."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

import hvdtune as hvd


def cpu_seconds() -> float:
    """CPU time of this process, all threads, as the kernel counts it in ticks."""
    # The second field is the command in parentheses; utime and stime are fields 14 and 15.
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def check_that_ticks_count() -> None:
    """A machine that does not charge CPU time to processes would pass every test of it."""
    before = cpu_seconds()
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    assert cpu_seconds() > before


def sleep_idle(seconds: float) -> float:
    """CPU seconds used while the engine runs and nobody submits anything."""
    check_that_ticks_count()
    hvd.init()
    for step in range(20):
        hvd.allreduce(np.ones(1000, np.float32), name=f"warm.{step % 4}")
    hvd.barrier()
    time.sleep(0.5)
    before = cpu_seconds()
    time.sleep(seconds)
    used = cpu_seconds() - before
    hvd.shutdown()
    return used


def wait_for_late_rank(seconds: float) -> float:
    """CPU seconds used while all ranks but the last are blocked in an allreduce."""
    check_that_ticks_count()
    hvd.init()
    hvd.barrier()
    before = cpu_seconds()
    if hvd.rank() == hvd.size() - 1:
        time.sleep(seconds)
    hvd.allreduce(np.ones(4, np.float32), name="late")
    used = cpu_seconds() - before
    hvd.shutdown()
    return used
