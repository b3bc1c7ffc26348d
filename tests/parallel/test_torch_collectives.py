"""The torch collectives: results and gradients against what every rank can foresee; errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")

from rank_programs import torch_finite_differences, torch_gradients, torch_mistakes, torch_values
from ranks import run_ranks


def run(np: int, program: Callable[[], list[str]]) -> None:
    names = run_ranks(np, program).values
    assert names[0]
    assert all(other == names[0] for other in names), "the ranks ran different checks"


@pytest.mark.parametrize("np", [1, 2, 3])
def test_values(np: int) -> None:
    run(np, torch_values.run)


@pytest.mark.parametrize("np", [2, 3])
def test_gradients(np: int) -> None:
    run(np, torch_gradients.run)


def test_gradients_by_finite_differences() -> None:
    run(3, torch_finite_differences.run)


def test_mistakes() -> None:
    run(3, torch_mistakes.run)
