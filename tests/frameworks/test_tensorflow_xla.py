"""Horovod's operations in functions that TensorFlow's XLA compiles (`jit_compile=True`)."""

from __future__ import annotations

import signal
import time

import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("keras")

from rank_programs import tensorflow_xla
from support.jobs.ranks import run_ranks, start_ranks

_found: dict[int, tuple[dict[str, str], ...]] = {}


@pytest.mark.parametrize("name", tensorflow_xla.CHECKS)
@pytest.mark.parametrize("np", [2, pytest.param(3, marks=pytest.mark.long)])
def test_compiled_operations(np: int, name: str) -> None:
    """The first test of a size runs the job, the others read what it found."""
    if np not in _found:
        settings = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1", "KERAS_BACKEND": "tensorflow"}
        _found[np] = run_ranks(np, tensorflow_xla.run, env=settings, timeout=240).values
    for rank, found in enumerate(_found[np]):
        assert not found[name], f"rank {rank}: {found[name]}"


def test_a_dead_rank_ends_what_a_compiled_function_waits_for() -> None:
    with start_ranks(2, tensorflow_xla.wait_for_the_dead) as ranks:
        for rank in range(2):
            ranks.wait_for_output(rank, "started")
        time.sleep(0.2)
        ranks.signal(1, signal.SIGKILL)
        result = ranks.wait(timeout=60, check=False)
    kind, text = result.values[0]
    assert kind == "InternalError", text
    assert text.startswith("True hvdtune: "), text
    assert "rank 1" in text
