"""Rank programs about how the ranks of several hosts learn where rank 0 is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import hvdtune as hvd
from hvdtune.core import world
from hvdtune.core.meeting import means
from hvdtune.core.meeting.seeker import Seeker


def meet(mpi4py: str = "", without: Sequence[str] = ()) -> dict[str, Any]:
    """Two inits and a sum in each; by which means the ranks met, and on which hosts they are.

    `mpi4py` begins MPI "first" or "last", or not at all. The means `without` are not tried.
    """
    if mpi4py == "first":
        everybody_in_mpi()
    used = _watch_means(without)
    seen: dict[str, Any] = {"means": used, "sums": []}
    for _ in range(2):
        hvd.init()
        seen["rank"], seen["hosts"] = hvd.rank(), world.engine().hosts()
        seen["sums"] += hvd.allreduce(np.ones(1), op=hvd.Sum, name="ones").tolist()
        hvd.shutdown()
    if mpi4py == "last":
        seen["mpi4py"] = everybody_in_mpi()
    return seen


def meet_in_a_communicator() -> dict[str, Any]:
    """The job of all, backwards, as a communicator of mpi4py's."""
    from mpi4py import MPI

    backwards = MPI.COMM_WORLD.Split(0, -MPI.COMM_WORLD.Get_rank())
    used = _watch_means(())
    hvd.init(comm=backwards)
    sums = hvd.allreduce(np.ones(1), op=hvd.Sum, name="ones").tolist()
    seen = {"means": used, "sums": sums, "rank": hvd.rank(), "hosts": world.engine().hosts()}
    hvd.shutdown()
    return seen


def everybody_in_mpi() -> int:
    """The number of processes, as they count themselves through mpi4py."""
    from mpi4py import MPI

    return int(MPI.COMM_WORLD.allreduce(1))


def _watch_means(without: Sequence[str]) -> list[str]:
    used: list[str] = []
    exchange = means.exchange
    means.MEANS = tuple(one for one in means.MEANS if one.name not in without)

    def watched(seeker: Seeker, text: str) -> tuple[str, str]:
        name, text = exchange(seeker, text)
        used.append(name)
        return name, text

    means.exchange = watched
    return used
