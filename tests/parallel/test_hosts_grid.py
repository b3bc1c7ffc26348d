"""All operations against NumPy on 1, 2 and 4 "hosts" of 1 to 4 ranks each, and of unequal numbers,
over hvdtune's sockets, Gloo and every MPI, all with all and each host first.

Usually only hvdtune's own data plane is tried, on one arrangement of four hosts, and where each
host is first, only what that changes; HVDTUNE_TEST_LONG=1 tries all of them on all. On one host
hvdtune's own data plane is shared memory; one rank a "host" is what sockets do between containers
that share none.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from conformance.suite import assert_conform
from rank_programs import data_planes
from support.hosts.mpis import MPIS, Mpi
from support.hosts.planes import GLOO, run_on
from support.jobs.ranks import run_ranks
from support.tiers import EVERY

pytestmark = pytest.mark.long

OWN = "hvdtune's own"
PLANES = (OWN, GLOO, *MPIS)
# Ranks of each host.
EQUAL = [[ranks] * hosts for hosts in (1, 2, 4) for ranks in (1, 2, 3, 4)]
UNEQUAL = [[1, 3], [4, 2], [2, 1, 1, 2], [1, 4, 2, 3]]
CELLS = [
    pytest.param(plane, hosts, id=f"{plane}-{'+'.join(map(str, hosts))}")
    for plane in PLANES
    for hosts in (*EQUAL, *UNEQUAL)
    if EVERY or (plane == OWN and hosts == [2, 1, 1, 2])
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("plane", "hosts"), CELLS)
def test_all_operations(plane: Mpi | str, hosts: list[int], tmp_path: Path) -> None:
    program = data_planes.everything_both_ways
    if plane == OWN:
        answers = run_ranks(sum(hosts), program, EVERY, hosts=hosts, timeout=800).values
    else:
        answers = run_on(plane, hosts, tmp_path, program, EVERY, timeout=800).values
    where = [host for host, count in enumerate(hosts) for _ in range(count)]
    for way in ("flat", "hosts first"):
        assert_conform([seen[way] for seen in answers])
    for seen in answers:
        assert seen["enabled"] == (isinstance(plane, Mpi), plane == GLOO)
        assert seen["hosts"] == where
