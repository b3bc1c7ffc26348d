"""PyTorch Lightning over the ranks: training equal to one process, and all around training."""

from __future__ import annotations

import pytest

pytest.importorskip("lightning")

from rank_programs import lightning_services
from ranks import run_ranks


@pytest.mark.parametrize("np", [1, 2])
def test_lightning(np: int) -> None:
    names = run_ranks(np, lightning_services.run).values
    assert names[0]
    assert all(other == names[0] for other in names), "the ranks ran different checks"
