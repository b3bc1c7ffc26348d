"""Adasum through hvdtune.torch against its formula; see rank_programs/torch_adasum.py."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from rank_programs import torch_adasum
from ranks import run_ranks


@pytest.mark.parametrize(
    ("np", "settings"),
    [
        (2, {}),
        (4, {}),
        (4, {"HVDTUNE_CHUNK_SIZE": "65536", "HOROVOD_FUSION_THRESHOLD": "8192"}),
    ],
    ids=["2", "4", "4, small chunks and buffer"],
)
def test_adasum(np: int, settings: dict[str, str]) -> None:
    names = run_ranks(np, torch_adasum.run, env=settings).values
    assert names[0]
    assert all(other == names[0] for other in names), "the ranks ran different checks"


def test_one_rank() -> None:
    assert run_ranks(1, torch_adasum.run_alone).values == (["alone"],)


def test_number_of_ranks_that_is_no_power_of_two() -> None:
    for seen in run_ranks(3, torch_adasum.run_wrong_size).values:
        assert len(seen) == len(torch_adasum.ALLREDUCES)
        for kind, text in seen:
            assert kind == "NotImplementedError"
            for words in ("Adasum", "power of two", "not 3"):
                assert words in text
