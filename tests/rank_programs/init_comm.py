"""Rank programs about init(comm=…): jobs of some of the processes that a launcher started."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np
from rank_programs.mistakes import Outcome, check_alive, outcome

import hvdtune as hvd


def _world_rank() -> int:
    """This process's number among all that the launcher started."""
    return int(os.environ.get("HOROVOD_RANK") or os.environ["OMPI_COMM_WORLD_RANK"])


def _describe_job(steps: int = 50) -> dict[str, Any]:
    """Who is in this process's job; other jobs work under the same names at the same time."""
    mine = np.full(100, _world_rank(), np.float64)
    sums = {float(hvd.allreduce(mine, op=hvd.Sum, name="s")[-1]) for _ in range(steps)}
    return {
        "rank": (hvd.rank(), hvd.size()),
        "local": (hvd.local_rank(), hvd.local_size()),
        "cross": (hvd.cross_rank(), hvd.cross_size()),
        "world ranks": hvd.allgather(np.array([_world_rank()])).tolist(),
        "sums": sums,
    }


# -- lists of ranks --------------------------------------------------------------------------------


def jobs_of_lists(lists: list[list[int]]) -> list[dict[str, Any]]:
    """Each process is in one of the disjoint lists; then they are one job again, and split anew.

    The processes have started jobs different numbers of times when they meet in the common one.
    """
    me = _world_rank()
    mine = next(ranks for ranks in lists if me in ranks)
    seen = []
    if mine is lists[0]:
        hvd.init(comm=mine)
        hvd.shutdown()
    hvd.init(comm=iter(mine))
    assert "mpi4py" not in sys.modules
    seen.append(_describe_job())
    within = hvd.ProcessSet([1])  # ranks of this job, not of the launcher's
    hvd.init(process_sets=[within])
    if within.included():
        assert hvd.allreduce(np.ones(1), op=hvd.Sum, process_set=within)[0] == 1.0
    hvd.barrier()
    hvd.shutdown()
    # All in their order, nothing and None are the same job.
    hvd.init(comm=([], None, range(sum(map(len, lists))))[me % 3])
    seen.append(_describe_job())
    hvd.shutdown()
    hvd.init(comm=mine)
    seen.append(_describe_job())
    hvd.shutdown()
    return seen


def wrong_lists() -> dict[str, Outcome]:
    """What init(comm=…) refuses; the processes that a list does not name go on without a job."""
    me = _world_rank()
    outcomes = {
        "not in the list": outcome(lambda: hvd.init(comm=[0, 2])),
        "up": ("", repr(hvd.is_initialized())),
    }
    if me != 1:
        check_alive("a job of some")
        hvd.shutdown()
    calls: dict[str, Any] = {
        "out of range": [0, 1, 2, 3],
        "negative": [-1, 0, 1, 2],
        "twice": [0, 1, 2, 1],
        "numpy ints": np.arange(3),
        "text": "012",
        "not iterable": 3,
        "an object": object(),
    }
    for case, comm in calls.items():
        outcomes[case] = outcome(lambda comm=comm: hvd.init(comm=comm))
        assert not hvd.is_initialized(), case
    hvd.init()
    # Horovod calls a second init a no-op; the list is not looked at.
    outcomes["while initialised"] = outcome(lambda: hvd.init(comm=[0]))
    assert hvd.size() == 3
    check_alive("all")
    hvd.shutdown()
    return outcomes


def mpi_without_mpirun() -> dict[str, Outcome]:
    """MPI takes every process for a job of its own, the launcher does not."""
    from mpi4py import MPI

    outcomes = {
        "world": outcome(lambda: hvd.init(comm=MPI.COMM_WORLD)),
        "set": outcome(lambda: hvd.init(process_sets=[hvd.ProcessSet(MPI.COMM_WORLD)])),
        "self": outcome(lambda: hvd.init(comm=MPI.COMM_SELF)),
        "size": outcome(hvd.size),
    }
    hvd.shutdown()
    return outcomes


# -- communicators, under mpirun -------------------------------------------------------------------


def jobs_of_communicators() -> list[dict[str, Any]]:
    """Even and odd processes, in reverse order, form jobs of their own; then all of them one."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    half = world.Split(world.rank % 2, -world.rank)
    seen = []
    for comm in (half, world, half):
        hvd.init(comm=comm)
        seen.append(_describe_job())
        assert (hvd.rank(), hvd.size()) == (comm.rank, comm.size)
        hvd.shutdown()
    half.Free()
    hvd.init()
    seen.append(_describe_job())
    return seen  # and leaves without shutdown: MPI ends behind our exit handler


def one_does_not_come(done: str) -> Outcome:
    """Rank 0 does not call init; the other gives up."""
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == 0:
        while not os.path.exists(done):
            time.sleep(0.01)
        return outcome(hvd.is_initialized)
    os.environ["HOROVOD_START_TIMEOUT"] = "1"
    seen = outcome(lambda: hvd.init(comm=MPI.COMM_WORLD))
    open(done, "w").close()
    return seen


def sets_of_communicators() -> dict[str, Any]:
    """Sets made from communicators, of which every process passes its own."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    half = world.Split(world.rank % 2, world.rank)
    but_first = world.Split(0 if world.rank else MPI.UNDEFINED)
    seen: dict[str, Any] = {}
    mine, listed = hvd.ProcessSet(half), hvd.ProcessSet([0, 1])
    seen["before"] = (mine.ranks, mine.size(), mine.rank(), mine.included())
    # A process that is in no communicator passes none; those that are pass it.
    given = [mine, listed]
    if world.rank:
        given.append(hvd.ProcessSet(but_first))
    else:
        seen["null"] = outcome(lambda: hvd.ProcessSet(but_first))
    hvd.init(comm=world, process_sets=given)
    seen["ranks"] = mine.ranks
    seen["place"] = (mine.size(), mine.rank(), mine.included())
    seen["ids"] = [process_set.process_set_id for process_set in given]
    seen["sum"] = hvd.allreduce(np.array([world.rank]), op=hvd.Sum, process_set=mine).tolist()
    if world.rank:
        total = hvd.allreduce(np.ones(1), op=hvd.Sum, process_set=given[2])
        assert total.tolist() == [3.0]
    alone = hvd.ProcessSet(MPI.COMM_SELF)
    hvd.init(process_sets=[alone])
    seen["later"] = (alone.ranks, alone.process_set_id)
    seen["text"] = str(alone) == (
        f"ProcessSet(process_set_id={alone.process_set_id}, ranks=[{world.rank}], "
        f"mpi_comm={MPI.COMM_SELF})"
    )
    check_alive("sets")
    seen["duplicate"] = outcome(
        lambda: hvd.init(process_sets=[hvd.ProcessSet(half), hvd.ProcessSet(world)])
    )
    hvd.shutdown()
    seen["ids after"] = [process_set.process_set_id for process_set in given]
    # In a job without comm, started by mpirun, MPI's world is the job.
    hvd.init(process_sets=[mine])
    seen["without comm"] = (mine.ranks, mine.process_set_id)
    hvd.shutdown()
    os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
    hvd.init(comm=half, process_sets=[hvd.ProcessSet(MPI.COMM_SELF)])
    seen["added"] = outcome(lambda: hvd.add_process_set(MPI.COMM_SELF))
    hvd.shutdown()
    return seen


def wrong_communicators() -> dict[str, Outcome]:
    """Communicators that make neither a job nor a set; ends with MPI gone before the job."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    half = world.Split(world.rank % 2, world.rank)
    bridge = half.Create_intercomm(0, world, 1 - world.rank % 2)
    outside = hvd.ProcessSet(world)
    calls: dict[str, Any] = {
        "null": lambda: hvd.init(comm=MPI.COMM_NULL),
        "two groups": lambda: hvd.init(comm=bridge),
        "set of two groups": lambda: hvd.ProcessSet(bridge),
        "group": lambda: hvd.ProcessSet(world.Get_group()),
        "list of communicators": lambda: hvd.init(comm=[world, half]),
        "list of ranks and a set": lambda: hvd.init(
            comm=list(range(world.size)), process_sets=[hvd.ProcessSet(half)]
        ),
        "set outside the job": lambda: hvd.init(comm=half, process_sets=[outside]),
    }
    outcomes = {}
    for case, call in calls.items():
        outcomes[case] = outcome(call)
        assert not hvd.is_initialized(), case
    hvd.init(comm=[1, 0, 3, 2])
    outcomes["set later"] = outcome(lambda: hvd.init(process_sets=[hvd.ProcessSet(half)]))
    check_alive("list of ranks")
    hvd.shutdown()
    hvd.init(comm=world, process_sets=[hvd.ProcessSet(half)])
    MPI.Finalize()
    outcomes["finalised"] = outcome(lambda: hvd.ProcessSet(half))
    check_alive("MPI is gone")
    return outcomes
