"""SyncBatchNorm against ``torch.nn.BatchNorm`` over the joined batch."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from rank_programs import torch_sync_bn
from support.jobs.ranks import run_checks_on
from support.tiers import long_too


@pytest.mark.parametrize("np", long_too(2, long=[1, 4]))
def test_equal_to_the_joined_batch(np: int) -> None:
    run_checks_on(np, torch_sync_bn.run)
