"""Rank programs about what carries tensors: MPI and Gloo."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
from conformance import cases, numpy_face
from rank_programs import sets
from rank_programs.mistakes import outcome

import hvdtune as hvd
from hvdtune.core import world

# Blocks of the table of cases.
OPERATIONS = ("grouped_allgather", "grouped_reducescatter", "alltoall", "special", "barrier")
ALL = tuple(dict.fromkeys((*cases.OPERATIONS, *OPERATIONS)))
# What goes another way where each host is first; of the others HierarchicalCommunicator makes
# those of all with all.
WITHIN_HOSTS_FIRST = (
    *("allreduce", "scaled_allreduce", "grouped_allreduce", "allgather", "grouped_allgather"),
    *("grouped_reducescatter", "special"),
)


def same_as_shared_memory() -> dict[str, Any]:
    """Operations of every kind, each against NumPy; their faults and the bits of the results."""
    report = numpy_face.run(OPERATIONS)
    seen: dict[str, Any] = {"faults": report.all_faults, "digests": report.same + report.own}
    hvd.init()
    seen["sums"] = [_sum(dtype).tobytes() for dtype in (np.float16, np.float32, np.float64)]
    seen["rank"] = hvd.rank()
    seen["enabled"] = (hvd.mpi_enabled(), hvd.gloo_enabled())
    seen["threads"] = outcome(hvd.mpi_threads_supported)
    # Again, after a shutdown: the processes are the same.
    hvd.shutdown()
    seen["sets"] = sets.collectives_of_sets() + sets.overlapping_sets_in_threads(20)
    assert sets.change_while_working()
    return seen


def _sum(dtype: type) -> np.ndarray:
    """A sum whose bits depend on the order of the ranks."""
    mine = np.random.default_rng(hvd.rank()).normal(size=300_001).astype(dtype)
    return hvd.allreduce(mine, op=hvd.Sum, name=f"sum of {dtype.__name__}")


def beside_mpi4py(first: str) -> dict[str, Any]:
    """Training and mpi4py in the same process, whichever of them initialises MPI."""
    if first == "hvdtune":
        hvd.init()
    from mpi4py import MPI

    if first == "mpi4py":
        hvd.init()
    world = MPI.COMM_WORLD
    assert hvd.mpi_enabled()
    assert (world.Get_rank(), world.Get_size()) == (hvd.rank(), hvd.size())
    sums = []
    for step in range(20):
        handle = hvd.allreduce_async(np.full(50_000, hvd.rank() + step), op=hvd.Sum)
        # Their messages and ours, at the same time.
        sums.append(float(world.allreduce(hvd.rank() + step)))
        assert (hvd.synchronize(handle) == sums[-1]).all()
    seen = {
        "rank": hvd.rank(),
        "sums": sums,
        "threads": (hvd.mpi_threads_supported(), MPI.Query_thread() == MPI.THREAD_MULTIPLE),
    }
    hvd.shutdown()
    world.Barrier()  # it was not finalised
    seen["finalized"] = MPI.Is_finalized()
    return seen


def one_dies(victim: int, directory: str) -> None:
    """All reduce without end, until one rank kills itself; what the others are told is written."""
    hvd.init()
    data = np.ones(200_000, np.float32)
    for step in range(10_000):
        if step == 20 and hvd.rank() == victim:
            open(os.path.join(directory, "killed"), "w").close()
            os.kill(os.getpid(), 9)
        try:
            hvd.allreduce(data, name="gradient")
        except hvd.HorovodInternalError as error:
            with open(os.path.join(directory, str(hvd.rank())), "w") as file:
                file.write(str(error))
            return
    raise AssertionError("nobody died")


def fail_to_start() -> Any:
    """What init says."""
    began = time.monotonic()
    return [outcome(hvd.init), time.monotonic() - began]


def one_cannot() -> Any:
    """Rank 1 alone is given a library that is none."""
    if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
        os.environ["HVDTUNE_MPI_LIBRARY"] = "/none"
    return outcome(hvd.init)


def everything_both_ways(thorough: bool) -> dict[str, Any]:
    """Operations, each against NumPy: all of them all with all, then those that hosts change each
    host first, or all of them if `thorough`."""
    seen: dict[str, Any] = {}
    hosts_first = ALL if thorough else WITHIN_HOSTS_FIRST
    for way, value, blocks in (("flat", "0", ALL), ("hosts first", "1", hosts_first)):
        os.environ["HOROVOD_HIERARCHICAL_ALLREDUCE"] = value
        os.environ["HOROVOD_HIERARCHICAL_ALLGATHER"] = value
        seen[way] = numpy_face.run(blocks)
        hvd.init()  # again: the table ends with a shutdown
        seen["enabled"] = (hvd.mpi_enabled(), hvd.gloo_enabled())
        seen["hosts"] = world.engine().hosts()
        hvd.shutdown()
    return seen
