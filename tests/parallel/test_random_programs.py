"""Random programs of collectives on 4 ranks against a model of the semantics in NumPy.

HVDTUNE_TEST_PROGRAMS=2000 runs that many programs; HVDTUNE_TEST_SEED=17 runs the one of that seed
alone (with HVDTUNE_TEST_PROGRAMS: as many from there on). All of a run's programs are in one job: a
fault that does not come alone may need the programs before it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import pytest

pytest.importorskip("torch")

from rank_programs import random_program
from support.jobs.ranks import run_ranks
from support.tiers import EVERY

SEED = os.environ.get("HVDTUNE_TEST_SEED")
PROGRAMS = int(os.environ.get("HVDTUNE_TEST_PROGRAMS", "1" if SEED else "100"))
FIRST = int(SEED or 0)
TIMEOUT = 240 + PROGRAMS

# What a program is made of; 100 programs have all of it.
KINDS = {
    *("allreduce", "grouped_allreduce", "allgather", "grouped_allgather", "broadcast", "alltoall"),
    *("reducescatter", "grouped_reducescatter", "sparse", "barrier", "mistake"),
    *("Average", "Sum", "Min", "Max", "Product", "Adasum"),
    *("join", "refused", "add", "remove"),
}


def run(
    np: int, programs: int, environment: Mapping[str, str] | None = None, first: int = FIRST
) -> None:
    """Run the programs; print their seeds and fail for any difference on any rank."""
    print(f"seeds {first} to {first + programs - 1} on {np} ranks")
    settings = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1", **(environment or {})}
    result = run_ranks(np, random_program.run, first, programs, env=settings, timeout=TIMEOUT)
    faults = []
    for rank, report in enumerate(result.values):
        assert report.seeds == list(range(first, first + programs))
        assert report.operations > 2 * programs
        assert programs < 100 or report.kinds == KINDS - ({"Adasum"} if np == 3 else set())
        assert report.joins == result.values[0].joins, f"rank {rank} was told other last ranks"
        faults += [f"rank {rank}: {fault}" for fault in report.faults]
    assert not faults, "\n".join(faults)


@pytest.mark.timeout(TIMEOUT + 60)
def test_random_programs() -> None:
    run(4, PROGRAMS)


@pytest.mark.long
@pytest.mark.skipif(not EVERY, reason="more of the same: HVDTUNE_TEST_LONG=1")
@pytest.mark.skipif(SEED is not None, reason="HVDTUNE_TEST_SEED asks for other programs")
@pytest.mark.timeout(TIMEOUT + 60)
def test_more_random_programs() -> None:
    run(4, PROGRAMS, first=FIRST + PROGRAMS)


@pytest.mark.timeout(TIMEOUT + 60)
@pytest.mark.parametrize(
    ("np", "settings"),
    [
        # Hardly any room in the cache and the fusion buffer, and ranks that poll.
        (3, {"HOROVOD_CACHE_CAPACITY": "3", "HOROVOD_FUSION_THRESHOLD": "4096"}),
        (2, {"HOROVOD_CACHE_CAPACITY": "0", "HOROVOD_CYCLE_TIME": "0", "HVDTUNE_SPIN_US": "50"}),
    ],
    ids=["small cache and buffer", "no cache, spinning"],
)
def test_random_programs_with_unusual_settings(np: int, settings: dict[str, str]) -> None:
    run(np, max(1, PROGRAMS // 5), settings)
