"""What trace viewers show of a recording: Chrome trace events, made from its records.

Each rank is a process, with one thread per lane: its steps, the waits of the framework's threads,
the gradients that it submitted, negotiation, queue, communication. Things that overlap in a lane
(twenty tensors that negotiate at the same time) are drawn twice: per tensor as asynchronous events,
and in the lane as bars in a row, each beginning at the end of the one before. Flows lead from a
gradient's submission through its batch to its completion, and from the rank that began a batch
first to the one that began it last.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hvdtune.timeline.record.capture_file import VIEW
from hvdtune.timeline.record.layout import RankRecording, Recording
from hvdtune.timeline.viewers.lanes import LANES, RankView, batch_of_tensors
from hvdtune.timeline.viewers.trace_events import TraceEvents
from hvdtune.timeline.viewers.window import MOST_EVENTS, Window, choose_window


@dataclass
class View:
    """The events as lines of JSON, in order of time, and how many of each phase (`ph`).

    `origin`: rank 0's time, ns, that is 0 in the events.
    """

    window: Window
    origin: int
    lines: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


def view(
    recording: Recording,
    steps: tuple[int, int] | None = None,
    most_events: int = MOST_EVENTS,
    around: tuple[int, int] | None = None,
) -> View:
    """The viewable events of `recording`.

    `steps`: the first step to show and the one after the last. Raises TimelineError if they were
    not recorded, or make more than MOST_EVENTS_ASKED_FOR events. Without `steps`, shows the last
    whole steps that make at most `most_events`; if a single step makes more, its last batches that
    fit. `around`: show the whole steps that overlap this time (begin and end, ns) instead.
    """
    window = choose_window(recording, steps, most_events, around)
    origin = min((_earliest(one, window) for one in recording.ranks.values()), default=window.begin)
    events = TraceEvents(origin)
    events.metadata(VIEW, min(recording.ranks, default=0), _describe(recording, window, origin))
    events.instant(0, window.begin, "hvdtune", {"shown": window.sentence}, scope="g")
    schedule = _schedule(recording)
    for rank in sorted(recording.ranks):
        RankView(recording, rank, window, schedule, events).draw()
    _flows_across_ranks(recording, window, events)
    return View(window, origin, events.lines(), events.counts)


def _schedule(recording: Recording) -> dict[str, np.ndarray]:
    """Rank 0's times at which batches were closed, by ascending serial."""
    if 0 not in recording.ranks:
        return {"serial": np.zeros(0, np.uint64), "scheduled": np.zeros(0, np.int64)}
    batches = recording.ranks[0].batches
    order = np.argsort(batches["serial"], kind="stable")
    return {"serial": batches["serial"][order], "scheduled": batches["scheduled"][order]}


def _earliest(one: RankRecording, window: Window) -> int:
    """The earliest moment drawn for a rank: submissions may precede the window."""
    index = batch_of_tensors(one)
    shown = index >= 0
    begins = one.batches["begin"][index[shown]]
    inside = (begins >= window.begin) & (begins < window.end)
    submitted = one.tensors["submitted"][shown][inside]
    submitted = submitted[submitted > 0]
    return min(window.begin, int(submitted.min())) if len(submitted) else window.begin


def _describe(recording: Recording, window: Window, origin: int) -> dict[str, Any]:
    rank0 = recording.ranks.get(0)
    wall = None
    if rank0 is not None and rank0.identity.started_wall_us:
        wall = rank0.identity.started_wall_us + (origin - rank0.identity.started_ns) // 1000
    return {
        "shown": window.sentence,
        "first_step": window.first,
        "last_step": window.last,
        "origin_ns": origin,
        "start_time_since_epoch_in_micros": wall,
        "clock_bound_us": recording.clock_bound_ns / 1000,
    }


def _flows_across_ranks(recording: Recording, window: Window, events: TraceEvents) -> None:
    """Draw an arrow from the rank that began a batch first to the one that began it last."""
    serials, begins, ranks = [], [], []
    for rank, one in recording.ranks.items():
        batches = one.batches
        inside = (batches["begin"] >= window.begin) & (batches["begin"] < window.end)
        serials.append(batches["serial"][inside])
        begins.append(batches["begin"][inside])
        ranks.append(np.full(int(inside.sum()), rank))
    if len(serials) < 2:
        return
    serial, begin, rank_of = map(np.concatenate, (serials, begins, ranks))
    order = np.lexsort((begin, serial))
    group: list[tuple[int, int]] = []
    last = None
    for i in order.tolist():
        if serial[i] != last:
            _flow_of_batch(group, events)
            group, last = [], serial[i]
        group.append((int(events.at(begin[i])), int(rank_of[i])))
    _flow_of_batch(group, events)


def _flow_of_batch(group: list[tuple[int, int]], events: TraceEvents) -> None:
    if len(group) < 2:
        return
    events.flows += 1
    for i, (q, rank) in enumerate(group):
        phase = "s" if i == 0 else "f" if i == len(group) - 1 else "t"
        # One unit after the beginning, so that it is within the bar.
        events.flow(phase, q + 1, rank, LANES["communication"], events.flows, "batch")
