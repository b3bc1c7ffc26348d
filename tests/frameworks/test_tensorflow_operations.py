"""Horovod's operations in TensorFlow: values, graphs, gradients, mistakes, ends."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

from rank_programs import tensorflow_operations
from support.jobs.deaths import told_of_a_death
from support.jobs.ranks import run_ranks

# Where operations are calls of Python, names are not those of nodes, and TensorFlow makes the calls
# in the order of the program, with its own classes of errors in graphs.
NATIVE_ONLY = {
    "many_in_flight_in_another_order_on_every_rank",
    "sessions_of_the_first_version",
    "gradients_in_sessions",
    "ranks_that_disagree_hear_it",
    "scopes_and_names",
    "functions_outlive_a_job",
    "a_name_in_flight_is_not_given_twice",
    "threads_in_eager_mode",
    "one_rank_s_mistakes",
}
SIZES = [2, pytest.param(1, marks=pytest.mark.long), pytest.param(4, marks=pytest.mark.long)]
_found: dict[int, tuple[dict[str, str], ...]] = {}


@pytest.mark.parametrize("name", tensorflow_operations.CHECKS)
@pytest.mark.parametrize("np", SIZES)
def test_operations(np: int, name: str) -> None:
    """The first test of a size runs the job, the others read what it found."""
    if np not in _found:
        settings = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
        job = run_ranks(np, tensorflow_operations.run, env=settings, timeout=240)
        _found[np] = job.values
    for rank, found in enumerate(_found[np]):
        assert not found[name], f"rank {rank}: {found[name]}"


def test_operations_as_calls_of_python() -> None:
    settings = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1", "HVDTUNE_TEST_LACKS": "TF_SetOutput"}
    job = run_ranks(2, tensorflow_operations.run, NATIVE_ONLY, env=settings, timeout=240)
    for rank, found in enumerate(job.values):
        assert "lacks TF_SetOutput" in job[rank].stderr
        assert set(found) == set(tensorflow_operations.CHECKS) - NATIVE_ONLY
        for name, problem in found.items():
            assert not problem, f"rank {rank}, {name}: {problem}"


@pytest.mark.parametrize("place", ["eager", "graph"])
def test_a_dead_rank_ends_what_others_wait_for(place: str) -> None:
    kind, text = told_of_a_death(tensorflow_operations.wait_for_the_dead, place)
    assert kind == "UnknownError", text
    assert "HorovodAllreduce" in text
