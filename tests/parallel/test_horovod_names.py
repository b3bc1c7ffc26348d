"""What no other test on several ranks has to do with."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from rank_programs import horovod_names
from support.jobs.ranks import run_ranks


def test_remaining_names() -> None:
    first, second = run_ranks(2, horovod_names.run).values
    assert first == second == ["package", "built_with", "helpers", "state_handlers"]
