"""Making parameters, optimizer state and objects equal on all ranks; what every rank is told."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from rank_programs import torch_state
from support.jobs.ranks import run_checks_on
from support.tiers import long_too

from hvdtune.faces.state_transfer import Packing, Place
from hvdtune.torch.optimizer_state import _storage_for


@pytest.mark.parametrize("np", long_too(3, long=[2]))
def test_state(np: int) -> None:
    run_checks_on(np, torch_state.run)


def test_new_state_is_on_the_roots_kind_of_device() -> None:
    """Adam's moments are on the device of their parameter, and its step is on the CPU."""
    moment = torch.zeros(2, device="meta")  # stands for a GPU
    packed = Packing(torch.is_tensor).pack({"exp_avg": moment, "step": torch.zeros(())})
    assert packed["exp_avg"] == Place((2,), torch.float32, "meta", "exp_avg.1")
    assert packed["step"] == Place((), torch.float32, "cpu", "step.1")
    for owner in (torch.nn.Parameter(moment), torch.nn.Parameter(torch.zeros(2)), None):
        on_cpu = torch.zeros(2)  # what a rank has that trained on another device than the root
        assert _storage_for(packed["exp_avg"], on_cpu, owner).device.type == "meta"
        assert _storage_for(packed["step"], None, owner).device.type == "cpu"
    kept = torch.ones(())
    assert _storage_for(packed["step"], kept, None) is kept
