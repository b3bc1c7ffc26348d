"""Runs rank programs on "hosts" of this machine, whose tensors MPI or Gloo carries."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from rank_programs import data_planes

import hvdtune
from support.hosts.apart import write_places
from support.hosts.mpis import OPEN_MPI, Mpi
from support.jobs.ranks import Program, RanksResult, run_ranks, run_under

GLOO = "Gloo"


def run_on(
    plane: Mpi | str, hosts: Sequence[int], folder: Path, program: Program, *args: Any,
    env: dict[str, str] | None = None, check: bool = True, timeout: float = 240,
) -> RanksResult:  # fmt: skip
    """Run a program on "hosts" with so many ranks each, whose tensors a library carries."""
    settings = {**(env or {}), "HOROVOD_CPU_OPERATIONS": "GLOO" if plane == GLOO else "MPI"}
    if isinstance(plane, str):
        require_gloo()
        return run_ranks(
            sum(hosts), program, *args, env=settings, hosts=hosts, timeout=timeout, check=check
        )
    plane.require()
    if plane is not OPEN_MPI:  # the tests' own is found without being named
        settings["HVDTUNE_MPI_LIBRARY"] = plane.library
    command = [*plane.command(sum(hosts)), *write_places(folder / "places", hosts)]
    return run_under(command, program, *args, env=settings, timeout=timeout, check=check)


@cache
def in_shared_memory() -> tuple[Any, ...]:
    """What data_planes.same_as_shared_memory finds on 3 ranks without such a library."""
    return run_ranks(3, data_planes.same_as_shared_memory, timeout=240).values


def require_gloo() -> None:
    if not hvdtune.gloo_built():
        pytest.skip("hvdtune was built without Gloo (Debian: libgloo-dev)")
