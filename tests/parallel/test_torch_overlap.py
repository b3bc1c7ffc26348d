"""HVDTUNE_OVERLAP: whether gradients are reduced during the backward pass."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from rank_programs import torch_overlap
from ranks import run_ranks

from hvdtune.core.machine import usable_cpus


def test_when_gradients_are_reduced() -> None:
    expected = {
        "on, busy": True,
        "off, idle": False,
        "auto, a CPU left": True,
        "auto, none left": False,
        "auto, more threads": False,
        "not set, a CPU left": True,
        "not set, none left": False,
        "on one rank only": False,  # all ranks do the same
        "one rank has more threads": False,
    }
    together = min(2, usable_cpus())  # not only the one that each rank is pinned to
    for found, refusal, cpus in run_ranks(2, torch_overlap.everything).values:
        assert found == expected
        assert refusal.startswith("HVDTUNE_OVERLAP is 'sometimes'"), refusal
        assert "one of auto, on, off" in refusal, refusal
        assert cpus == (together, 1)
