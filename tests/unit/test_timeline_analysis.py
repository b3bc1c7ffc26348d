"""The numbers of a timeline, on recordings whose truth is known."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from hvdtune.timeline.horovod import analysis
from hvdtune.timeline.horovod.model import Instant, Span, Tick, Trace
from hvdtune.timeline.horovod.reader import read_trace
from hvdtune.timeline.horovod.summary import summary, verdict
from hvdtune.timeline.structure.intervals import union_length

HOROVOD = Path(__file__).parents[1] / "data" / "horovod-timeline.json"


def add_operation(
    trace: Trace,
    tensor: str,
    ready: dict[int, int],
    begin: int,
    end: int,
    batch: int | None = None,
    size: int = 100,
) -> None:
    """One life of a tensor: ready[rank] is the rank's tick."""
    first, last = min(ready.values()), max(ready.values())
    trace.spans.append(Span(tensor, "NEGOTIATE_ALLREDUCE", first, last, 0, {}))
    trace.ticks += [Tick(tensor, rank, time) for rank, time in ready.items()]
    args = {"dtype": "float32", "shape": f"[{size // 4}]"}
    if batch is not None:
        args |= {"bytes": size, "batch": batch}
    trace.spans.append(Span(tensor, "ALLREDUCE", begin, end, 0, args))
    trace.spans.append(Span(tensor, "SHM_ALLREDUCE", begin, end, 1, {}))
    trace.ticks.sort(key=lambda tick: tick.time)
    trace.spans.sort(key=lambda span: (span.begin, -span.end))


def two_steps() -> Trace:
    """Tensors a and b, two steps, three ranks; rank 2 is late by 50 us in the first step."""
    trace = Trace(source="made up")
    add_operation(trace, "a", {0: 100, 1: 110, 2: 150}, 160, 200, batch=1)
    add_operation(trace, "b", {0: 120, 1: 115, 2: 170}, 175, 200, batch=1, size=300)
    add_operation(trace, "a", {0: 305, 1: 300, 2: 302}, 310, 350, batch=2)
    add_operation(trace, "b", {1: 320}, 325, 350, batch=2)
    return trace


@pytest.mark.parametrize("seed", range(20))
def test_union_length_counts_every_point_once(seed: int) -> None:
    generator = random.Random(seed)
    intervals = []
    for _ in range(generator.randint(0, 30)):
        begin = generator.randint(-50, 50)
        intervals.append((begin, begin + generator.randint(0, 20)))
    points = {point for begin, end in intervals for point in range(begin, end)}
    assert union_length(intervals) == len(points)


def test_operations() -> None:
    ops = analysis.operations(two_steps())
    assert list(ops["tensor"]) == ["a", "b", "a", "b"]
    assert list(ops["index"]) == [0, 0, 1, 1]
    first = ops.iloc[0]
    assert (first["first_rank"], first["last_rank"], first["ranks"]) == (0, 2, 3)
    assert (first["first_ready"], first["last_ready"], first["skew_us"]) == (100, 150, 50)
    assert (first["negotiate_us"], first["queue_us"], first["execute_us"]) == (50, 10, 40)
    assert (first["dtype"], first["shape"], first["bytes"], first["batch"]) == (
        *("float32", "[25]"),
        *(100, 1),
    )
    second_step = ops.iloc[2]
    assert (second_step["first_rank"], second_step["last_rank"]) == (1, 0)
    # One tick says nothing about skew.
    assert ops["skew_us"].isna().tolist() == [False, False, False, True]


def test_a_rejected_operation_keeps_its_ticks_to_itself() -> None:
    trace = Trace(source="made up")
    trace.spans.append(Span("a", "NEGOTIATE_ALLREDUCE", 0, 40, 0, {}))
    trace.ticks += [Tick("a", 0, 0), Tick("a", 1, 40)]
    add_operation(trace, "a", {0: 100, 1: 103}, 110, 120)
    ops = analysis.operations(trace)
    assert len(ops) == 1
    assert (ops.iloc[0]["skew_us"], ops.iloc[0]["ranks"]) == (3, 2)


def test_rank_lateness_charges_the_last_rank() -> None:
    trace = two_steps()
    lateness = analysis.rank_lateness(trace, analysis.operations(trace)).set_index("rank")
    assert lateness.index[0] == 2  # the costliest first
    assert lateness.loc[2, ["operations", "last", "charged_us"]].tolist() == [3, 2, 50 + 55]
    assert lateness.loc[2, "wall_us"] == 170 - 100  # [100, 150] and [115, 170] overlap
    assert lateness.loc[2, "median_late_us"] == 50  # of 50, 55 and 2
    assert lateness.loc[0, ["last", "charged_us", "wall_us"]].tolist() == [1, 5, 5]
    assert lateness.loc[1, ["last", "wall_us"]].tolist() == [0, 0]
    assert lateness.loc[2, "share"] == pytest.approx(70 / (350 - 100))


def test_operation_times() -> None:
    times = analysis.operation_times(two_steps()).set_index("name")
    reduce = times.loc["ALLREDUCE"]
    assert (reduce["level"], reduce["count"], reduce["total_us"]) == ("operation", 4, 130)
    assert reduce["wall_us"] == 40 + 40
    assert reduce["share"] == pytest.approx(80 / 250)
    assert list(times["level"].unique()) == ["negotiation", "operation", "activity"]


def test_batches() -> None:
    batches = analysis.batches(analysis.operations(two_steps()))
    assert batches["tensors"].tolist() == [2, 2]
    assert batches["bytes"].tolist() == [400, 200]
    assert batches["execute_us"].tolist() == [40, 40]
    assert batches["gbps"].tolist() == pytest.approx([0.01, 0.005])


def test_tensor_summary() -> None:
    tensors = analysis.tensor_summary(analysis.operations(two_steps())).set_index("tensor")
    assert list(tensors.index) == ["a", "b"]
    assert tensors.loc["a", ["count", "total_execute_us", "execute_us"]].tolist() == [2, 80, 40]
    assert tensors.loc["b", "bytes"] == 100


def test_nothing_recorded() -> None:
    trace = Trace(source="nothing")
    ops = analysis.operations(trace)
    for frame in (
        ops,
        analysis.batches(ops),
        analysis.tensor_summary(ops),
        analysis.operation_times(trace),
        analysis.rank_lateness(trace, ops),
    ):
        assert frame.empty
    assert "no operation was executed" in summary(trace)


def test_horovods_file() -> None:
    trace = read_trace(HOROVOD)
    ops = analysis.operations(trace)
    assert len(ops) == 24 + 4
    assert ops["skew_us"].notna().sum() == 10  # Horovod has ticks for new tensors only
    assert analysis.batches(ops).empty
    assert ops["bytes"].isna().all()
    # In the first step, every tick of rank 1 is 22.7 ms behind that of rank 0.
    lateness = analysis.rank_lateness(trace, ops)
    assert int(lateness.iloc[0]["rank"]) == 1
    assert 22_000 < int(lateness.iloc[0]["wall_us"]) < 24_000
    text = summary(trace)
    assert "holds the others up" not in text  # one turn proves nothing about a rank
    assert "when tensors were submitted for the first time" in text
    assert "18 of 28 operations have no ticks" in text


def verdict_of(trace: Trace) -> str:
    ops = analysis.operations(trace)
    return verdict(trace, ops, analysis.rank_lateness(trace, ops))


def steps_of(
    late: dict[int, int], queue: int, execute: int, compute: int, alternate: bool = False
) -> Trace:
    """20 steps of one tensor on 3 ranks; late[rank] us late (`alternate`: rank 1 and 2 in turn)."""
    trace = Trace(source="made up")
    time = 0
    for step in range(20):
        ready = {
            rank: time + (late.get(rank, 0) if not alternate or step % 2 == rank % 2 else 0)
            for rank in range(3)
        }
        begin = max(ready.values()) + queue
        add_operation(trace, "a", ready, begin, begin + execute)
        time = begin + execute + compute
    return trace


def test_verdict_names_the_cause() -> None:
    slow = verdict_of(steps_of({2: 300}, 1, 100, 600))
    assert "rank 2 holds the others up" in slow
    assert "20 of 20 operations" in slow
    mixed = verdict_of(steps_of({1: 300, 2: 300}, 1, 100, 600, alternate=True))
    assert "no single rank is the cause" in mixed
    assert "HOROVOD_CYCLE_TIME" in verdict_of(steps_of({}, 500, 100, 400))
    assert "communication runs during" in verdict_of(steps_of({}, 1, 500, 500))
    assert "not the main cost" in verdict_of(steps_of({}, 1, 50, 950))


def test_summary_mentions_lost_events() -> None:
    trace = two_steps()
    trace.instants.append(Instant("DROPPED_EVENTS", 350, {"dropped": 7}))
    assert "7 events were lost" in summary(trace)
