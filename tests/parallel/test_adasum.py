"""Adasum through hvdtune.torch against its formula; see rank_programs/torch_adasum.py.

One rank, and numbers of ranks that are no power of two, are in tests/conformance.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from rank_programs import torch_adasum
from support.jobs.ranks import run_checks_on


@pytest.mark.parametrize(
    ("np", "settings"),
    [
        (2, {}),
        pytest.param(4, {}, marks=pytest.mark.long),
        pytest.param(
            4,
            {"HVDTUNE_CHUNK_SIZE": "65536", "HOROVOD_FUSION_THRESHOLD": "8192"},
            marks=pytest.mark.long,
        ),
    ],
    ids=["2", "4", "4, small chunks and buffer"],
)
def test_adasum(np: int, settings: dict[str, str]) -> None:
    run_checks_on(np, torch_adasum.run, env=settings)
