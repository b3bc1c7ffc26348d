"""Which MPI a process can use, by what it knows of its launcher."""

from __future__ import annotations

import pytest

from hvdtune.core.libraries.mpi import MPICH, OPEN_MPI, hydra_connection, launcher_family


@pytest.mark.parametrize(
    ("environ", "family"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "2"}, OPEN_MPI),
        ({"PMI_SIZE": "2", "PMI_RANK": "0"}, MPICH),
        ({"PMIX_RANK": "0"}, ""),
        ({"SLURM_PROCID": "0"}, None),
    ],
)
def test_the_launcher_decides_which_mpi_it_is(environ, family):
    assert launcher_family(environ) == family


@pytest.mark.parametrize(
    ("environ", "descriptor"),
    [
        # What Hydra tells processes on its own host, and on others.
        ({"PMI_FD": "6", "HYDI_CONTROL_FD": "7", "MPI_LOCALRANKID": "0"}, 6),
        ({"PMI_FD": "5", "MPI_LOCALRANKID": "1"}, 5),
        ({"PMI_FD": "6", "PMI_JOBID": "3.0"}, -1),  # Slurm
        ({"PMI_FD": "6", "PMI_JOBID": "3.0", "MPI_LOCALRANKID": "0"}, -1),
        ({"MPI_LOCALRANKID": "0"}, -1),
        ({"PMI_FD": "-1", "MPI_LOCALRANKID": "0"}, -1),
        ({"PMI_FD": "x", "MPI_LOCALRANKID": "0"}, -1),
    ],
)
def test_only_hydras_connection_is_spoken_on(environ, descriptor):
    assert hydra_connection(environ) == descriptor
