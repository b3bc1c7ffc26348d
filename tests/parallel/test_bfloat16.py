"""Every operation on bfloat16; the other dtypes are in test_numpy_matrix.py."""

from __future__ import annotations

import pytest
from rank_programs import bfloat16
from ranks import run_ranks
from tiers import long_too


@pytest.mark.parametrize("ranks", long_too(2, long=[1, 3, 8]))
def test_every_operation(ranks: int) -> None:
    run_ranks(ranks, bfloat16.every_operation)
