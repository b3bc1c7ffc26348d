"""Real jobs, recorded in Horovod's layout: what the file says about them, always whole."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from rank_programs import timeline, training
from support.jobs.ranks import hvdtune_command, run_ranks, run_under, start_ranks

from hvdtune.timeline.horovod.analysis import batches, operations, rank_lateness
from hvdtune.timeline.horovod.model import Trace
from hvdtune.timeline.horovod.reader import read_trace

SIZE = 3
LAYERS = [f"allreduce.{name}" for name in timeline.LAYERS]


def recorded(path: Path | str, **more: str) -> dict[str, str]:
    """The environment of a job that is recorded in Horovod's layout."""
    return {"HOROVOD_TIMELINE": str(path), "HVDTUNE_TIMELINE_FORMAT": "horovod", **more}


def sound(path: Path) -> Trace:
    """The trace; the file must be strict JSON, with every begin and end in its pair."""
    json.loads(path.read_text(encoding="utf-8"))
    trace = read_trace(path)
    assert trace.problems == []
    assert trace.dropped == 0
    return trace


def labels(trace: Trace, tensor: str) -> set[str]:
    return {span.name for span in trace.spans if span.tensor == tensor}


@pytest.mark.parametrize("marked", [False, True])
def test_every_step_has_a_tick_of_every_rank(tmp_path: Path, marked: bool) -> None:
    path = tmp_path / "t.json"
    environment = recorded(path, HOROVOD_TIMELINE_MARK_CYCLES=str(int(marked)))
    run_ranks(SIZE, timeline.train, 10, env=environment)
    trace = sound(path)
    assert trace.tensors == LAYERS
    ops = operations(trace)
    for index, tensor in enumerate(LAYERS):
        own = ops[ops["tensor"] == tensor]
        assert own["ranks"].tolist() == [SIZE] * 10
        assert own["index"].tolist() == list(range(10))
        assert set(own["shape"]) == {f"[2, {3 + index}]"}
        assert set(own["bytes"]) == {4 * 2 * (3 + index)}
        assert {"NEGOTIATE_ALLREDUCE", "ALLREDUCE", "SHM_ALLREDUCE"} <= labels(trace, tensor)
        ranks = [tick.rank for tick in trace.ticks if tick.tensor == tensor]
        assert sorted(ranks) == sorted([*range(SIZE)] * 10)
    assert (ops["begin"] >= ops["last_ready"]).all()
    assert batches(ops)["tensors"].sum() == 10 * len(LAYERS)
    assert any(instant.name == "CYCLE_START" for instant in trace.instants) == marked


def test_a_wall_clock_anchor(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    before = time.time()
    run_ranks(2, timeline.train, 1, env=recorded(path))
    anchor = sound(path).start_epoch_us
    assert anchor is not None
    assert before <= anchor / 1e6 <= time.time()


def test_hvdtune_run_has_flags_for_it(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    flags = ["-np", "2", "--timeline-filename", str(path), "--timeline-mark-cycles"]
    flags += ["--timeline-format", "horovod"]
    run_under(hvdtune_command("run", *flags), timeline.train, 3)
    trace = sound(path)
    assert len(operations(trace)) == 3 * len(LAYERS)
    assert any(instant.name == "CYCLE_START" for instant in trace.instants)


def test_every_kind_of_operation(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    run_ranks(2, timeline.all_operations, env=recorded(path))
    trace = sound(path)
    for tensor, kind in {
        "allreduce.r": "ALLREDUCE",
        "allgather.g": "ALLGATHER",
        "broadcast.b": "BROADCAST",
        "alltoall.a": "ALLTOALL",
        "reducescatter.s": "REDUCESCATTER",
    }.items():
        assert {f"NEGOTIATE_{kind}", kind} <= labels(trace, tensor), tensor
    ops = operations(trace)
    assert (ops["ranks"] == 2).all()
    assert len(ops[ops["tensor"].str.contains("many_")]) == 2
    barrier = ops[ops["op"] == "BARRIER"]
    assert len(barrier) >= 1
    assert barrier["shape"].isna().all()


def test_a_rejected_operation_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    values = run_ranks(2, timeline.disagree, env=recorded(path)).values
    assert [seen[0] for seen in values[0]][1] == "HorovodInternalError"
    ops = operations(sound(path))
    assert ops["op"].tolist() == ["ALLREDUCE", "ERROR", "ALLREDUCE"]
    assert ops["shape"].isna().tolist() == [False, True, False]


@pytest.mark.parametrize("late_rank", range(SIZE))
def test_the_late_rank_has_the_last_tick_of_every_step(tmp_path: Path, late_rank: int) -> None:
    path = tmp_path / "t.json"
    steps = 12
    run_ranks(
        *(SIZE, timeline.last_by_appointment, steps, late_rank, str(tmp_path)),
        env=recorded(path),
    )
    trace = sound(path)
    lateness = rank_lateness(trace, operations(trace)).set_index("rank")
    assert lateness.loc[late_rank, "last"] == steps
    assert lateness["last"].sum() == steps


def test_start_and_stop_while_running(tmp_path: Path) -> None:
    environment = recorded("DYNAMIC")
    result = run_ranks(2, timeline.start_and_stop, str(tmp_path), env=environment)
    first, second = sound(tmp_path / "first.json"), sound(tmp_path / "second.json")
    assert first.start_epoch_us == second.start_epoch_us
    for trace, steps in ((first, 3), (second, 5)):
        ops = operations(trace)
        assert {tensor: int((ops["tensor"] == tensor).sum()) for tensor in LAYERS} == (
            dict.fromkeys(LAYERS, steps)
        )
    assert any(instant.name == "CYCLE_START" for instant in first.instants)
    assert not any(instant.name == "CYCLE_START" for instant in second.instants)
    assert "/dev/null/t.json: Not a directory" in result[0].stderr
    assert "Traceback" not in result[0].stderr


def test_without_the_variable_it_cannot_be_started(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    values = run_ranks(2, timeline.start_without_the_variable, str(path)).values
    assert not path.exists()
    for kind, text in values:
        assert kind == "ValueError"
        assert "HOROVOD_TIMELINE" in text


@pytest.mark.parametrize("seed", range(5))
def test_the_file_is_whole_after_sigkill(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "t.json"
    with start_ranks(2, timeline.train_until_killed, env=recorded(path)) as ranks:
        ranks.wait_for_output(0, "running")
        while path.stat().st_size < 50_000:
            time.sleep(0.01)
        time.sleep(random.Random(seed).uniform(0.0, 0.2))
        ranks.signal(0, signal.SIGKILL)
        ranks.wait(60, check=False)
    events: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    assert sum(event.get("name") == "ALLREDUCE" for event in events) > 20


def test_a_full_disk_ends_the_recording_and_not_the_job(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    limit = 60_000
    environment = recorded(path)
    result = run_ranks(2, timeline.train_on_a_full_disk, str(path), limit, env=environment)
    assert result.values == (300, 300)
    warnings = [line for line in result[0].stderr.splitlines() if str(path) in line]
    assert len(warnings) == 1, result[0].stderr
    assert os.strerror(errno.EFBIG) in warnings[0]
    # The writer may come to the limit only when the job is at its end.
    assert re.search("training goes on|which had been stopped, is missing", warnings[0])
    assert path.stat().st_size <= limit
    assert len(json.loads(path.read_text(encoding="utf-8"))) > 20


def test_a_reported_stall_is_in_the_file(tmp_path: Path) -> None:
    path, stop_file = tmp_path / "t.json", tmp_path / "stop"
    environment = recorded(path, HOROVOD_STALL_CHECK_TIME_SECONDS="1")
    program = training.stay_away_from
    with start_ranks(2, program, "awaited", 1, str(stop_file), env=environment) as ranks:
        ranks.wait_for_output(0, "Missing ranks:", 60)
        stop_file.touch()
        ranks.wait(60)
    assert any(instant.name == "STALL" for instant in sound(path).instants)
