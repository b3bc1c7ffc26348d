"""Ranks may submit in any order: results are matched by name.

The default run is short; HVDTUNE_TEST_LONG=1 runs all 10 000 steps.
"""

from __future__ import annotations

import pytest
from rank_programs import order
from support.jobs.ranks import run_ranks
from support.tiers import EVERY, long_too

STEPS = 10_000 if EVERY else 300


@pytest.mark.long
@pytest.mark.timeout(3600 if EVERY else 300)
def test_another_order_on_every_rank() -> None:
    result = run_ranks(4, order.run_steps, STEPS, timeout=3500 if EVERY else 280)
    assert result.values == ([], [], [], [])


@pytest.mark.parametrize(
    "settings",
    long_too(
        {"HOROVOD_CACHE_CAPACITY": "0"},
        {"HOROVOD_FUSION_THRESHOLD": "4096"},
        {"HOROVOD_DISABLE_GROUP_FUSION": "1"},
        {"HOROVOD_CYCLE_TIME": "20", "HVDTUNE_CHUNK_SIZE": "65536"},
        long=[
            {"HOROVOD_CACHE_CAPACITY": "50"},
            {"HOROVOD_FUSION_THRESHOLD": "0"},
            {"HOROVOD_CYCLE_TIME": "0"},
            {"HVDTUNE_SPIN_US": "200"},
        ],
    ),
    ids=lambda settings: " ".join(f"{name}={value}" for name, value in settings.items()),
)
def test_any_order_with_unusual_settings(settings: dict[str, str]) -> None:
    result = run_ranks(3, order.run_steps, 30, env=settings)
    assert result.values == ([], [], [])
