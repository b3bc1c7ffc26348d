"""torch.compile: what it makes of hvdtune, and of models that train with it."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from rank_programs import torch_compiled
from support.jobs.ranks import run_ranks


def test_compiled_functions_and_models() -> None:
    for told in run_ranks(2, torch_compiled.everything).values:
        assert "the ranks perform it together in hvdtune's engine" in told
        assert "leave out fullgraph=True" in told
