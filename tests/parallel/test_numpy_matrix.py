"""Every operation × type × {0, 1, 1000, 1 000 003} elements × 1, 2, 3, 8 ranks against NumPy.

bfloat16 is in test_bfloat16.py: NumPy has no such type. For 8 ranks nothing is left out, except
that the roots of the largest broadcasts take turns, and that scale factors meet a million elements
for three types only.
"""

from __future__ import annotations

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


@pytest.mark.timeout(400)
@pytest.mark.parametrize("np", long_too(3, long=[1, 2, 8]))
def test_against_numpy(np: int) -> None:
    names = programs.names_of(PROGRAMS)
    reports = run_ranks(np, programs.one_after_another, names, timeout=360).values
    programs.check_reports(reports)
    for program, least in PROGRAMS.items():
        assert all(report[program.__name__].cases >= least for report in reports)
