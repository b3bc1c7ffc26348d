"""Making parameters, optimizer state and objects equal on all ranks; what every rank is told."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from rank_programs import torch_state
from support.jobs.ranks import run_checks_on
from support.tiers import long_too


@pytest.mark.parametrize("np", long_too(3, long=[2]))
def test_state(np: int) -> None:
    run_checks_on(np, torch_state.run)
