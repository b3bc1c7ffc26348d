"""JAX's examples: the same training with one rank and with two."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("jax")
pytest.importorskip("optax")

from support.jobs.ranks import run_ranks

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/jax"

pytestmark = pytest.mark.long


def last_line(np: int, script: str, *args: str) -> str:
    result = run_ranks(np, EXAMPLES / script, *args, env={"JAX_PLATFORMS": "cpu"})
    return result[0].stdout.splitlines()[-1]


def test_flax():
    pytest.importorskip("flax")
    pytest.importorskip("sklearn")
    alone, together = (last_line(np, "flax_mnist.py", "--epochs", "2") for np in (1, 2))
    assert alone.startswith("epoch 2: loss 0.3")
    assert together == alone


def test_equinox():
    pytest.importorskip("equinox")
    alone, together = (last_line(np, "equinox_mlp.py", "--steps", "100") for np in (1, 2))
    losses = [float(line.removeprefix("step 100: loss ")) for line in (alone, together)]
    assert losses[0] < 0.02
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
