"""An elastic job as a whole, for viewers: the recordings of its generations in one file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.recordings.synthetic_capture import START_WALL_US, Job, write_capture

from hvdtune.cli.main import main
from hvdtune.timeline.record.capture_file import VIEW

JOB = Job(ranks=3, steps=6)
FLOW = 1 << 40


def generation(
    folder: Path,
    number: int,
    pids: Sequence[int],
    later_us: int = 0,
    hosts: Sequence[str] = ("host0",),
    job: str = "base",
) -> Path:
    """The recording of a generation whose ranks are processes with these ids."""
    name = "t.json" if number == 1 else f"t.generation{number}.json"
    path = write_capture(replace(JOB, ranks=len(pids), id=f"{job}-{number}"), folder, name)
    for rank, pid in enumerate(pids):
        file = path if rank == 0 else path.with_name(f"{path.stem}.rank{rank}.json")
        text = file.read_text().replace(f'"pid": {1000 + rank},', f'"pid": {pid},')
        text = text.replace(str(START_WALL_US), str(START_WALL_US + later_us))
        text = text.replace('"host0"', f'"{hosts[rank % len(hosts)]}"')
        assert f'"pid": {pid},' in text
        file.write_text(text)
    return path


def shown(folder: Path, *words: str) -> list[dict[str, Any]]:
    out = folder / "job.json"
    assert main(["timeline", "view", *words, "-o", str(out)]) == 0
    found: list[dict[str, Any]] = json.loads(out.read_text())
    return found


def test_a_job_is_shown_as_a_whole(tmp_path, capsys):
    first = generation(tmp_path, 1, [50, 51, 52])
    second = generation(tmp_path, 2, [51, 60], later_us=60_000_000)
    events = shown(tmp_path, str(second), str(first))
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == [
        "rank 0 · host0 · pid 50", "rank 1 → 0 · host0 · pid 51", "rank 2 · host0 · pid 52",
        "rank 1 · host0 · pid 60",
    ]  # fmt: skip
    timed = [event for event in events if event["ph"] != "M"]
    assert [event["ts"] for event in timed] == sorted(event["ts"] for event in timed)
    moments = [event for event in timed if event["name"].startswith("GENERATION")]
    assert [(one["name"], one["pid"], one["s"]) for one in moments] == [
        ("GENERATION 1", 0, "g"), ("GENERATION 2", 1, "g"),
    ]  # fmt: skip
    assert moments[1]["ts"] - moments[0]["ts"] == 60e6
    behind = timed[timed.index(moments[1]) :]
    assert {event["pid"] for event in behind} == {1, 3}
    steps = [event["ts"] for event in behind if event["name"] == "step 3"]
    before = [event["ts"] for event in timed if event["name"] == "step 3"]
    assert len(steps) == 2
    assert len(before) == 5
    numbers = [event["id"] // FLOW for event in timed if "id" in event]
    assert set(numbers) == {1, 2}, "no arrow from one generation to the next"
    assert [event["name"] for event in events].count(VIEW) == 1
    said = capsys.readouterr().out
    assert "events of generations 1, 2." in said
    assert "times of day" in said, "synthetic clocks have no time between them"


def test_one_clock_is_not_compared_by_the_time_of_day(tmp_path, capsys):
    first = generation(tmp_path, 1, [50, 51])
    second = generation(tmp_path, 2, [51, 50], later_us=60)
    shown(tmp_path, str(first), str(second))
    assert "times of day" not in capsys.readouterr().out
    other = generation(tmp_path, 3, [70], later_us=60, hosts=["host9"])
    shown(tmp_path, str(first), str(other))
    assert "of generation 3" in capsys.readouterr().out


def test_processes_of_two_hosts_may_have_the_same_id(tmp_path):
    hosts = ["host0", "host1"]
    first = generation(tmp_path, 1, [50, 50], hosts=hosts)
    second = generation(tmp_path, 2, [50, 50], hosts=hosts[::-1], later_us=10_000_000)
    events = shown(tmp_path, str(first), str(second))
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["rank 0 → 1 · host0 · pid 50", "rank 1 → 0 · host1 · pid 50"]


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"number": 2, "job": "other"}, "is no generation of job 'base': it is of job 'other-2'"),
        ({"number": 1}, "are both of generation 1: give each once"),
    ],
)
def test_what_does_not_belong_together(tmp_path, capsys, second, words):
    first = generation(tmp_path, 1, [50, 51])
    (tmp_path / "b").mkdir()
    path = generation(tmp_path / "b", pids=[51], **second)
    out = tmp_path / "o.json"
    assert main(["timeline", "view", str(first), str(path), "-o", str(out)]) == 2
    assert words in capsys.readouterr().err
    assert not out.exists()


def test_a_job_that_is_not_elastic_has_no_generations(tmp_path, capsys):
    paths = [
        str(write_capture(replace(JOB, id=name), tmp_path, f"{name}.json")) for name in ("a", "b")
    ]
    assert main(["timeline", "view", *paths, "-o", str(tmp_path / "o.json")]) == 2
    assert "is no generation of an elastic job" in capsys.readouterr().err
    words = ["timeline", "view", *paths, "--steps", "1:2", "-o", str(tmp_path / "o.json")]
    assert main(words) == 2
    assert "--steps is for one FILE" in capsys.readouterr().err
