"""Horovod's operations in functions that TensorFlow's XLA compiles (`jit_compile=True`)."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("keras")

from rank_programs import tensorflow_xla
from support.jobs.deaths import told_of_a_death
from support.jobs.ranks import run_ranks

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
    kind, text = told_of_a_death(tensorflow_xla.wait_for_the_dead)
    assert kind == "InternalError", text
    assert text.startswith("True hvdtune: "), text
