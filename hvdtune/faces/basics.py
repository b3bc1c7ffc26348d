"""What is the same in every face: the job, who is who, process sets, operators, what was built.

A face takes all of it: `from hvdtune.faces.basics import *`.
"""

from __future__ import annotations

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
from hvdtune.core.process_sets import ProcessSet, global_process_set
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
