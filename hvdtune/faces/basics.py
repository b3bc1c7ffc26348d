"""The functions that every face has: the job, ranks, process sets, operators, build information.

A face takes all of it: `from hvdtune.faces.basics import *`. Horovod also has most of it as methods
of an object, which its faces' `mpi_ops` call `_basics`.
"""

from __future__ import annotations

from typing import Any

from hvdtune.core.job import init, shutdown
from hvdtune.core.libraries.built import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
    sycl_built,
)
from hvdtune.core.membership import add_process_set, remove_process_set
from hvdtune.core.observation.recording import start_timeline, stop_timeline
from hvdtune.core.process_sets import ProcessSet, all_registered, global_process_set
from hvdtune.core.reduce_ops import Adasum, Average, Max, Min, Product, Sum
from hvdtune.core.world import (
    cross_rank,
    cross_size,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    size,
)

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "sycl_built",
]


class HorovodBasics:
    """The functions that are the same for every framework.

    In Horovod the class wraps a compiled library; there is none to choose here.
    """

    def __init__(self, pkg_path: str = "", *args: Any) -> None:
        self.pkg_path = pkg_path

    init = staticmethod(init)
    shutdown = staticmethod(shutdown)
    is_initialized = staticmethod(is_initialized)
    start_timeline = staticmethod(start_timeline)
    stop_timeline = staticmethod(stop_timeline)
    size = staticmethod(size)
    local_size = staticmethod(local_size)
    cross_size = staticmethod(cross_size)
    rank = staticmethod(rank)
    local_rank = staticmethod(local_rank)
    cross_rank = staticmethod(cross_rank)
    is_homogeneous = staticmethod(is_homogeneous)
    mpi_threads_supported = staticmethod(mpi_threads_supported)
    mpi_enabled = staticmethod(mpi_enabled)
    mpi_built = staticmethod(mpi_built)
    gloo_enabled = staticmethod(gloo_enabled)
    gloo_built = staticmethod(gloo_built)
    nccl_built = staticmethod(nccl_built)
    ddl_built = staticmethod(ddl_built)
    ccl_built = staticmethod(ccl_built)
    cuda_built = staticmethod(cuda_built)
    rocm_built = staticmethod(rocm_built)
    sycl_built = staticmethod(sycl_built)
    _get_process_set_ids_and_ranks = staticmethod(all_registered)  # for Horovod's own tests


_basics = HorovodBasics()
