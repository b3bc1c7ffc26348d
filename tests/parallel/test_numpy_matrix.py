"""Every operation × type × {0, 1, 1000, 1 000 003} elements × 1, 2, 3, 8 ranks against NumPy.

bfloat16 is in test_bfloat16.py: NumPy has no such type. For 8 ranks nothing is left out, except
that the roots of the largest broadcasts take turns, and that scale factors meet a million elements
for three types only.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rank_programs import numpy_matrix as programs
from ranks import run_ranks
from tiers import long_too

PROGRAMS = {
    programs.allreduce: 200,
    programs.scaled_allreduce: 400,
    programs.grouped_allreduce: 300,
    programs.allgather: 40,
    programs.broadcast: 40,
    programs.alltoall: 120,
    programs.reducescatter: 120,
    programs.grouped_gathers: 50,
    programs.special_values: 9,
    programs.barrier: 1,
}


@pytest.mark.parametrize("np", long_too(2, 3, long=[1, 8]))
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_against_numpy(program: Callable[[], programs.Report], np: int) -> None:
    reports = run_ranks(np, program, timeout=240).values
    for rank, report in enumerate(reports):
        assert not report.faults, f"rank {rank}: " + "\n".join(report.faults[:20])
        assert report.cases >= PROGRAMS[program]
        assert report.digests == reports[0].digests, f"rank {rank} has other bits than rank 0"
