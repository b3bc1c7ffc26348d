"""Environment variables of a job's processes."""

from __future__ import annotations

import os

from hvdtune.launch.local.exports import exportable

# Variables in which launchers tell a process its place, in the order in which they are read.
_PLACES = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def is_exportable(v: str) -> bool:
    """Whether a variable of this name is passed on to processes on other hosts."""
    return bool(exportable({v: ""}))


def get_env_rank_and_size() -> tuple[int, int]:
    """This process's rank and the number of ranks, from its environment; else 0 and 1.

    Raises RuntimeError if only one of the two is set.
    """
    for rank, size in _PLACES:
        found = [name for name in (rank, size) if os.environ.get(name)]
        if len(found) == 2:
            return int(os.environ[rank]), int(os.environ[size])
        if found:
            raise RuntimeError(f"{found[0]} is set, but not both {rank} and {size}")
    return 0, 1
