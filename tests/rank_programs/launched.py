"""Rank programs for tests of launchers: who am I, and does an allreduce see only my job?"""

from __future__ import annotations

import os

import numpy as np

import hvdtune as hvd


def identity(value: int, steps: int) -> dict[str, object]:
    """Rank, sizes, and the sum of ``value`` over the job, taken ``steps`` times."""
    hvd.init()
    sums = {
        float(hvd.allreduce(np.full(1000, value, np.float64), op=hvd.Sum, name="sum")[-1])
        for _ in range(steps)
    }
    gathered = hvd.allgather(np.array([hvd.rank()], np.int32))
    answer = {
        "rank": hvd.rank(),
        "size": hvd.size(),
        "local": (hvd.local_rank(), hvd.local_size()),
        "cross": (hvd.cross_rank(), hvd.cross_size()),
        "sums": sums,
        "gathered": gathered.tolist(),
    }
    hvd.shutdown()
    return answer


def told(*names: str) -> dict[str, object]:
    """Where this rank is, the sum of all ranks' numbers, and what some variables are."""
    hvd.init()
    answer = {
        "rank": hvd.rank(),
        "host": os.uname().nodename,
        "sum": float(hvd.allreduce(np.full(10, hvd.rank(), np.float64), op=hvd.Sum)[0]),
        "variables": {name: os.environ.get(name) for name in names},
    }
    hvd.shutdown()
    return answer


def peers_of_job() -> dict[str, object]:
    """The sum of all ranks' numbers, and the IPv4 addresses of this process's connections."""
    import psutil

    hvd.init()
    total = float(hvd.allreduce(np.full(10, hvd.rank(), np.float64), op=hvd.Sum)[0])
    connections = psutil.Process().net_connections("tcp4")
    peers = sorted({connection.raddr.ip for connection in connections if connection.raddr})
    hvd.shutdown()
    return {"sum": total, "peers": peers}
