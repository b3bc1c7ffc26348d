"""Horovod's operations on MXNet's NDArrays: values, order, mistakes, trainers, ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mxnet")

from rank_programs import mxnet_operations
from support.jobs.deaths import told_of_a_death
from support.jobs.ranks import clean_environment, run_ranks, start_ranks

from hvdtune.timeline import api
from hvdtune.timeline.record.layout import Mark

SIZES = [2, pytest.param(1, marks=pytest.mark.long), pytest.param(4, marks=pytest.mark.long)]
SETTINGS = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
_found: dict[int, tuple[dict[str, str], ...]] = {}


@pytest.mark.parametrize("name", mxnet_operations.CHECKS)
@pytest.mark.parametrize("np", SIZES)
def test_operations(np: int, name: str) -> None:
    """The first test of a size runs the job, the others read what it found."""
    if np not in _found:
        _found[np] = run_ranks(np, mxnet_operations.run, env=SETTINGS, timeout=240).values
    for rank, found in enumerate(_found[np]):
        assert not found[name], f"rank {rank}: {found[name]}"


@pytest.mark.long
def test_operations_without_threads_of_mxnet() -> None:
    """Its engine for debugging computes in the caller's thread, which waits for the ranks."""
    settings = {**SETTINGS, "MXNET_ENGINE_TYPE": "NaiveEngine"}
    names = ("sums_and_averages_of_all_types", "layouts_of_convolutions", "two_trainers")
    job = run_ranks(2, mxnet_operations.run, names, env=settings, timeout=240)
    assert job.values == (dict.fromkeys(names, ""),) * 2


def test_the_last_step_of_a_program_reaches_the_others() -> None:
    run_ranks(3, mxnet_operations.last_step_is_not_read)


def test_steps_are_recorded_when_they_are_computed(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    settings = {"HOROVOD_TIMELINE": str(path), "HOROVOD_AUTOTUNE": "1"}
    gradients, _ = run_ranks(2, mxnet_operations.steps_ahead, 6, env=settings).values
    for one in api.read(path).recording.ranks.values():
        assert one.identity.framework.startswith("mxnet 1.9")
        end_of = {int(batch["serial"]): int(batch["end"]) for batch in one.batches}
        reduced = sorted(
            end_of[int(tensor["batch"])]
            for tensor in one.tensors
            if one.names[tensor["name"]].kind == "allreduce"
        )
        steps = one.marks["time"][one.marks["kind"] == Mark.STEP]
        assert len(steps) == 6
        for number, end in enumerate(steps, start=1):
            assert sum(time <= end for time in reduced) >= number * gradients


def test_a_dead_rank_ends_what_others_wait_for() -> None:
    kind, text = told_of_a_death(mxnet_operations.wait_for_another, "dead")
    assert kind == "MXNetError", text


def test_the_stall_check_names_who_is_waited_for_and_ends_the_wait() -> None:
    settings = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2"}
    with start_ranks(2, mxnet_operations.wait_for_another, "late", env=settings) as ranks:
        ranks.wait_for_output(0, "1: [allreduce.late]", 60)
        ranks.wait_for_output(0, "1!: [", 60)
        ranks.processes[0].wait(60)
        ranks.signal(1, signal.SIGKILL)
        result = ranks.wait(60, check=False)
    kind, text = result.values[0]
    assert kind == "MXNetError", text
    assert "stall" in text.lower()


def test_without_mxnet_there_is_one_sentence() -> None:
    code = "import sys; sys.modules['mxnet'] = None; import hvdtune.mxnet"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.stderr.splitlines()[-1].startswith("ImportError: hvdtune.mxnet needs MXNet 1.9")
    assert "pip install mxnet==1.9.1" in ended.stderr
