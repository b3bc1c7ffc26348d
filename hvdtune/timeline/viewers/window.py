"""The part of a recording that viewers show: whole steps, as many as viewers can handle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvdtune.timeline.record.events import TimelineError
from hvdtune.timeline.record.layout import Mark, Recording

#: The most events by default, and the most that a user can ask for.
MOST_EVENTS = 300_000
MOST_EVENTS_ASKED_FOR = 3_000_000

#: Events of a tensor on a rank, of a batch on a rank: what RankView makes, rounded up.
PER_TENSOR = 12
PER_BATCH = 18


@dataclass(frozen=True)
class Window:
    """What is shown: batches that begin from `begin` to `end` (ns of rank 0's clock, excluded).

    `first` … `last`: its steps; 0 if the recording has none. `of`: the last step recorded.
    """

    begin: int
    end: int
    first: int = 0
    last: int = 0
    of: int = 0
    whole: bool = False

    @property
    def sentence(self) -> str:
        """A sentence about the window, for people."""
        if self.whole:
            return "The whole recording is shown."
        if self.first:
            steps = f"step {self.first}" if self.first == self.last else ""
            return f"Shown: {steps or f'steps {self.first} to {self.last}'} of {self.of}."
        return f"Shown: the last {(self.end - self.begin) / 1e9:.3g} s of the recording."


def choose_window(
    recording: Recording,
    steps: tuple[int, int] | None,
    most_events: int,
    around: tuple[int, int] | None = None,
) -> Window:
    """The window of view(); `around`: the whole steps that overlap this time, ns."""
    begin, end = extent(recording)
    bounds = step_bounds(recording)
    last_step = int(bounds[-1, 0]) if len(bounds) else 0
    times, costs = _costs(recording)
    if around is not None and steps is None:
        touched = bounds[(bounds[:, 2] > around[0]) & (bounds[:, 1] < around[1])]
        if len(touched):
            steps = int(touched[0, 0]), int(touched[-1, 0]) + 1
    if steps is not None:
        return _asked_for(steps, bounds, times, costs)
    total = int(costs.sum())
    if total <= most_events:
        first = int(bounds[0, 0]) if len(bounds) else 0
        return Window(begin, end, first, last_step, last_step, whole=True)
    behind = np.append(np.cumsum(costs[::-1])[::-1], 0)  # events from each time on
    if len(bounds):
        # Events after the last step are also shown if they fit.
        for upto in (end, int(bounds[-1, 2])):
            rest = behind[np.searchsorted(times, upto)]
            cost = behind[np.searchsorted(times, bounds[:, 1])] - rest
            fitting = np.flatnonzero(cost <= most_events)
            if fitting.size:
                first_row = bounds[fitting[0]]
                return Window(int(first_row[1]), upto, int(first_row[0]), last_step, last_step)
    start = int(np.searchsorted(-behind[:-1], -most_events))
    return Window(int(times[start]) if start < len(times) else end, end)


def parse_steps(text: str) -> tuple[int, int]:
    """ "100:120" → (100, 120), "100:" → from step 100 on; ValueError says what is accepted."""
    first, colon, behind = text.partition(":")
    if colon and first.isdecimal() and (not behind or behind.isdecimal()) and len(text) < 40:
        steps = int(first), int(behind) if behind else 1 << 62
        if steps[0] < steps[1]:
            return steps
    raise ValueError(
        f"--steps {text} is not accepted: give the first step and the one after the last, such "
        "as 100:120, or 100: for all from step 100 on"
    )


def step_bounds(recording: Recording) -> np.ndarray:
    """[step, begin, end] of every step, ns: from the first rank's end of the step before it (or the
    start of the recording) to the last rank's end. Empty without step marks."""
    parts = []
    for one in recording.ranks.values():
        marks = one.marks[one.marks["kind"] == Mark.STEP]
        parts.append(np.stack([marks["value"], marks["time"]], axis=1))
    table = np.concatenate(parts) if parts else np.zeros((0, 2), np.int64)
    if not len(table):
        return np.zeros((0, 3), np.int64)
    table = table[np.lexsort((table[:, 1], table[:, 0]))]
    numbers, first = np.unique(table[:, 0], return_index=True)
    earliest = table[first, 1]
    latest = table[np.append(first[1:], len(table)) - 1, 1]
    begins = np.append(min(extent(recording)[0], int(earliest[0])), earliest[:-1])
    return np.stack([numbers, begins, latest], axis=1)


def _asked_for(
    steps: tuple[int, int], bounds: np.ndarray, times: np.ndarray, costs: np.ndarray
) -> Window:
    asked = f"steps {steps[0]}:{steps[1] if steps[1] < 1 << 62 else ''}"
    if not len(bounds):
        raise TimelineError(f"{asked} cannot be shown: the recording has no steps")
    recorded = f"recorded are {bounds[0, 0]} to {bounds[-1, 0]}"
    chosen = bounds[(bounds[:, 0] >= steps[0]) & (bounds[:, 0] < steps[1])]
    if not len(chosen):
        raise TimelineError(f"{asked} cannot be shown: {recorded}")
    begin, end = int(chosen[0, 1]), int(chosen[-1, 2])
    count = int(costs[np.searchsorted(times, begin) : np.searchsorted(times, end)].sum())
    if count > MOST_EVENTS_ASKED_FOR:
        raise TimelineError(
            f"{asked} make {count} events, and {MOST_EVENTS_ASKED_FOR} is the most that viewers "
            "can take: choose fewer steps"
        )
    return Window(begin, end, int(chosen[0, 0]), int(chosen[-1, 0]), int(bounds[-1, 0]))


def extent(recording: Recording) -> tuple[int, int]:
    """Begin of the first and end of the last record, ns; the end is excluded."""
    begins, ends = [], []
    for one in recording.ranks.values():
        for table, first, last in (
            (one.batches, "begin", "end"),
            (one.waits, "begin", "end"),
            (one.marks, "time", "time"),
            (one.counters, "time", "time"),
            (one.ready, "time", "time"),
        ):
            if len(table):
                begins.append(int(table[first].min()))
                ends.append(int(table[last].max()))
    return (min(begins), max(ends) + 1) if begins else (0, 1)


def _costs(recording: Recording) -> tuple[np.ndarray, np.ndarray]:
    """Times, ascending, and how many events are made for each."""
    times, costs = [], []
    for one in recording.ranks.values():
        times.append(one.batches["begin"])
        costs.append(PER_BATCH + PER_TENSOR * one.batches["tensors"].astype(np.int64))
        for table, column in (
            (one.waits, "begin"),
            (one.marks, "time"),
            (one.counters, "time"),
            (one.ready, "time"),
        ):
            times.append(table[column])
            costs.append(np.full(len(table), 2))
    if not times:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    time, cost = np.concatenate(times), np.concatenate(costs)
    order = np.argsort(time, kind="stable")
    return time[order], cost[order]
