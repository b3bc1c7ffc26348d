"""The torch collectives: results and gradients against what every rank can foresee; errors."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from rank_programs import torch_finite_differences, torch_gradients, torch_mistakes, torch_values
from support.jobs.ranks import run_checks_on
from support.tiers import long_too


@pytest.mark.parametrize("np", long_too(2, long=[1, 3]))
def test_values(np: int) -> None:
    run_checks_on(np, torch_values.run)


@pytest.mark.parametrize("np", long_too(2, long=[3]))
def test_gradients(np: int) -> None:
    run_checks_on(np, torch_gradients.run)


@pytest.mark.long
def test_gradients_by_finite_differences() -> None:
    run_checks_on(3, torch_finite_differences.run)


def test_mistakes() -> None:
    run_checks_on(3, torch_mistakes.run)
