"""Stalls, the tuner's course, and how far the numbers can be trusted. See docs/metrics.md."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hvdtune.timeline.analysis.answers import Quality
from hvdtune.timeline.analysis.joint import Joint
from hvdtune.timeline.analysis.step_starts import Once
from hvdtune.timeline.analysis.steps import Steps
from hvdtune.timeline.record.layout import Mark, RankRecording, Recording

if TYPE_CHECKING:
    import pandas as pd

#: A rank has stalled if the others waited this long for it in one step: seconds, median steps.
STALL_SECONDS = 0.5
STALL_STEPS = 10
#: The cost of a record to a rank, seconds of CPU: reading the clock, taking and writing it.
#: RECORD_COST is for streams that are not listed.
RECORD_COSTS = {"tensors": 15e-9, "batches": 500e-9}
RECORD_COST = 100e-9
#: … of a mark of a phase, including the detection of its beginning or end …
PHASE_COST = 3e-6
#: … and of a wait if ranks share CPUs, with the query of how long it waited for one.
CROWDED_WAIT_COST = 2e-6

_MISSING = re.compile(r"missing: rank (\d+)")
#: The rank that a report of several missing ranks names as the one that the others wait for.
_FIRST = re.compile(r"Look at rank (\d+) first")


def stalls(
    joint: Joint, steps: Steps, late: pd.DataFrame, origin: int, starts: Sequence[Once] = ()
) -> pd.DataFrame:
    """One row per stall, in the order of time; none for stalls reported in one of `starts`.

    | column | formula |
    |---|---|
    | time_s | start of the step; the report's time if no whole step contains the stall |
    | step | its number, or -1 |
    | rank | the rank that the others waited for; -1 if unknown |
    | seconds | delay_s of that rank in that step (from lateness()); for a stall that never ended:
      from the last batch before its report to the end of the recording |
    | text | the stall check's report, if there was one |
    """
    import pandas as pd

    columns = ["time_s", "step", "rank", "seconds", "text"]
    ended = _long_delays(steps, late, origin)
    rows = list(ended)
    open_since: set[int] = set()
    for time, text in _reports(joint.recording):
        if any(one.begin <= time <= one.end for one in starts):
            continue
        second = (time - origin) / 1e9
        row = next((r for r in ended if r["time_s"] <= second <= r["time_s"] + r["length"]), None)
        if row is not None:
            row["text"] = row["text"] or text
            continue
        last_end = _last_end(joint, time)
        since = last_end if last_end < time else 0  # 0: no batch has run
        if since in open_since:
            continue  # reported again: no batch has run since
        open_since.add(since)
        who = _FIRST.search(text) or _MISSING.search(text)
        rows.append(
            {
                "time_s": second,
                "step": -1,
                "rank": int(who[1]) if who else -1,
                "seconds": (_last_time(joint) - last_end) / 1e9,
                "text": text,
            }
        )
    frame = pd.DataFrame(rows, columns=columns)
    return frame.sort_values("time_s", kind="stable", ignore_index=True)


def _long_delays(steps: Steps, late: pd.DataFrame, origin: int) -> list[dict[str, Any]]:
    if not len(steps):
        return []
    ends = np.max([steps.end[rank] for rank in steps.end], axis=0)
    begins = np.min([steps.begin[rank] for rank in steps.begin], axis=0)
    limit = max(STALL_SECONDS, STALL_STEPS * float(np.median(ends - begins)) / 1e9)
    index = {int(number): at for at, number in enumerate(steps.number)}
    rows: list[dict[str, Any]] = []
    for row in late[late["delay_s"] >= limit].itertuples():
        at = index[int(row.step)]
        rows.append(
            {
                "time_s": (int(begins[at]) - origin) / 1e9,
                "length": int(ends[at] - begins[at]) / 1e9,
                "step": int(row.step),
                "rank": int(row.rank),
                "seconds": float(row.delay_s),
                "text": "",
            }
        )
    return rows


def _reports(recording: Recording) -> list[tuple[int, str]]:
    found: dict[str, tuple[int, str]] = {}
    for one in recording.ranks.values():
        for mark in one.marks[one.marks["kind"] == int(Mark.STALL)]:
            text = _text(one, int(mark["text"]))
            found.setdefault(text, (int(mark["time"]), text))
    return sorted(found.values())


def _text(one: RankRecording, number: int) -> str:
    return one.texts[number] if number < len(one.texts) else ""


def _last_end(joint: Joint, before: int) -> int:
    """The end of the last batch before that moment; the moment itself if there is none."""
    ends = np.concatenate([view.end for view in joint.views.values()])
    ends = ends[(ends > 0) & (ends <= before)]
    return int(ends.max()) if len(ends) else before


def _last_time(joint: Joint) -> int:
    """The time of the latest record."""
    latest = 0
    for view in joint.views.values():
        one = view.recording
        for stream, column in (("batches", "end"), ("waits", "end"), ("marks", "time")):
            table = one.streams[stream]
            latest = max(latest, int(table[column].max()) if len(table) else 0)
    return latest


def tuning(joint: Joint, steps: Steps, origin: int) -> pd.DataFrame:
    """The autotuner's course: rank 0's AUTOTUNE and SETTINGS marks in order.

    time_s; step (number of the step it falls in, -1 outside); kind "autotune" or "settings"; epoch
    (of SETTINGS; else -1); text.
    """
    import pandas as pd

    rank = min(joint.views)
    one = joint.views[rank].recording
    wanted = {int(Mark.AUTOTUNE): "autotune", int(Mark.SETTINGS): "settings"}
    marks = one.marks[np.isin(one.marks["kind"], list(wanted))]
    step = np.full(len(marks), -1, np.int64)
    if len(steps):
        at = np.searchsorted(steps.end[rank], marks["time"], side="left")
        inside = at < len(steps)
        near = np.minimum(at, len(steps) - 1)
        inside &= steps.begin[rank][near] <= marks["time"]
        step[inside] = steps.number[near[inside]]
    return pd.DataFrame(
        {
            "time_s": (marks["time"].astype(np.int64) - origin) / 1e9,
            "step": step,
            "kind": [wanted[int(kind)] for kind in marks["kind"]],
            "epoch": np.where(marks["kind"] == int(Mark.SETTINGS), marks["value"], -1),
            "text": [_text(one, int(text)) for text in marks["text"]],
        }
    )


def quality(joint: Joint, steps: Steps, late: pd.DataFrame) -> Quality:
    """Lost records, missing ranks, the clocks' accuracy, the possible cost of recording."""
    recording = joint.recording
    dropped: dict[str, int] = {}
    records, shares = 0, [0.0]
    for one in recording.ranks.values():
        for stream, count in one.dropped.items():
            if count:
                dropped[stream] = dropped.get(stream, 0) + int(count)
        records += sum(len(table) for table in one.streams.values())
        costs = RECORD_COSTS
        if 0 < one.identity.cpus < one.identity.local_size:
            costs = costs | {"waits": CROWDED_WAIT_COST}
        cost = sum(
            len(table) * costs.get(stream, RECORD_COST) for stream, table in one.streams.items()
        )
        cost += PHASE_COST * int((one.marks["kind"] == int(Mark.PHASE)).sum())
        ends, begins = one.batches["end"], one.batches["begin"]
        if len(ends):
            shares.append(cost / max(int(ends.max() - begins.min()) / 1e9, 1e-9))
    bound = recording.clock_bound_ns / 1e9
    typical = late.loc[late["lateness_s"] > 0, "lateness_s"].median() if len(late) else np.nan
    return Quality(
        ranks_recorded=len(recording.ranks),
        ranks_missing=tuple(r for r in range(recording.size) if r not in recording.ranks),
        incomplete_ranks=tuple(
            r for r, one in sorted(recording.ranks.items()) if not (one.complete or one.cut_off)
        ),
        cut_off={str(r): one.cut_off for r, one in sorted(recording.ranks.items()) if one.cut_off},
        dropped=dropped,
        clock_bound_s=bound,
        skew_below_clock_bound=bool(typical < bound),
        steps_from=steps.found_from,
        steps_ignored=steps.ignored,
        records=records,
        recording_overhead_share=float(max(shares)),
        problems=tuple(recording.problems),
    )
