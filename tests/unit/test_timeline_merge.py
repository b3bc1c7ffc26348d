"""Joining hosts' files, and PyTorch's profiles with recordings, on one clock."""

from __future__ import annotations

import gzip
import json
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.recordings import synthetic_capture
from support.recordings.synthetic_capture import (
    START_WALL_US,
    Job,
    capture_lines,
    recording,
    simulate,
    write_capture,
    write_lines,
)

from hvdtune.cli.main import main
from hvdtune.timeline.record.events import TimelineError
from hvdtune.timeline.record.layout import STREAMS
from hvdtune.timeline.record.load import read_recording
from hvdtune.timeline.viewers.finish import finish
from hvdtune.timeline.viewers.kineto import is_kineto, read_kineto
from hvdtune.timeline.viewers.merge import merge

#: Two hosts with two ranks each, whose clocks have nothing in common.
JOB = Job(ranks=4, steps=10, local_size=2, offset=(0, 0, -7e3, -7e3), drift=(0, 0, 2e-5, 2e-5))


def two_hosts(folder: Path) -> tuple[Path, Path]:
    """Each host has its own ranks' files, in a folder of its own."""
    write_capture(JOB, folder)
    first, second = folder / "a", folder / "b"
    for host, ranks in (
        (first, ("t.json", "t.rank1.json")),
        (second, ("t.rank2.json", "t.rank3.json")),
    ):
        host.mkdir()
        for name in ranks:
            (folder / name).rename(host / name)
    return first, second


def profile(rank: int, begin_us: float, host: str = "host0", **more: Any) -> dict[str, Any]:
    """What torch.profiler writes of a process: one operator, one kernel of it, an arrow."""
    base = START_WALL_US * 1000 - 5_000_000_000
    ts = begin_us + 5_000_000
    pid = 1000 + rank
    return {
        "schemaVersion": 1,
        "host_name": host,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": base,
        "traceEvents": [
            {
                "ph": "M",
                "name": "thread_name",
                "ts": ts,
                "pid": pid,
                "tid": 7,
                "args": {"name": "t"},
            },
            {
                "ph": "X",
                "cat": "cpu_op",
                "name": "aten::mm",
                "pid": pid,
                "tid": 7,
                "ts": ts,
                "dur": 80.5,
            },
            {
                "ph": "X",
                "cat": "cpu_op",
                "name": "inner",
                "pid": pid,
                "tid": 7,
                "ts": ts + 0.3,
                "dur": 80.2,
            },
            {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 5, "pid": pid, "tid": 7, "ts": ts},
            {
                "ph": "X",
                "cat": "kernel",
                "name": "gemm",
                "pid": 0,
                "tid": 3,
                "ts": ts + 9,
                "dur": 40,
            },
            {
                "ph": "f",
                "cat": "ac2g",
                "name": "ac2g",
                "id": 5,
                "pid": 0,
                "tid": 3,
                "ts": ts + 9,
                "bp": "e",
            },
        ],
        "traceName": "x.json",
        **more,
    }


def test_files_of_two_hosts(tmp_path: Path) -> None:
    first, second = two_hosts(tmp_path)
    out = tmp_path / "all.json"
    # The siblings of a rank's file are found only beside rank 0's name, so all of b are given.
    said = merge([first / "t.json", *sorted(second.iterdir())], out)
    assert "4 of 4 ranks" in said
    read = read_recording(out)
    assert read.problems == []
    truth = recording(JOB)
    for rank, one in truth.ranks.items():
        for stream in STREAMS:
            assert len(read.ranks[rank].streams[stream]) == len(one.streams[stream])
        apart = abs(read.ranks[rank].batches["end"] - one.batches["end"]).max()
        assert apart <= read.clock_bound_ns
    # Nothing that was given has changed.
    assert len(list(first.iterdir())) == len(list(second.iterdir())) == 2
    # What was merged can be merged again.
    merge([out], tmp_path / "again.json.gz")
    assert read_recording(tmp_path / "again.json.gz").problems == []


def test_what_does_not_belong_together(tmp_path: Path) -> None:
    first, _ = two_hosts(tmp_path)
    other = tmp_path / "other.json"
    write_lines(other, capture_lines(replace(JOB, id="another"), 2, simulate(JOB)))
    out = tmp_path / "out.json"
    with pytest.raises(
        TimelineError, match=r"other\.json is of job 'another', and .* 'synthetic-1'"
    ):
        merge([first / "t.json", other], out)
    copy = tmp_path / "copy.json"
    copy.write_bytes((first / "t.json").read_bytes())
    with pytest.raises(TimelineError, match=r"rank 0 is in .* give each rank once"):
        merge([first / "t.json", copy], out)
    copy.write_text('[{"ph":"X","name":"a","ts":1,"dur":1,"pid":1}]')
    with pytest.raises(TimelineError, match="neither a recording made by hvdtune nor a profile"):
        merge([first / "t.json", copy], out)
    copy.write_text(json.dumps(profile(0, 20_000)))
    with pytest.raises(TimelineError, match="there is nothing to join"):
        merge([copy], out)
    with pytest.raises(TimelineError, match="name it with -o"):
        merge([first / "t.json", other])
    assert not out.exists()


def test_a_clock_that_cannot_be_aligned(tmp_path: Path) -> None:
    first, second = two_hosts(tmp_path)
    path = second / "t.rank2.json"
    lines = [line for line in path.read_text().split("\n") if "hvdtune_clock" not in line]
    path.write_text("\n".join(lines))
    with pytest.raises(TimelineError, match=r"rank 2 \(host host1\) cannot be aligned"):
        merge([first / "t.json", path], tmp_path / "out.json")


@pytest.mark.parametrize("suffix", ["json", "json.gz"])
@pytest.mark.parametrize("rank", [0, 3])
def test_a_profile_stands_beside_its_rank(suffix: str, rank: int, tmp_path: Path) -> None:
    first, second = two_hosts(tmp_path)
    begin_us = 50_000.0
    text = json.dumps(profile(rank, begin_us, f"host{rank // 2}")).encode()
    path = tmp_path / f"profile.{suffix}"
    path.write_bytes(gzip.compress(text) if suffix.endswith("gz") else text)
    assert is_kineto(path)
    out = tmp_path / "out.json"
    said = merge([first / "t.json", *sorted(second.iterdir()), path], out)
    assert "and 1 profiles" in said
    events = json.loads(out.read_text())
    shown = next(event for event in events if event["name"] == "hvdtune_view")["args"]
    ops = {event["name"]: event for event in events if event.get("cat") in ("cpu_op", "kernel")}
    assert {event["pid"] for event in ops.values()} == {rank}
    # The recording started at START_WALL_US; the profile begin_us later.
    expected = (5_000_000_000_000 - shown["origin_ns"]) / 1000 + begin_us
    assert abs(ops["aten::mm"]["ts"] - expected) <= 1 + shown["clock_bound_us"]
    outer, inner = ops["aten::mm"], ops["inner"]
    assert inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
    # Its threads and arrows are not mixed up with ours.
    ours = {event["tid"] for event in events if event["name"] == "ALLREDUCE" and event["ph"] == "X"}
    assert not ours & {event["tid"] for event in ops.values()}
    arrow = [event["id"] for event in events if event.get("cat") == "ac2g"]
    assert len(arrow) == 2
    assert len(set(arrow)) == 1
    assert arrow[0] not in {e["id"] for e in events if e.get("cat") in ("gradient", "batch")}
    steps = [event["name"] for event in events if event["name"].startswith("step ")]
    assert "step 2" in steps  # what was going on when the profile was taken
    assert read_recording(out).problems == []


def test_the_rank_of_a_profile(tmp_path: Path) -> None:
    first, second = two_hosts(tmp_path)
    files = [first / "t.json", *sorted(second.iterdir())]
    path, out = tmp_path / "profile.json", tmp_path / "out.json"
    path.write_text(json.dumps(profile(77, 50_000, distributedInfo={"backend": "x", "rank": 2})))
    merge([*files, path], out)
    assert {e["pid"] for e in json.loads(out.read_text()) if e.get("cat") == "cpu_op"} == {2}
    path.write_text(json.dumps(profile(77, 50_000)))
    with pytest.raises(TimelineError, match="no rank of that job had its process id"):
        merge([*files, path], out)
    path.write_text(json.dumps(profile(1, 50_000, host="host1")))
    with pytest.raises(TimelineError, match=r"\(host host1\) does not belong"):
        merge([*files, path], out)


def test_a_profile_names_its_host_as_the_host_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = synthetic_capture.identity
    monkeypatch.setattr(
        synthetic_capture,
        "identity",
        lambda job, rank: replace(known(job, rank), host="10.0.0.1", node="gpu7"),
    )
    path = write_capture(JOB, tmp_path)
    other, out = tmp_path / "profile.json", tmp_path / "out.json"
    other.write_text(json.dumps(profile(1, 50_000, host="gpu7")))
    merge([path, other], out)
    assert {e["pid"] for e in json.loads(out.read_text()) if e.get("cat") == "cpu_op"} == {1}


def test_files_beside_that_do_not_belong_are_left_out(tmp_path: Path) -> None:
    job = replace(JOB, ranks=2)
    path, out = write_capture(job, tmp_path), tmp_path / "out.json"
    older = tmp_path / "t.rank2.json"
    write_lines(older, capture_lines(replace(JOB, id="older"), 2, simulate(JOB)))
    assert "t.rank2.json was left out" in merge([path], out)
    assert list(read_recording(out).ranks) == [0, 1]
    with pytest.raises(TimelineError, match="do not belong together"):
        merge([path, older], out)


def test_a_file_beside_a_joined_one_has_more_of_its_rank(tmp_path: Path) -> None:
    path, out = write_capture(JOB, tmp_path), tmp_path / "out.json"
    other = tmp_path / "t.rank2.json"
    whole = other.read_bytes()
    lines = whole.decode().split("\n")
    other.write_text("\n".join(lines[: len(lines) // 2]))
    os.utime(other, (1, 1))
    assert finish(path, patience=0)
    other.write_bytes(whole)
    merge([path], out)
    after = read_recording(out)
    assert after.problems == []
    assert len(after.ranks[2].tensors) == len(recording(JOB).ranks[2].tensors)


def test_files_beside_a_joined_one_may_have_all_of_its_ranks(tmp_path: Path) -> None:
    _, second = two_hosts(tmp_path)
    merge(sorted(second.iterdir()), second / "t.json")
    merge([second / "t.json"], tmp_path / "again.json")
    assert list(read_recording(tmp_path / "again.json").ranks) == [2, 3]


def test_a_profile_of_another_time(tmp_path: Path) -> None:
    path = write_capture(JOB, tmp_path)
    other = tmp_path / "profile.json"
    other.write_text(json.dumps(profile(0, 60_000_000)))
    with pytest.raises(TimelineError, match=r"no time in common, the profile is .* s later"):
        merge([path, other], tmp_path / "out.json")
    other.write_text(json.dumps(profile(0, -4_000_000)))
    with pytest.raises(TimelineError, match=r"no time in common, the profile is .* s earlier"):
        merge([path, other], tmp_path / "out.json")


def test_profiles_that_are_cut_off_or_none(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    text = json.dumps(profile(0, 50_000))
    path.write_text(text[: text.index('"ph": "f"')])
    assert len(read_kineto(path).events) == 5
    path.write_text(text.replace('"baseTimeNanoseconds"', '"base"'))
    with pytest.raises(TimelineError, match="does not say what its times count from"):
        read_kineto(path)
    path.write_text('{"baseTimeNanoseconds": 5, "traceEvents": []}')
    with pytest.raises(TimelineError, match="no event with a time"):
        read_kineto(path)


def test_damaged_profiles_get_a_sentence(tmp_path: Path) -> None:
    recorded = write_capture(Job(ranks=1, steps=3), tmp_path)
    path, out = tmp_path / "profile.json", tmp_path / "out.json"
    text = json.dumps(profile(0, 30_000))
    seed = random.Random(4)
    outcomes = set()
    for _ in range(100):
        broken = list(text)
        for _ in range(seed.randrange(1, 5)):
            at = seed.randrange(len(broken))
            broken[at] = seed.choice(["", "9", "-", '"', "null", "{", "1e999", "\\", "]"])
        path.write_text("".join(broken))
        try:
            merge([recorded, path], out)
        except TimelineError as error:
            outcomes.add("refused")
            assert "profile.json" in str(error)  # noqa: PT017
            continue
        outcomes.add("merged")
        json.loads(out.read_text())
    assert outcomes == {"merged", "refused"}


def test_what_torch_writes_today(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU]) as session, record_function("marked"):
        torch.ones(3).sum()
    session.export_chrome_trace(str(tmp_path / "p.json.gz"))
    trace = read_kineto(tmp_path / "p.json.gz")
    assert "marked" in {event.get("name") for event in trace.events}
    assert 0 <= trace.end_ns - trace.begin_ns < 600 * 10**9
    assert trace.begin_ns > START_WALL_US * 1000 - 10**18


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_capture(JOB, tmp_path)
    part = tmp_path / "part.json"
    assert main(["timeline", "view", str(path), "--steps", "3:5", "-o", str(part)]) == 0
    assert "Shown: steps 3 to 4 of 10." in capsys.readouterr().out
    names = {event["name"] for event in json.loads(part.read_text())}
    assert {"step 3", "step 4"} <= names
    assert "hvdtune_block" not in names
    assert main(["timeline", "view", str(path), "--steps", "5:3", "-o", str(part)]) == 2
    assert "--steps 5:3 is not accepted" in capsys.readouterr().err
    assert main(["timeline", "merge", str(path), "-o", str(tmp_path / "all.json")]) == 0
    assert main(["timeline", "merge", str(path)]) == 0
    assert capsys.readouterr().out.endswith("t.json: joined\n")
    assert main(["timeline", "merge", str(path)]) == 0
    assert capsys.readouterr().out.endswith("t.json: was joined already\n")
    assert main(["timeline", "check", str(path)]) == 0
    assert "sound. 4 ranks, 800 tensor records" in capsys.readouterr().out
    assert main(["timeline", "summary", str(path)]) == 2
    assert "`hvdtune report` explains" in capsys.readouterr().err
    path.write_bytes(path.read_bytes()[:-5])
    assert main(["timeline", "check", str(path)]) == 0  # behind the records
    path.write_bytes(path.read_bytes()[:20_000])
    assert main(["timeline", "check", str(path)]) == 1
    assert "is cut off" in capsys.readouterr().out
