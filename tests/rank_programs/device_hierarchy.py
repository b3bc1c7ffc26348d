"""Allreduces on GPUs (fake ones) of several hosts."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
from rank_programs.device_arrays import same, values
from support.gpus.fake_gpus import GpuArray, set_faults

import hvdtune as hvd
from hvdtune.core import tuning, world
from hvdtune.core.exceptions import HorovodInternalError


def reduced() -> None:
    """One that does not divide into equal shares, several together, and a broadcast."""
    hvd.init()
    everybody = [values(rank, "float32", (7, 3)) for rank in range(hvd.size())]
    mine = GpuArray(everybody[hvd.rank()])
    hvd.allreduce_(mine, name="one", op=hvd.Sum)
    same(mine, np.sum(everybody, axis=0, dtype=np.float32))
    several = [GpuArray(everybody[hvd.rank()]) for _ in range(3)]
    hvd.grouped_allreduce_(several, name="several", op=hvd.Average)
    for one in several:
        same(one, np.mean(everybody, axis=0, dtype=np.float32))
    mine = GpuArray(everybody[hvd.rank()])
    hvd.broadcast_(mine, root_rank=hvd.size() - 1, name="from3")
    same(mine, everybody[-1])
    hvd.shutdown()


def mixed(victim: int) -> str:
    """Operations of several kinds are under way when a rank dies whose GPU is slow.

    Groups are packed, which takes the slow GPU; a tensor by itself could be through before.
    """
    hvd.init()
    data = np.ones(1001, np.float32)
    for step in range(2):  # the first makes connections
        if step and hvd.rank() == victim:
            set_faults("slow=500")
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
        try:
            handles = []
            for turn in range(3):
                name = f"{step}.{turn}"
                handles.append(hvd.broadcast_async_(GpuArray(data), 0, name=f"b{name}"))
                pair = [GpuArray(data) for _ in range(2)]
                handles.append(hvd.grouped_allreduce_async_(pair, name=f"a{name}"))
            for handle in handles:
                hvd.synchronize(handle)
        except HorovodInternalError as error:
            return str(error)
    return "nothing"


def moved(turns: list[bool]) -> None:
    """A batch with each of the settings, one after the other."""
    hvd.init()
    everybody = [values(rank, "int64", (1000,)) for rank in range(hvd.size())]
    for turn, hosts_first in enumerate(turns):
        if hvd.rank() == 0:
            tuning.apply({"hierarchical_allreduce": hosts_first})
            while tuning.current().get("hierarchical_allreduce") != hosts_first:
                time.sleep(0.001)
        hvd.barrier()
        several = [GpuArray(everybody[hvd.rank()]) for _ in range(2)]
        hvd.grouped_allreduce_(several, name=f"moved{turn}", op=hvd.Sum)
        for one in several:
            same(one, np.sum(everybody, axis=0))
    assert world.engine() is not None
    hvd.shutdown()
