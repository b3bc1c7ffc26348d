"""mpi4py communicators: jobs and process sets described by MPI instead of by rank numbers.

MPI only identifies the processes while a job starts; no tensor or control message travels through
it, and nothing of it is kept that would have to be freed together with other processes. This
module does not import mpi4py: a caller with a communicator has imported it.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from hvdtune.core.topology import Topology, detect, hostname_of


def is_communicator(thing: object) -> bool:
    """Whether `thing` is an mpi4py communicator (including one of a derived class)."""
    return any(
        kind.__name__ == "Comm" and kind.__module__.partition(".")[0] == "mpi4py"
        for kind in type(thing).__mro__
    )


def absence() -> str:
    """What to add to "no communicator" if there could not be one; "" if mpi4py is there."""
    from importlib.util import find_spec

    return "" if find_spec("mpi4py") else " (mpi4py is not installed)"


def check(comm: Any) -> None:
    """Raise ValueError for a communicator that does not connect a group of processes."""
    mpi = _mpi()
    if not mpi.Is_initialized() or mpi.Is_finalized():
        state = "finalised" if mpi.Is_initialized() else "not initialised"
        raise ValueError(f"{comm!r} cannot be used: MPI is {state} in this process")
    if comm == mpi.COMM_NULL:
        raise ValueError(
            "MPI.COMM_NULL is no communicator: this process is in none of the new communicators, "
            "so it must not pass one"
        )
    if comm.Is_inter():
        raise ValueError(
            f"{_name(comm)} is an inter-communicator; one within a single group is needed "
            "(comm.Merge() makes it)"
        )


def place_in(
    comm: Any, environ: Mapping[str, str], brings_sets: bool, patience: float
) -> tuple[Topology, bool]:
    """This process's place in the job that a communicator's processes form.

    Collective over the communicator. Also returns whether `brings_sets` was true on any of them.
    Raises ValueError for a communicator that cannot be used, if MPI and the launcher describe
    different jobs, and if not all of the others call it within `patience` seconds.
    """
    check(comm)
    _check_launcher(comm, environ)
    mpi = _mpi()
    # A duplicate, so that it does not mix with the program's own use of its communicator.
    own = _duplicate_with_all(comm, patience)
    try:
        rank, size = own.Get_rank(), own.Get_size()
        node = own.Split_type(mpi.COMM_TYPE_SHARED, rank)
        local_rank, local_size = node.Get_rank(), node.Get_size()
        node.Free()
        across = own.Split(local_rank, rank)
        cross_rank, cross_size = across.Get_rank(), across.Get_size()
        across.Free()
        name = own.bcast(os.urandom(16).hex() if rank == 0 else None)
        somebody_brings_sets = bool(own.allreduce(int(brings_sets), op=mpi.MAX))
    finally:
        own.Free()
    topology = Topology(
        rank, size, local_rank, local_size, cross_rank, cross_size,
        hostname=hostname_of(environ), job_id=f"mpi-{name}", launcher="mpi4py",
    )  # fmt: skip
    return topology, somebody_brings_sets


def _duplicate_with_all(comm: Any, patience: float) -> Any:
    """A duplicate of a communicator, once all its processes make one."""
    duplicate, request = comm.Idup()
    deadline = time.monotonic() + patience
    while not request.Test():
        if time.monotonic() > deadline:
            raise ValueError(
                f"Horovod initialization failed: init(comm={_name(comm)}): not all of its "
                f"{comm.Get_size()} processes have called init() with it within {patience:g} s; "
                "HOROVOD_START_TIMEOUT sets this limit"
            )
        time.sleep(0.001)
    return duplicate


def sharing(comm: Any) -> Callable[[str], str]:
    """A function that gives the text of the communicator's first process to all, collectively."""

    def share(text: str) -> str:
        own = comm.Dup()
        try:
            return str(own.bcast(text))
        finally:
            own.Free()

    return share


def _check_launcher(comm: Any, environ: Mapping[str, str]) -> None:
    """Without mpirun MPI sees every process as a job of its own, which no user intends."""
    mpi = _mpi()
    launched = detect(environ)
    if mpi.COMM_WORLD.Get_size() == 1 and launched.size > 1 and comm != mpi.COMM_SELF:
        raise ValueError(
            f"Horovod initialization failed: init(comm={_name(comm)}): MPI knows this process "
            f"alone, but its launcher started {launched.size}; start the program with mpirun, or "
            "call init() without comm"
        )


class Members:
    """The processes of a job as MPI knows them: translates communicators to ranks of the job."""

    def __init__(self, comm: Any) -> None:
        """The job consists of the communicator's processes, in its order."""
        self._group = comm.Get_group()

    @classmethod
    def of_world(cls, topology: Topology) -> Members:
        """The job is all launched processes. Raises ValueError if MPI sees another one."""
        world = _mpi().COMM_WORLD
        seen = (world.Get_rank(), world.Get_size())
        if seen != (topology.rank, topology.size):
            raise ValueError(
                "Horovod initialization failed: process sets made from communicators need a job "
                f"started by mpirun: this process is rank {topology.rank} of {topology.size}, but "
                f"rank {seen[0]} of {seen[1]} for MPI"
            )
        return cls(world)

    def ranks_of(self, comm: Any) -> list[int]:
        """The communicator's processes as ranks of the job, ascending.

        Raises ValueError if one of them is not in the job, or if the communicator is unusable.
        """
        check(comm)
        mpi = _mpi()
        group = comm.Get_group()
        ranks = list(mpi.Group.Translate_ranks(group, None, self._group))
        group.Free()
        strangers = ranks.count(mpi.UNDEFINED)
        if strangers:
            raise ValueError(
                f"Horovod initialization failed: {strangers} of the {len(ranks)} processes of "
                f"{_name(comm)} are not in this job"
            )
        return sorted(ranks)

    def close(self) -> None:
        """Free MPI's description, unless MPI has been finalised first."""
        if not _mpi().Is_finalized():
            self._group.Free()


def _name(comm: Any) -> str:
    return comm.Get_name() or repr(comm)


def _mpi() -> Any:
    # By name, because mpi4py is optional for the type checker as well.
    return importlib.import_module("mpi4py.MPI")
