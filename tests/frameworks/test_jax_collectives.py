"""JAX's face: one job of each size runs all blocks of ``rank_programs.jax_cases``."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("jax")

from rank_programs import jax_cases
from support.jobs.ranks import run_ranks, start_ranks
from support.tiers import long_too

HAS_OPTAX = importlib.util.find_spec("optax") is not None
CPU = {"JAX_PLATFORMS": "cpu"}


@pytest.mark.parametrize("np", long_too(2, long=[1, 3, 4]))
def test_everything(np: int):
    found = run_ranks(np, jax_cases.everything, HAS_OPTAX, env=CPU, timeout=280).values
    blocks = [block.__name__ for block in jax_cases.BLOCKS]
    assert list(found) == [[*blocks, *(["training"] if HAS_OPTAX else [])]] * np


@pytest.mark.parametrize(
    ("np", "rounds"), [(2, 2), *(pytest.param(np, 5, marks=pytest.mark.long) for np in (2, 4))]
)
def test_many_calls_on_one_thread(np: int, rounds: int):
    env = {**CPU, "NPROC": "1"}
    run_ranks(np, jax_cases.in_any_order, rounds, env=env, timeout=280)


def test_a_rank_dies_while_others_wait_in_jit():
    with start_ranks(3, jax_cases.dies_in_jit, env=CPU) as ranks:
        result = ranks.wait(100, check=False)
    for told in (result.values[0], result.values[2]):
        assert "rank 1" in told, result.describe()
