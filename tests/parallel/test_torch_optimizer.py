"""DistributedOptimizer: training equal to one process, what it refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")

from rank_programs import torch_misuse, torch_training
from ranks import run_ranks


def run(np: int, program: Callable[[], list[str]]) -> None:
    names = run_ranks(np, program).values
    assert names[0]
    assert all(other == names[0] for other in names), "the ranks ran different checks"


@pytest.mark.parametrize("np", [1, 2, 3])
def test_training(np: int) -> None:
    run(np, torch_training.run)


def test_misuse() -> None:
    run(2, torch_misuse.run)
