"""Rank programs about what starting and ending a job costs and leaves behind."""

from __future__ import annotations

import os
import resource
import time

import numpy as np

import hvdtune as hvd


def hold(times: int) -> dict[str, int]:
    """init, allreduce, shutdown again and again; what the process holds more than after a tenth."""
    before: dict[str, int] = {}
    for turn in range(times):
        hvd.init()
        assert hvd.allreduce(np.ones(1000), op=hvd.Sum, name="sum")[0] == hvd.size()
        hvd.shutdown()
        if turn == times // 10:
            before = holdings()
    return {what: amount - before[what] for what, amount in holdings().items()}


def holdings() -> dict[str, int]:
    """Open files, threads, mappings and resident KiB of this process."""
    with open("/proc/self/status", encoding="ascii") as status:
        lines = dict(line.split(":", 1) for line in status)
    with open("/proc/self/maps", encoding="utf-8") as maps:
        mappings = sum(1 for _ in maps)
    return {
        "files": len(os.listdir("/proc/self/fd")),
        "threads": int(lines["Threads"]),
        "mappings": mappings,
        "resident": int(lines["VmRSS"].split()[0]),
    }


def wait_for_rank(late: int, seconds: float) -> int:
    """One rank comes late. Returns how often the caller fell asleep in init."""
    if int(os.environ["HOROVOD_RANK"]) == late:
        time.sleep(seconds)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    hvd.init()
    slept = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before
    assert hvd.allreduce(np.ones(3), op=hvd.Sum, name="sum")[0] == hvd.size()
    hvd.shutdown()
    return slept
