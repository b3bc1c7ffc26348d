"""HOROVOD_CPU_OPERATIONS=MPI: the engine's tensors through each MPI that is installed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from rank_programs import data_planes, digits
from support.hosts.mpis import MPIS, OPEN_MPI, Mpi
from support.hosts.planes import in_shared_memory
from support.jobs.ranks import run_ranks, run_under
from support.tiers import EVERY, long_too

CHOSEN = {"HOROVOD_CPU_OPERATIONS": "MPI"}


def environment(mpi: Mpi) -> dict[str, str]:
    # The tests' own is found without being named.
    return CHOSEN if mpi is OPEN_MPI else {**CHOSEN, "HVDTUNE_MPI_LIBRARY": mpi.library}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mpi", long_too(OPEN_MPI, long=MPIS), ids=str)
def test_results_are_those_of_shared_memory_bit_for_bit(mpi: Mpi) -> None:
    mpi.require()
    ours = in_shared_memory()
    theirs = run_under(
        mpi.command(3), data_planes.same_as_shared_memory, env=environment(mpi), timeout=240
    ).values
    for rank, seen in enumerate(theirs):
        assert seen["rank"] == rank
        assert not seen["faults"], "\n".join(seen["faults"][:20])
        assert seen["sets"] == []
        assert seen["enabled"] == (True, False)
        assert seen["threads"] == ("", "True")
        for key in ("digests", "sums"):
            assert seen[key] == ours[rank][key], key
    assert (
        ours[0]["threads"][1] == "MPI is not enabled: tensors travel through hvdtune's own engine"
    )


@pytest.mark.parametrize("first", ["hvdtune", "mpi4py"])
def test_mpi4py_in_the_same_process(first: str) -> None:
    pytest.importorskip("mpi4py")
    result = run_under(OPEN_MPI.command(3), data_planes.beside_mpi4py, first, env=CHOSEN)
    for rank, seen in enumerate(result.values):
        assert seen["rank"] == rank
        assert seen["threads"] == (True, True)
        assert seen["finalized"] is False
    assert result[0].returncode == 0


@pytest.mark.parametrize("mpi", long_too(OPEN_MPI, long=MPIS), ids=str)
def test_a_rank_that_dies_ends_the_job(mpi: Mpi, tmp_path: Path) -> None:
    mpi.require()
    result = run_under(
        mpi.command(3), data_planes.one_dies, 1, str(tmp_path), env=environment(mpi), check=False
    )
    assert result[0].returncode != 0
    # Its mpirun ends the others, too; those that heard of it first know who it was.
    (tmp_path / "killed").unlink()
    for file in tmp_path.iterdir():
        told = file.read_text()  # empty where it was ended in the middle
        assert not told or re.match(r"rank 1 \(pid \d+ on .*\) died: ", told), told


def test_survivors_are_told_and_end_where_mpirun_lets_them(tmp_path: Path) -> None:
    command = [*OPEN_MPI.command(3), "--continuous"]
    run_under(command, data_planes.one_dies, 1, str(tmp_path), env=CHOSEN, check=False)
    for rank in ("0", "2"):
        told = (tmp_path / rank).read_text()
        assert re.match(r"rank 1 \(pid \d+ on .*\) died: ", told), told


@pytest.mark.long
@pytest.mark.skipif(not EVERY, reason="operations have the same bits: HVDTUNE_TEST_LONG=1")
def test_training_gives_the_same_weights() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    shared = run_ranks(3, digits.train, 1).values[0]
    result = run_under(OPEN_MPI.command(3), digits.train, 1, env=CHOSEN, timeout=240)
    for seen in result.values:
        assert np.array_equal(seen["weights"], shared["weights"])
    assert result.values[0]["printed"] == shared["printed"]
    assert "weights identical on all ranks" in shared["printed"]


def test_processes_that_no_mpirun_has_started() -> None:
    for (kind, text), seconds in run_ranks(2, data_planes.fail_to_start, env=CHOSEN).values:
        assert kind == "ValueError"
        assert text == (
            "Horovod initialization failed: HOROVOD_CPU_OPERATIONS=mpi: MPI does not know these "
            "processes as one job: no mpirun has started them. Use hvdtune run --mpi, mpirun or "
            "srun"
        )
        assert seconds < 20


@pytest.mark.long
def test_the_library_of_another_mpi() -> None:
    other = MPIS[2]
    other.require()
    env = {**CHOSEN, "HVDTUNE_MPI_LIBRARY": other.library}
    result = run_under(OPEN_MPI.command(2), data_planes.fail_to_start, env=env)
    for (kind, text), _ in result.values:
        assert kind == "ValueError"
        assert f"the MPI of {other.library}" in text
        assert "does not know these 2 processes as one job" in text
        assert "its MPI_COMM_WORLD has 1 process." in text
        assert "HVDTUNE_MPI_LIBRARY must name" in text


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        (
            {"HOROVOD_CPU_OPERATIONS": "ccl"},
            "HOROVOD_CPU_OPERATIONS=ccl: oneCCL is not supported; mpi and gloo are",
        ),
        (
            {**CHOSEN, "HVDTUNE_MPI_LIBRARY": "/no/such/libmpi.so"},
            "HOROVOD_CPU_OPERATIONS=mpi: HVDTUNE_MPI_LIBRARY=/no/such/libmpi.so is not a readable "
            "MPI library",
        ),
    ],
)
def test_what_is_not_available(variables: dict[str, str], text: str) -> None:
    for (kind, said), _ in run_ranks(2, data_planes.fail_to_start, env=variables).values:
        assert kind == "ValueError"
        assert f"Horovod initialization failed: {text}" in said


def test_one_rank_that_cannot_fails_all() -> None:
    # Rank 1 alone is given a library that is none.
    # Nor do the others wait for it in MPI_Init.
    for kind, text in run_under(OPEN_MPI.command(2), data_planes.one_cannot, env=CHOSEN).values:
        assert kind == "ValueError"
        assert (
            "rank 1: HOROVOD_CPU_OPERATIONS=mpi: HVDTUNE_MPI_LIBRARY=/none is not a readable MPI"
            in text
        )
