"""The torch collectives against what every rank can foresee of all ranks' inputs."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from rank_programs import torch_values
from ranks import run_ranks


@pytest.mark.parametrize("np", [1, 2, 3])
def test_values(np: int) -> None:
    result = run_ranks(np, torch_values.run)
    assert all(names == result.values[0] and names for names in result.values)
