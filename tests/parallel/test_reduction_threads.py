"""Helper threads: their number makes no difference to any bit, and they cost nothing when idle."""

from __future__ import annotations

import pytest
from conformance import cases, numpy_face
from conformance.suite import assert_conform
from rank_programs import reduction_threads
from support.jobs.ranks import run_ranks
from support.tiers import EVERY

from hvdtune import _native

THREADS = "HVDTUNE_REDUCTION_THREADS"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("np", [2, 3] if EVERY else [2])
def test_results_have_the_same_bits(np: int) -> None:
    blocks = tuple(cases.OPERATIONS)
    alone, helped = (
        run_ranks(np, numpy_face.run, blocks, env={THREADS: threads}, timeout=240).values
        for threads in ("0", "2")
    )
    assert_conform(helped)
    for rank in range(np):
        assert helped[rank].cases == alone[rank].cases
        assert (helped[rank].same, helped[rank].own) == (alone[rank].same, alone[rank].own)


@pytest.mark.parametrize(("np", "threads", "number"), [(2, "2", 2), (2, "0", 0), (1, "2", 0)])
def test_helpers_come_and_go_with_the_job(np: int, threads: str, number: int) -> None:
    counts = run_ranks(np, reduction_threads.come_and_go, env={THREADS: threads}).values
    assert counts == ([number, 0, number, 0],) * np


@pytest.mark.parametrize("cpus", [2, 4, 8, 16])
def test_auto_starts_as_many_as_fit(cpus: int) -> None:
    """Beside a CPU for each of the two ranks; none where they need all."""
    available = _native.usable_cpus()
    if cpus > available:
        pytest.skip(f"needs {cpus} CPUs; this machine gives {available}")
    number = min(cpus // 2 - 1, 3)
    counts = run_ranks(2, reduction_threads.come_and_go, cpus, env={THREADS: "auto"}).values
    assert counts == ([number, 0, number, 0],) * 2


def test_unless_asked_for_there_are_none() -> None:
    assert run_ranks(2, reduction_threads.come_and_go).values == ([0, 0, 0, 0],) * 2


def test_idle_helpers_sleep() -> None:
    env = {THREADS: "2"}
    assert run_ranks(2, reduction_threads.sleep_when_idle, env=env).values == (True, True)


def test_a_fork_does_not_disturb_them() -> None:
    env = {THREADS: "2"}
    codes = run_ranks(2, reduction_threads.fork_between_reductions, 3, env=env).values
    assert codes == ([7, 7, 7],) * 2
