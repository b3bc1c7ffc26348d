"""MPI and Gloo between "hosts" of this machine: for all that ranks exchange, or between hosts.

tests/launch/test_launchers.py does the same between real hosts; test_hosts_grid.py compares all
operations with NumPy. Each library is tried with each way and each layout, but for
HVDTUNE_TEST_LONG=1 not with all of both.
"""

from __future__ import annotations

import re
import signal
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from conformance import numpy_face
from conformance.suite import assert_conform
from rank_programs import data_planes, sets, torch_join
from rank_programs import hosts as programs
from support.hosts.mpis import MPIS, OPEN_MPI, Mpi
from support.hosts.planes import GLOO, require_gloo, run_on
from support.jobs.ranks import run_ranks, start_ranks
from support.tiers import EVERY

HIERARCHY = {"HOROVOD_HIERARCHICAL_ALLREDUCE": "1", "HOROVOD_HIERARCHICAL_ALLGATHER": "1"}
WAYS: dict[str, dict[str, str]] = {"flat": {}, "hosts first": HIERARCHY}
PLANES = [GLOO, *MPIS]
# Ranks of each host.
LAYOUTS = {"1+3": [1, 3], "2+1+2": [2, 1, 2]}
CELLS = [*product(PLANES, WAYS, LAYOUTS)]
if not EVERY:  # each plane in another way and layout than the others
    CELLS = [
        (plane, way, layout)
        for plane, (way, layout) in zip(PLANES, product(WAYS, LAYOUTS), strict=True)
    ]


TWO = [GLOO, OPEN_MPI]
BY_MPI, BY_GLOO = (TWO, TWO) if EVERY else ([OPEN_MPI], [GLOO])


@cache
def by_sockets(way: str, layout: str) -> tuple[Any, ...]:
    return run_ranks(
        sum(LAYOUTS[layout]), data_planes.same_as_shared_memory,
        env=WAYS[way], hosts=LAYOUTS[layout], timeout=240,
    ).values  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("plane", "way", "layout"), CELLS, ids=str)
def test_results_are_those_of_sockets_bit_for_bit(
    plane: Mpi | str, way: str, layout: str, tmp_path: Path
) -> None:
    program = data_planes.same_as_shared_memory
    theirs = run_on(plane, LAYOUTS[layout], tmp_path, program, env=WAYS[way]).values
    ours = by_sockets(way, layout)
    for rank, seen in enumerate(theirs):
        assert seen["rank"] == rank
        assert not seen["faults"], "\n".join(seen["faults"][:20])
        assert seen["sets"] == []
        assert seen["enabled"] == (plane != GLOO, plane == GLOO)
        for key in ("digests", "sums"):
            assert seen[key] == ours[rank][key], key


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("plane", PLANES if EVERY else BY_MPI, ids=str)
def test_hosts_first_against_numpy(plane: Mpi | str, tmp_path: Path) -> None:
    blocks = ("allreduce", "allgather")
    reports = run_on(plane, [3, 1], tmp_path, numpy_face.run, blocks, env=HIERARCHY).values
    assert_conform(reports)


@pytest.mark.long
@pytest.mark.parametrize("plane", BY_GLOO, ids=str)
def test_process_sets(plane: Mpi | str, tmp_path: Path) -> None:
    """Some of one host, some of several, come and go."""
    for way in WAYS.values():
        program = programs.sets_come_and_go
        assert run_on(plane, [2, 2], tmp_path, program, 20, env=way).values == (20,) * 4
    assert run_on(plane, [2, 2], tmp_path, sets.collectives_of_sets).values == ([],) * 4


@pytest.mark.long
@pytest.mark.parametrize("plane", BY_GLOO, ids=str)
def test_join(plane: Mpi | str, tmp_path: Path) -> None:
    names = run_on(plane, [2, 2], tmp_path, torch_join.run_uneven, env=HIERARCHY).values
    assert names[0]
    assert all(other == names[0] for other in names)


@pytest.mark.long
@pytest.mark.parametrize("plane", BY_MPI, ids=str)
def test_start_and_stop_again(plane: Mpi | str, tmp_path: Path) -> None:
    program = programs.start_and_stop
    assert run_on(plane, [2, 1], tmp_path, program, 3, env=HIERARCHY).values == (3,) * 3


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("victim", [0, 3])
def test_a_death_is_named_on_all_hosts(victim: int, way: str, tmp_path: Path) -> None:
    require_gloo()
    env = {"HOROVOD_CPU_OPERATIONS": "GLOO", **WAYS[way]}
    with start_ranks(
        4, data_planes.one_dies, victim, str(tmp_path), env=env, hosts=[2, 2]
    ) as ranks:
        result = ranks.wait(60, check=False)
    codes = [-signal.SIGKILL if rank == victim else 0 for rank in range(4)]
    assert [rank.returncode for rank in result.ranks] == codes, result.describe()
    for rank in range(4):
        if rank != victim:
            told = (tmp_path / str(rank)).read_text()
            assert re.search(rf"\brank {victim}\b.*died", told), told


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_a_death_ends_a_job_over_mpi(way: str, tmp_path: Path) -> None:
    told = tmp_path / "told"
    told.mkdir()
    arguments = (data_planes.one_dies, 1, str(told))
    result = run_on(OPEN_MPI, [2, 2], tmp_path, *arguments, env=WAYS[way], check=False)
    assert result[0].returncode != 0
    # mpirun ends the others, too; those that heard of it first know who it was.
    (told / "killed").unlink()
    for file in told.iterdir():
        text = file.read_text()
        assert not text or re.search(r"\brank 1\b.*died", text), text


@pytest.mark.parametrize("way", WAYS)
def test_processes_that_no_mpirun_has_started(way: str) -> None:
    env = {"HOROVOD_CPU_OPERATIONS": "MPI", **WAYS[way]}
    result = run_ranks(3, data_planes.fail_to_start, env=env, hosts=[2, 1])
    for (kind, text), _ in result.values:
        assert kind == "ValueError"
        assert "MPI does not know these processes as one job: no mpirun has started them" in text


@pytest.mark.parametrize("way", WAYS)
def test_one_rank_that_cannot_fails_all(way: str, tmp_path: Path) -> None:
    """Rank 1 alone is given a library that is none; nobody waits for it in MPI_Init."""
    values = run_on(OPEN_MPI, [2, 1], tmp_path, data_planes.one_cannot, env=WAYS[way]).values
    for kind, text in values:
        assert kind == "ValueError"
        assert (
            "rank 1: HOROVOD_CPU_OPERATIONS=mpi: HVDTUNE_MPI_LIBRARY=/none is not a readable MPI"
            in text
        )
