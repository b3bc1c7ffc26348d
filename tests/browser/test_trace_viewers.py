"""The real viewers read what we write: the Chrome trace viewer and Perfetto's trace processor."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.recordings.synthetic_capture import (
    Job,
    Late,
    Stall,
    planted,
    recording,
    tensors,
    write_capture,
)

from hvdtune.timeline.record.load import read_recording
from hvdtune.timeline.viewers.finish import finish
from hvdtune.timeline.viewers.view import View, view

pytest.importorskip("playwright.sync_api", reason="Playwright drives the browser")

from viewers import (
    PROCESSOR_PAGE,
    TraceProcessor,
    artefact,
    chromium,
    open_in_trace_viewer,
    served,
    viewers_folder,
)

pytestmark = pytest.mark.long

JOB = Job(ranks=3, steps=6, tensors=tensors(12), late=(Late(2, 0.01),), counters=True, cycles=True)
#: What Perfetto's importer counts as wrong with a trace.
WRONG = "select name, value from stats where value > 0 and severity != 'info'"


@pytest.fixture
def viewers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, str]]:
    """A browser of this test's own, which leaves nothing behind, and the viewers' address."""
    from playwright.sync_api import sync_playwright

    executable = chromium()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hvdtune-tests"
    package = viewers_folder(cache)
    folder = tmp_path_factory.mktemp("viewers")
    for entry in package.iterdir():
        (folder / entry.name).symlink_to(entry)
    (folder / "processor.html").write_text(PROCESSOR_PAGE)
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with served(folder) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=arguments)
        yield browser, address
        browser.close()


def finished(job: Job, folder: Path) -> tuple[bytes, View]:
    path = write_capture(job, folder)
    shown = view(read_recording(path))
    assert finish(path)
    return path.read_bytes(), shown


def faults(found: dict[str, Any]) -> list[str]:
    """What the Chrome trace viewer complained about, but that it does not know our metadata."""
    return [issue for issue in found["issues"] if "metadata name: hvdtune_" not in issue]


def in_lanes(shown: View) -> int:
    """Instants of a thread, which the Chrome trace viewer counts as slices."""
    return sum('"ph":"i"' in line and '"s":"t"' in line for line in shown.lines)


def reads_asynchronous(viewers: tuple[Any, str]) -> bool:
    """Whether this trace processor knows asynchronous events in JSON. That of VERSION is Perfetto's
    v20.1, which passes over them without a word, in whichever form they come."""
    event = {"cat": "tensor", "id2": {"local": "0x1"}, "pid": 0, "tid": 2, "name": "w"}
    processor = TraceProcessor(*viewers)
    pair = [event | {"ph": "b", "ts": 1}, event | {"ph": "e", "ts": 3}]
    processor.load(json.dumps(pair).encode())
    known = processor.number("select count(*) from slice") > 0
    processor.page.close()
    return known


def check_in_perfetto(viewers: tuple[Any, str], data: bytes, shown: View, job: Job) -> Any:
    """The processor that has read it."""
    processor = TraceProcessor(*viewers)
    processor.load(data)
    counts = shown.counts
    assert processor.query(WRONG) == []
    # Bars and instants are slices on threads; what is asynchronous has tracks of its processes.
    lanes = processor.number("select count(*) from slice join thread_track t on track_id = t.id")
    assert lanes == counts["X"] + in_lanes(shown)
    asynchronous = counts["b"] if reads_asynchronous(viewers) else 0
    slices = processor.number("select count(*) from slice")
    assert slices == counts["X"] + counts.get("i", 0) + asynchronous
    assert processor.number("select count(*) from counter") == counts["C"]
    # An arrow for every event of a flow but its first.
    assert processor.number("select count(*) from flow") == counts["t"] + counts["f"]
    processes = processor.query("select pid, name from process where name is not null order by pid")
    assert [one["pid"] for one in processes] == list(range(job.ranks))
    assert processes[0]["name"].startswith("rank 0 · host0")
    lanes = processor.query("select distinct name from thread where name is not null")
    assert {"gradients", "negotiation", "queue", "communication"} <= {one["name"] for one in lanes}
    return processor


def test_perfetto_reads_back_what_was_written(viewers: tuple[Any, str], tmp_path: Path) -> None:
    data, shown = finished(JOB, tmp_path)
    processor = check_in_perfetto(viewers, data, shown, JOB)
    # The batches' parts lie inside their batches, and fill them.
    inside = processor.query(
        "select p.name as batch, sum(s.dur) as parts, p.dur as dur from slice s join slice p "
        "on s.parent_id = p.id where s.dur > 0 group by p.id"
    )
    batches = sum(len(one.batches) for one in recording(JOB).ranks.values())
    assert len(inside) == batches
    assert all(one["parts"] == one["dur"] and one["batch"] == "ALLREDUCE" for one in inside)
    # The arrows lead from gradients to batches, and from rank to rank.
    arrows = processor.query(
        "select o.name as start, i.name as there, count(*) as n from flow "
        "join slice o on slice_out = o.id join slice i on slice_in = i.id "
        "where o.name like 'allreduce.%' group by 1, 2"
    )
    assert sum(one["n"] for one in arrows) == JOB.ranks * JOB.steps * len(JOB.tensors)
    across = processor.number(
        "select count(*) from flow join slice o on slice_out = o.id join slice i on slice_in = i.id"
        " join thread_track a on o.track_id = a.id join thread_track b on i.track_id = b.id"
        " join thread x on a.utid = x.utid join thread y on b.utid = y.utid where x.upid != y.upid"
    )
    assert across == batches - batches // JOB.ranks
    # What a user would ask: the late rank alone does not wait.
    waits = processor.query(
        "select p.pid as rank, sum(s.dur) / 1000 as us from slice s join thread_track t on "
        "s.track_id = t.id join thread using(utid) join process p using(upid) "
        "where s.name = 'WAIT' group by p.pid order by us"
    )
    assert waits[0]["rank"] == 2


def test_faulty_jobs_in_perfetto(viewers: tuple[Any, str], tmp_path: Path) -> None:
    for fault in ("threshold 0", "no overlap", "stalled"):
        job = replace(planted()[fault][0], steps=2)
        if job.stall is not None:
            job = replace(job, stall=Stall(3, 2, 65.0))
        folder = tmp_path / fault
        folder.mkdir()
        data, shown = finished(job, folder)
        check_in_perfetto(viewers, data, shown, job).page.close()


def test_chrome_trace_viewer(viewers: tuple[Any, str], tmp_path: Path) -> None:
    data, shown = finished(JOB, tmp_path)
    found = open_in_trace_viewer(*viewers, data.decode(), artefact("chrome-trace-viewer.png"))
    assert found["errors"] == []
    assert faults(found) == []
    assert found["slices"] == shown.counts["X"] + in_lanes(shown)
    assert found["asyncs"] == shown.counts["b"] == shown.counts["e"]
    assert found["counters"] == shown.counts["C"]
    assert found["flows"] == shown.counts["t"] + shown.counts["f"]
    assert len(found["processes"]) == JOB.ranks


def test_names_of_every_kind(viewers: tuple[Any, str], tmp_path: Path) -> None:
    awkward = ['say "hi"\\', "line\nbreak\t\0", "größe 梯度 🚀", "</script><b>", "x" * 3000]
    named = tuple(replace(tensors(1)[0], name=name) for name in awkward)
    # Submitted at once, so that bars and arrows are as close to each other as they can be.
    job = replace(JOB, tensors=named, steps=3, overlap=False)
    data, shown = finished(job, tmp_path)
    processor = check_in_perfetto(viewers, data, shown, job)
    names = {one["name"] for one in processor.query("select distinct name from slice")}
    assert f"{awkward[0]} and 3 more" in names
    lone = replace(job, tensors=named[2:3])
    other = tmp_path / "lone"
    other.mkdir()
    processor = TraceProcessor(*viewers)
    processor.load(finished(lone, other)[0])
    assert (
        processor.number("select count(*) from slice where name like '%梯度 🚀'") == job.ranks * 3
    )
    found = open_in_trace_viewer(*viewers, data.decode(), None)
    assert found["errors"] == faults(found) == []
    assert found["flows"] == shown.counts["t"] + shown.counts["f"]
    assert found["slices"] == shown.counts["X"] + in_lanes(shown)


def test_a_file_that_is_not_finished_opens_too(viewers: tuple[Any, str], tmp_path: Path) -> None:
    """It shows nothing, but it is no error."""
    data = write_capture(JOB, tmp_path).read_bytes()
    json.loads(data)
    processor = TraceProcessor(*viewers)
    processor.load(data)
    assert processor.query(WRONG) == []
    assert processor.number("select count(*) from slice") == 0
