"""Making parameters, optimizer state and objects equal on all ranks; what every rank is told."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from rank_programs import torch_state
from ranks import run_ranks


@pytest.mark.parametrize("np", [2, 3])
def test_state(np: int) -> None:
    names = run_ranks(np, torch_state.run).values
    assert names[0]
    assert all(other == names[0] for other in names), "the ranks ran different checks"
