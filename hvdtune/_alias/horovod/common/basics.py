"""Horovod's basic functions as methods of an object."""

from __future__ import annotations

from typing import Any

from hvdtune.core import job, world
from hvdtune.core.libraries import built
from hvdtune.core.observation import recording


class HorovodBasics:
    """The functions that are the same for every framework.

    Horovod's takes the place of a compiled library; there is none to choose here.
    """

    def __init__(self, pkg_path: str = "", *args: Any) -> None:
        self.pkg_path = pkg_path

    init = staticmethod(job.init)
    shutdown = staticmethod(job.shutdown)
    is_initialized = staticmethod(world.is_initialized)
    start_timeline = staticmethod(recording.start_timeline)
    stop_timeline = staticmethod(recording.stop_timeline)
    size = staticmethod(world.size)
    local_size = staticmethod(world.local_size)
    cross_size = staticmethod(world.cross_size)
    rank = staticmethod(world.rank)
    local_rank = staticmethod(world.local_rank)
    cross_rank = staticmethod(world.cross_rank)
    is_homogeneous = staticmethod(world.is_homogeneous)
    mpi_threads_supported = staticmethod(built.mpi_threads_supported)
    mpi_enabled = staticmethod(built.mpi_enabled)
    mpi_built = staticmethod(built.mpi_built)
    gloo_enabled = staticmethod(built.gloo_enabled)
    gloo_built = staticmethod(built.gloo_built)
    nccl_built = staticmethod(built.nccl_built)
    ddl_built = staticmethod(built.ddl_built)
    ccl_built = staticmethod(built.ccl_built)
    cuda_built = staticmethod(built.cuda_built)
    rocm_built = staticmethod(built.rocm_built)
    sycl_built = staticmethod(built.sycl_built)
