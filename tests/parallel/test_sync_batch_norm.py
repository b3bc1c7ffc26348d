"""SyncBatchNorm against ``torch.nn.BatchNorm`` over the joined batch."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from rank_programs import torch_sync_bn
from ranks import run_ranks


@pytest.mark.parametrize("np", [1, 2, 4])
def test_equal_to_the_joined_batch(np: int) -> None:
    names = run_ranks(np, torch_sync_bn.run).values
    assert names[0]
    assert all(other == names[0] for other in names), "the ranks ran different checks"
