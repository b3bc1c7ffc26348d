"""What viewers are shown: everything once, nested where viewers need it, never too much."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.recordings.synthetic_capture import (
    Job,
    Late,
    Stall,
    Tensor,
    planted,
    recording,
    simulate,
    tensors,
)

from hvdtune.timeline.record.events import TimelineError
from hvdtune.timeline.record.layout import Mark, Recording
from hvdtune.timeline.viewers.lanes import LANES, batch_of_tensors, bus_bandwidth
from hvdtune.timeline.viewers.view import View, view
from hvdtune.timeline.viewers.window import parse_steps

JOB = Job(ranks=3, steps=8, tensors=tensors(6), late=(Late(2, 0.005),), counters=True, cycles=True)


def events_of(shown: View) -> list[dict[str, Any]]:
    return [json.loads(line) for line in shown.lines]


def named(events: list[dict[str, Any]], phase: str) -> Counter[str]:
    return Counter(event["name"] for event in events if event["ph"] == phase)


def check_nesting(events: list[dict[str, Any]]) -> None:
    """Bars of a thread nest; every asynchronous end has its begin; flows lie inside bars."""
    threads = defaultdict(list)
    open_spans: dict[Any, list[str]] = defaultdict(list)
    last = -1.0
    for event in events:
        if event["ph"] == "M":
            continue
        assert event["ts"] >= last  # in order of time
        assert event["ts"] * 8 == int(event["ts"] * 8)
        last = event["ts"]
        thread = event.get("pid"), event.get("tid")
        if event["ph"] == "X":
            assert event["dur"] > 0
            stack = threads[thread]
            while stack and stack[-1] <= event["ts"]:
                stack.pop()
            assert not stack or event["ts"] + event["dur"] <= stack[-1], event
            stack.append(event["ts"] + event["dur"])
        elif event["ph"] in "be":
            # By these Perfetto finds the track, which it calls as the first event on it.
            assert event["cat"] == "tensor"
            assert list(event["id2"]) == ["local"]
            spans = open_spans[event["pid"], int(event["id2"]["local"], 16)]
            if event["ph"] == "b":
                assert ("bytes" in event.get("args", {})) == (not spans)  # the tensor itself
                spans.append(event["name"])
            else:
                assert spans.pop() == event["name"]
        elif event["ph"] in "stf":
            assert any(end > event["ts"] for end in threads[thread]), event
    assert not any(open_spans.values())


def check_flows(events: list[dict[str, Any]]) -> None:
    flows = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            flows[event["id"]].append(event)
    for flow in flows.values():
        phases = "".join(event["ph"] for event in flow)
        assert phases == "s" + "t" * (len(flow) - 2) + "f"


def test_everything_is_shown_once() -> None:
    shown = view(recording(JOB))
    events = events_of(shown)
    check_nesting(events)
    check_flows(events)
    count = JOB.ranks * JOB.steps * len(JOB.tensors)
    batches = sum(len(one.batches) for one in recording(JOB).ranks.values())
    bars, spans = named(events, "X"), named(events, "b")
    assert bars["ALLREDUCE"] == batches
    assert bars["MEMCPY_IN_FUSION_BUFFER"] == bars["SHM_ALLREDUCE"] == batches
    assert bars["MEMCPY_OUT_FUSION_BUFFER"] == batches
    assert spans["NEGOTIATE_ALLREDUCE"] == spans["QUEUE"] == spans["ALLREDUCE"] == count
    assert all(bars[t.name] == spans[t.name] == JOB.ranks * JOB.steps for t in JOB.tensors)
    # From each gradient through its batch to its end; and each batch across the ranks.
    starts = Counter(event["cat"] for event in events if event["ph"] == "s")
    assert starts == {"gradient": count, "batch": batches // JOB.ranks}
    steps = [event for event in events if event["ph"] == "X" and event["tid"] == LANES["steps"]]
    assert len(steps) == JOB.ranks * JOB.steps
    instants = named(events, "i")
    assert instants["STEP 8"] == JOB.ranks
    cycles = recording(JOB).ranks[0].marks["kind"] == Mark.CYCLE
    assert instants["CYCLE_START"] == cycles.sum() > 0
    counters = named(events, "C")
    assert counters["gpu utilisation (%)"] == JOB.ranks * JOB.steps
    assert counters["bus bandwidth (GB/s)"] == 2 * batches
    assert counters["fusion fill (%)"] == batches
    assert shown.counts == Counter(event["ph"] for event in events if event["ph"] != "M")


def test_the_whole_result_of_an_allgather_counts_for_its_bandwidth() -> None:
    gathered = (Tensor("allgather.x", 1 << 20, kind="allgather"),)
    batch = recording(replace(JOB, tensors=gathered)).ranks[0].batches[0]
    nanoseconds = int(batch["end"]) - int(batch["begin"])
    # 2/3 of the three ranks' 3 MiB.
    assert bus_bandwidth(batch, 3) == pytest.approx((2 << 20) / nanoseconds)


def test_what_is_submitted_at_once_shares_a_bar() -> None:
    shown = view(recording(replace(JOB, overlap=False)))  # every 500 ns
    events = events_of(shown)
    check_nesting(events)
    bars = [e for e in events if e["ph"] == "X" and e["tid"] == LANES["gradients"]]
    assert {e["name"] for e in bars} == {
        "allreduce.layer0.weight and 3 more",
        "allreduce.layer4.weight and 1 more",
    }
    starts = [e for e in events if e["ph"] == "s" and e["cat"] == "gradient"]
    assert len(starts) == JOB.ranks * JOB.steps * len(JOB.tensors)
    for rank in range(JOB.ranks):
        times = [e["ts"] for e in bars if e["pid"] == rank]
        assert min(np.diff(times)) >= 2  # us: closer bars are one to the Chrome trace viewer


def test_processes_are_ranks_and_threads_are_lanes() -> None:
    events = events_of(view(recording(JOB)))
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names[2] == "rank 2 · host0 · pid 1002"
    lanes = {e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 1}
    assert lanes == {*LANES, "framework, thread 1"}


def test_queue_depth_returns_to_nothing() -> None:
    events = events_of(view(recording(replace(JOB, overlap=False))))
    depth = [e for e in events if e["ph"] == "C" and e["name"] == "queue depth (tensors)"]
    for rank in range(JOB.ranks):
        values = [e["args"]["value"] for e in depth if e["pid"] == rank]
        assert min(values) == values[-1] == 0
        assert max(values) == len(JOB.tensors)


@pytest.mark.parametrize("fault", planted())
def test_every_planted_job_nests(fault: str) -> None:
    job = replace(planted()[fault][0], steps=5)
    if job.stall is not None:
        job = replace(job, stall=Stall(3, 3, 65.0))
    events = events_of(view(recording(job)))
    check_nesting(events)
    check_flows(events)
    assert named(events, "i")["STALL"] == (job.stall is not None)


def test_kinds_of_operations_and_awkward_names() -> None:
    names = ['say "hi"\\', "line\nbreak", "größe 梯度", "\ud800 half", "</script>", "x" * 5000]
    kinds = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier")
    mixed = tuple(Tensor(n, 8, kind=k) for n, k in zip(names, kinds, strict=True))
    events = events_of(view(recording(replace(JOB, tensors=mixed))))
    check_nesting(events)
    assert set(names) <= set(named(events, "b"))
    assert {"SHM_BCAST", "SHM_ALLTOALL", "ALLGATHER", "BARRIER"} <= set(named(events, "X"))


def test_the_last_whole_steps_that_fit() -> None:
    long = replace(JOB, steps=400)
    shown = view(recording(long), most_events=5000)
    assert 2500 < sum(shown.counts.values()) <= 5000
    window = shown.window
    assert (window.last, window.of, window.whole) == (400, 400, False)
    assert 1 < window.first < 400
    assert f"Shown: steps {window.first} to 400 of 400." in shown.lines[0]
    events = events_of(shown)
    check_nesting(events)
    assert named(events, "X")[f"step {window.first}"] == JOB.ranks
    assert named(events, "X")[f"step {window.first - 1}"] == 0


def test_one_step_that_is_too_large_is_shown_in_part() -> None:
    shown = view(recording(replace(JOB, steps=2, tensors=tensors(300, 1000))), most_events=3000)
    assert 500 < sum(shown.counts.values()) <= 3000
    check_nesting(events_of(shown))
    assert "the last" in shown.window.sentence


def test_chosen_steps() -> None:
    shown = view(recording(JOB), steps=(3, 5))
    assert (shown.window.first, shown.window.last) == (3, 4)
    steps = [n for n in named(events_of(shown), "X") if n.startswith("step")]
    assert sorted(steps) == ["step 3", "step 4"]
    with pytest.raises(TimelineError, match="steps 20:30 cannot be shown: recorded are 1 to 8"):
        view(recording(JOB), steps=(20, 30))
    with pytest.raises(TimelineError, match="the recording has no steps"):
        view(Recording("nothing"), steps=(1, 2))


def test_steps_on_the_command_line() -> None:
    assert parse_steps("100:120") == (100, 120)
    assert parse_steps("7:")[0] == 7
    for wrong in ("", "7", ":7", "9:9", "9:2", "a:b", "-1:5", "1:2:3"):
        with pytest.raises(ValueError, match="is not accepted"):
            parse_steps(wrong)


def test_nothing_recorded() -> None:
    empty = recording(replace(JOB, steps=0))
    assert view(empty).counts["i"] >= 1
    assert view(Recording("nothing")).counts == {"i": 1}


def test_tensors_find_their_batch() -> None:
    one = recording(replace(JOB, noise=0.1, seed=3)).ranks[1]
    index = batch_of_tensors(one)
    assert (one.batches["serial"][index] == one.tensors["batch"]).all()
    # With records lost, and serials beyond 32 bits.
    one.batches["serial"] += (1 << 32) - 5
    one.tensors["batch"] += np.uint32((1 << 32) - 5)
    whole = batch_of_tensors(one)
    assert (whole == index).all()
    one.streams["tensors"] = one.tensors[3:]
    one.streams["batches"] = one.batches[:-1]
    kept = batch_of_tensors(one)
    last = len(one.batches)
    assert (kept == np.where(whole[3:] == last, -1, whole[3:])).all()


def test_impossible_times_do_not_break_the_picture() -> None:
    seed = np.random.default_rng(5)
    for _ in range(40):
        broken = recording(replace(JOB, steps=3))
        for one in broken.ranks.values():
            for column in ("scheduled", "packed", "unpacking", "end"):
                rows = seed.integers(0, len(one.batches), 3)
                one.batches[column][rows] += seed.integers(-(10**8), 10**8, 3)
            one.batches["end"] = np.maximum(one.batches["end"], one.batches["begin"])
            rows = seed.integers(0, len(one.tensors), 5)
            one.tensors["submitted"][rows] += seed.integers(-(10**8), 10**8, 5)
        events = events_of(view(broken))
        check_nesting(events)
        check_flows(events)


def test_simulated_batches_are_what_the_engine_would_do() -> None:
    """The tests' own ground: full, cycle, blocked and step-done batches all arise."""
    bytes_of = sum(t.bytes for t in JOB.tensors)
    for job, tensors_each in ((replace(JOB, threshold=0), 1), (replace(JOB, overlap=False), 0)):
        streams = simulate(job).streams
        batches = streams[0]["batches"]
        assert batches["bytes"].sum() == job.steps * bytes_of
        assert not tensors_each or set(batches["tensors"]) == {tensors_each}
        for rank in range(1, job.ranks):
            assert (streams[rank]["batches"]["serial"] == batches["serial"]).all()
