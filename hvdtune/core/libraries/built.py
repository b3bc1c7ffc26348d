"""Horovod's questions about its build: `mpi_built`, `nccl_built` and so on.

hvdtune finds libraries at run time.
"""

from __future__ import annotations

import hvdtune._native as _native
from hvdtune.core import world
from hvdtune.core.libraries import cuda, data_plane


def mpi_threads_supported() -> bool:
    """Whether MPI allows calls from several threads at a time. Raises ValueError if it is not used.

    True means MPI_THREAD_MULTIPLE. With less, a script must not call MPI itself (mpi4py) between
    `init` and `shutdown`: the engine may be in the middle of a call.
    """
    settings = world.settings()
    if not mpi_enabled():
        used = data_plane.describe(settings.cpu_operations)
        raise ValueError(f"MPI is not enabled: tensors travel through {used}")
    return bool(_native.mpi_threads_multiple())


def mpi_enabled() -> bool:
    """Whether MPI carries tensors. False before init."""
    return _carries_tensors("mpi")


def _carries_tensors(library: str) -> bool:
    return world.is_initialized() and world.settings().cpu_operations == library


def mpi_built() -> bool:
    """Whether there is an MPI library that could carry tensors."""
    return data_plane.mpi_is_there()


def gloo_enabled() -> bool:
    """Whether Gloo carries tensors. False before init."""
    return _carries_tensors("gloo")


def gloo_built() -> bool:
    """Whether hvdtune was built with Gloo."""
    return data_plane.gloo_is_there()


def nccl_built() -> int:
    """The version code (21903 is 2.19.3) of the NCCL that tensors on GPUs use; 0 without."""
    return cuda.nccl_built()


def ddl_built() -> bool:
    """Whether IBM DDL support is built in."""
    return False


def ccl_built() -> bool:
    """Whether oneCCL support is built in."""
    return False


def cuda_built() -> bool:
    """Whether tensors on NVIDIA's GPUs can be reduced here, that is, whether there is a driver."""
    return cuda.cuda_built()


def rocm_built() -> bool:
    """Whether ROCm support is built in."""
    return False


def sycl_built() -> bool:
    """Whether support for Intel's GPUs (SYCL) is built in."""
    return False
