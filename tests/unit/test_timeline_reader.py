"""Reading timelines: Horovod's, hvdtune's, cut off, damaged, compressed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from hvdtune.timeline.horovod.model import Trace
from hvdtune.timeline.horovod.reader import read_trace
from hvdtune.timeline.record.events import TimelineError, load_events

HOROVOD = Path(__file__).parents[1] / "data" / "horovod-timeline.json"


def row(pid: int, name: str) -> dict[str, Any]:
    return {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}}


def begin(name: str, ts: int, pid: int = 1) -> dict[str, Any]:
    return {"ph": "B", "name": name, "ts": ts, "pid": pid}


def end(ts: int, pid: int = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "E", "ts": ts, "pid": pid, **({"args": args} if args else {})}


def read(directory: Path, events: object) -> Trace:
    path = directory / "t.json"
    path.write_text(json.dumps(events))
    return read_trace(path)


def test_horovods_own_file() -> None:
    trace = read_trace(HOROVOD)
    assert trace.start_epoch_us == 1795261746906813
    assert trace.event_count == len(json.loads(HOROVOD.read_text()))
    assert trace.tensors[0] == "allreduce.layer0.weight"
    assert [span.name for span in trace.spans].count("ALLREDUCE") == 24
    assert {tick.rank for tick in trace.ticks} == {0, 1}
    assert {instant.name for instant in trace.instants} == {"CYCLE_START"}
    # Horovod's BARRIER ends without having begun.
    assert trace.problems == ["An end without a begin in the row of 'barrier.noname' at 166784 us."]
    final = next(span for span in trace.spans if span.tensor == "reducescatter.rs" and span.args)
    assert final.args == {"dtype": "float32", "shape": "[4]"}
    assert final.depth == 0
    inner = next(span for span in trace.spans if span.name == "GLOO_REDUCESCATTER")
    assert (inner.depth, inner.duration) == (1, 2299)


def test_events_in_any_order(tmp_path: Path) -> None:
    events = [row(1, "a"), begin("ALLREDUCE", 10), begin("COPY", 12), end(15), end(20, bytes=8)]
    forward = read(tmp_path, events)
    backward = read(tmp_path, events[::-1])
    assert forward.problems == backward.problems == []
    assert forward.spans == backward.spans
    assert [(s.name, s.begin, s.end, s.depth) for s in forward.spans] == [
        ("ALLREDUCE", 10, 20, 0),
        ("COPY", 12, 15, 1),
    ]
    assert forward.spans[0].args == {"bytes": 8}


def test_events_of_equal_time_count_in_the_files_order(tmp_path: Path) -> None:
    trace = read(tmp_path, [begin("A", 5), end(5), begin("B", 5), begin("C", 5), end(5), end(5)])
    assert not trace.problems
    assert {(span.name, span.depth) for span in trace.spans} == {("A", 0), ("B", 0), ("C", 1)}


def test_unpaired_events_are_reported_and_left_out(tmp_path: Path) -> None:
    trace = read(tmp_path, [row(1, "a"), end(3), begin("ALLREDUCE", 5)])
    assert trace.spans == []
    assert trace.problems == [
        "An end without a begin in the row of 'a' at 3 us.",
        "ALLREDUCE in the row of 'a' has not ended; it began at 5 us.",
    ]


def test_many_problems_are_counted(tmp_path: Path) -> None:
    trace = read(tmp_path, [end(time) for time in range(50)])
    assert len(trace.problems) == 21
    assert trace.problems[-1] == "… and 30 more ends without a begin."


@pytest.mark.parametrize("cut", [1, 2, 30, 100, 1000, 10_000, 19_000])
def test_cut_off_files_are_read_as_far_as_they_go(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "cut.json"
    path.write_bytes(HOROVOD.read_bytes()[:-cut])
    events, problems = load_events(path)
    complete = json.loads(HOROVOD.read_text())
    assert events == complete[: len(events)]
    assert 0 < len(events) <= len(complete)
    assert "The file is cut off; it was read as far as it goes." in problems


def test_no_event_is_lost_before_the_cut(tmp_path: Path) -> None:
    text = HOROVOD.read_text()
    third = text.index('{"ph": "i"', text.index('{"ph": "i"') + 1)
    path = tmp_path / "cut.json"
    path.write_text(text[: third + 5])
    assert len(load_events(path)[0]) == 3


def test_names_that_horovod_did_not_escape(tmp_path: Path) -> None:
    path = tmp_path / "quote.json"
    path.write_text(
        '[\n{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "a"b"}},\n'
        '{"name": "process_sort_index", "ph": "M", "pid": 1, "args": {"sort_index": 1}},\n'
        '{"ph": "B", "name": "ALLREDUCE", "ts": 1, "pid": 1},{"ph": "E", "ts": 4, "pid": 1}]'
    )
    trace = read_trace(path)
    assert [(span.name, span.duration) for span in trace.spans] == [("ALLREDUCE", 3)]
    assert trace.problems == ["1 pieces of the file are not JSON and were skipped."]
    assert trace.spans[0].tensor == "row 1"


@pytest.mark.parametrize("kept", [None, -20])
def test_compressed_files_whole_and_cut_off(tmp_path: Path, kept: int | None) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(HOROVOD.read_bytes())[:kept])
    trace = read_trace(path)
    assert len(trace.spans) > 0
    assert any("cut off" in problem for problem in trace.problems) == (kept is not None)


def test_object_with_trace_events(tmp_path: Path) -> None:
    events = [begin("A", 1), end(2), {"ph": "X", "name": "copy", "ts": 5, "dur": 3, "pid": 1}]
    trace = read(tmp_path, {"traceEvents": events, "other": 1})
    assert [(span.name, span.duration) for span in trace.spans] == [("A", 1), ("copy", 3)]


def test_foreign_values_do_no_harm(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        [
            *(1, "x", [], {}, {"ph": 3}, {"ph": "B"}, {"ph": "E", "ts": "soon"}),
            {"ph": "B", "ts": 1e300, "pid": []},
            {"ph": "X", "name": "9" * 50, "ts": 1, "dur": 0, "pid": {"a": 1}},
            {"ph": "M", "name": "process_name", "args": 7},
            {"ph": "i", "ts": 4, "args": [1]},
            {"ph": "i", "name": "DROPPED_EVENTS", "ts": 5, "args": {"dropped": 12}},
        ],
    )
    assert trace.dropped == 12
    assert any("are no events" in problem for problem in trace.problems)
    assert any("have no time" in problem for problem in trace.problems)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"3", "no array of events"),
        (b'{"a": 1}', "no array of events"),
        (b"hello", "no array of events"),
        (b"[hello", "no event can be read"),
        (b"[" * 100_000, "is not a timeline"),
        (b"\x1f\x8bnonsense", "is damaged"),
    ],
)
def test_what_is_no_timeline_is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(TimelineError, match=reason) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)


def test_empty_array_is_a_timeline(tmp_path: Path) -> None:
    trace = read(tmp_path, [])
    assert (trace.event_count, trace.problems) == (0, [])
