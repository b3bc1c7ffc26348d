"""The facts behind the table of launchers in docs/running/data-planes.md.

tests/launch/test_launchers.py runs every cell (with HVDTUNE_TEST_LONG=1): one that says WORKS must
train to the same weights as one host does, one with a sentence must end with it. No test runs the
cells that say UNTRIED.
"""

from __future__ import annotations

from typing import NamedTuple

WORKS = "works"
UNTRIED = "not tried"

#: Columns: what carries tensors between hosts, by HOROVOD_CPU_OPERATIONS.
PLANES = {"": "hvdtune's sockets", "MPI": "MPI", "GLOO": "Gloo"}

_NO_MPIRUN = "MPI does not know these processes as one job: no mpirun has started them"
_NO_MPI = {"": WORKS, "MPI": _NO_MPIRUN, "GLOO": WORKS}
_ALL = dict.fromkeys(PLANES, WORKS)
_NONE = dict.fromkeys(PLANES, UNTRIED)


class Launcher(NamedTuple):
    """A row: how the test knows it, the command, which release was run, and a status a plane."""

    key: str
    command: str
    release: str
    planes: dict[str, str]


LAUNCHERS = (
    Launcher("ssh", "hvdtune run -H a:2,b:2", "OpenSSH 9.2", _NO_MPI),
    Launcher("gloo", "hvdtune run --gloo -H a:2,b:2", "OpenSSH 9.2", _NO_MPI),
    Launcher("mpi", "hvdtune run --mpi -H a:2,b:2", "Open MPI 5.0 (PyPI)", _ALL),
    Launcher("mpi-4", "hvdtune run --mpi -H a:2,b:2", "Open MPI 4.1 (Debian 12)", _ALL),
    Launcher("mpi-mpich", "hvdtune run --mpi -H a:2,b:2", "MPICH 4.0 (Debian 12)", _ALL),
    Launcher("mpirun", "mpirun -H a:2,b:2", "Open MPI 5.0 (PyPI)", _ALL),
    Launcher("hostfile", "mpirun --hostfile FILE", "Open MPI 5.0 (PyPI)", _ALL),
    Launcher("mpirun-4", "mpirun -H a:2,b:2", "Open MPI 4.1 (Debian 12)", _ALL),
    Launcher("mpich", "mpirun -ppn 2 -hosts a,b", "MPICH 4.0 (Debian 12)", _ALL),
    Launcher("torchrun", "torchrun --nnodes 2 --nproc-per-node 2", "torch 2", _NO_MPI),
    Launcher("srun", "srun -N 2 --ntasks-per-node 2", "Slurm 22.05 (Debian 12)", _NO_MPI),
    Launcher("srun-pmi2", "srun --mpi=pmi2", "Slurm 22.05, MPICH 4.0 (Debian 12)", _ALL),
    Launcher("sbatch", "sbatch: hvdtune run", "Slurm 22.05 (Debian 12)", _NO_MPI),
    Launcher("jsrun", "hvdtune run --jsrun", "LSF", _NONE),
    Launcher("mpijob", "hvdtune k8s mpijob", "Kubeflow MPI Operator", _NONE),
)
