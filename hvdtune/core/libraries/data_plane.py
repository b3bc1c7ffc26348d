"""How tensors travel: through shared memory, or as HOROVOD_CPU_OPERATIONS says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from hvdtune.core.libraries import gloo, mpi, network
from hvdtune.core.topology import Topology
from hvdtune.settings import knobs

SHARED_MEMORY = ""


def options(
    topology: Topology,
    settings: knobs.Settings,
    *,
    environ: Mapping[str, str] = os.environ,
) -> dict[str, Any]:
    """The engine's options for the chosen data plane.

    A reason why this process cannot use it is an option as well: the engine meets the other
    processes first, so that all fail with it instead of waiting.
    """
    name = settings.cpu_operations or SHARED_MEMORY
    library = problem = ""
    try:
        if name == "mpi":
            library = mpi.choose(environ, settings.mpi_library, topology.size).path
        elif name == "gloo":
            library = gloo.choose()
        elif name == "ccl":
            raise ValueError(
                "oneCCL is not supported; mpi and gloo are, and so is leaving it unset"
            )
    except ValueError as error:
        problem = f"HOROVOD_CPU_OPERATIONS={name}: {error}"
    return {
        "data_plane": name,
        "data_plane_library": library,
        "data_plane_problem": problem,
        "hierarchical_allreduce": settings.hierarchical_allreduce,
        "hierarchical_allgather": settings.hierarchical_allgather,
        "mpi_multiple": not settings.mpi_threads_disable,
        "gloo_interface": next(iter(network.interface_names(settings.gloo_iface)), ""),
        "gloo_timeout_s": float(settings.gloo_timeout),
    }


def describe(name: str | None) -> str:
    """How tensors travel, in words."""
    return {"mpi": "MPI", "gloo": "Gloo"}.get(name or SHARED_MEMORY, "hvdtune's own engine")


def mpi_is_there() -> bool:
    """Whether an MPI library can be found."""
    return bool(mpi.find_all(os.environ))


def gloo_is_there() -> bool:
    """Whether hvdtune was built with Gloo."""
    return bool(gloo.module_path())
