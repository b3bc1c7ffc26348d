"""DistributedOptimizer: training equal to one process, and what it refuses."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from rank_programs import torch_training
from ranks import run_ranks


@pytest.mark.parametrize("np", [1, 2, 3])
def test_training(np: int) -> None:
    names = run_ranks(np, torch_training.run).values
    assert names[0]
    assert all(other == names[0] for other in names)
