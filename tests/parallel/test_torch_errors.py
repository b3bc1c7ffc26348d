"""Ranks that disagree about a sparse tensor: all get the same error, and the engine lives on."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from rank_programs import torch_errors
from support.jobs.ranks import run_ranks

SIZE = 3


def test_sparse_tensors() -> None:
    seen = run_ranks(SIZE, torch_errors.run).values
    for what, words in (
        ("values' dtype", ("Mismatched data types", "allgather.s.values", "float64")),
        ("indices' dimensions", ("with dimension 1", "allgather.s.indices")),
        ("values' dimensions", ("tensor of rank", "allgather.s.values")),
    ):
        assert all(rank[what] == seen[0][what] for rank in seen)
        kind, text = seen[0][what]
        assert kind == "HorovodInternalError"
        for part in (*words, f"rank {SIZE - 1} has"):
            assert part in text
