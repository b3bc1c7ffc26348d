"""Pyro's HorovodOptimizer on hvdtune: stochastic variational inference on 2 ranks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.jobs.client_runs import run_client
from support.jobs.ranks import hvdtune_command
from support.tiers import EVERY

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not EVERY, reason="installs a client: HVDTUNE_TEST_LONG=1"),
]

INFERENCE = str(Path(__file__).with_name("pyro_inference.py"))


def test_two_ranks_learn_what_one_process_learns(client_packages, tmp_path):
    packages = client_packages("pyro-ppl", "pyro-api", "opt_einsum")
    [alone] = run_client(tmp_path, packages, [sys.executable, INFERENCE, "serial"])
    job = [*hvdtune_command("run", "-np", "2"), sys.executable, INFERENCE]
    first, second = run_client(tmp_path, packages, job)
    assert (first["rank"], second["rank"]) == (0, 1)
    for name in ("place", "width"):
        assert first[name] == second[name]  # to the last bit
        assert first[name] == pytest.approx(alone[name], abs=1e-4)
    # The two see different data, whose losses average to the loss over all of it.
    for name in ("first", "last"):
        assert first[name] != second[name]
        assert (first[name] + second[name]) / 2 == pytest.approx(alone[name], rel=1e-4)
    assert first["last"] < first["first"] / 2
    assert first["place"] == pytest.approx(first["mean"], abs=0.3)
