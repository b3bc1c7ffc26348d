"""PyTorch Lightning over the ranks: training equal to one process, and all around training."""

from __future__ import annotations

import pytest

pytest.importorskip("lightning")

from rank_programs import lightning_services
from support.jobs.ranks import run_checks_on
from support.tiers import long_too


@pytest.mark.parametrize("np", long_too(2, long=[1]))
def test_lightning(np: int) -> None:
    run_checks_on(np, lightning_services.run)
