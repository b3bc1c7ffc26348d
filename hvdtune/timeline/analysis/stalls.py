"""Stalls: a rank holds the others up for long, or for ever. Definition: docs/metrics.md."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hvdtune.timeline.record.layout import Flag, Mark, Recording
from hvdtune.timeline.structure.joint import Joint
from hvdtune.timeline.structure.step_starts import Once
from hvdtune.timeline.structure.steps import Steps

if TYPE_CHECKING:
    import pandas as pd

#: A rank has stalled if the others waited this long for it in one step: seconds, median steps.
STALL_SECONDS = 0.5
STALL_STEPS = 10
#: … or, if the stall check reported it, this many median steps.
REPORTED_STEPS = 1
#: Equal reports of several ranks are one if they are closer together than this, ns.
SAME_REPORT = 1_000_000_000

_MISSING = re.compile(r"missing: rank (\d+)")
#: The rank that a report of several missing ranks names as the one that the others wait for.
_FIRST = re.compile(r"Look at rank (\d+) first")
#: How long ranks had waited when they were reported, s (native/observe/status/stall.cc).
_WAITED = re.compile(r" since (\d+(?:\.\d+)?) s")
#: What stands before and after a name in a report.
_BREAKS = re.compile(r"[\s(),]+")
#: Recordings leave out the numbers of the names that the engine makes up; reports do not.
_NUMBER = re.compile(r"(?<=\.noname)\.\d+$")


def stalls(
    joint: Joint, steps: Steps, late: pd.DataFrame, origin: int, starts: Sequence[Once] = ()
) -> pd.DataFrame:
    """One row per stall, in the order of time; none for stalls reported in one of `starts`.

    | column | formula |
    |---|---|
    | time_s | start of the step; without one, when the ranks began to wait |
    | step | its number, or -1 |
    | rank | the rank that the others waited for; -1 if unknown |
    | seconds | delay_s of that rank in that step (from lateness()); without a step: from when the
      ranks began to wait, which the report says (else from the last batch before it), until the
      next batch, or the end of the recording; batches of the process sets that the report is
      about |
    | text | the stall check's report, if there was one |
    | ended | False if these process sets had no batch after the report |
    """
    import pandas as pd

    columns = ["time_s", "step", "rank", "seconds", "text", "ended"]
    delays = _delays(steps, late, origin)
    known = _process_sets(joint.recording)
    rows: list[dict[str, Any]] = []
    for time, text in _reports(joint.recording):
        if any(one.begin <= time <= one.end for one in starts):
            continue
        who = _FIRST.search(text) or _MISSING.search(text)
        rank = int(who[1]) if who else -1
        row = _delay_at(delays, (time - origin) / 1e9, rank)
        if row is not None:
            row["text"] = row["text"] or text
            continue
        sets = _sets_of(text, known)
        before, after = _batches_around(joint, sets, time)
        # Other operations may go on meanwhile, so batches do not tell when the waiting began.
        began = _began_to_wait(text, time) or before or time
        until = after or _last_time(joint)
        if any(one["before"] == before for one in rows):
            continue  # reported again: no batch has run since
        again = [one for one in rows if one["rank"] == rank and began <= one["reported"]]
        if again:  # the ranks have waited since then
            again[-1] |= {"seconds": (until - again[-1]["began"]) / 1e9, "ended": after > 0}
            continue
        rows.append(
            {
                "time_s": max(began - origin, 0) / 1e9,
                "step": -1,
                "rank": rank,
                "seconds": (until - began) / 1e9,
                "text": text,
                "ended": after > 0,
                "before": before,
                "began": began,
                "reported": time,
            }
        )
    rows += [row for row in delays if row["long"] or row["text"]]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.sort_values("time_s", kind="stable", ignore_index=True)


def _delays(steps: Steps, late: pd.DataFrame, origin: int) -> list[dict[str, Any]]:
    """Rows for stalls(): a rank delays a step for so long that it stalled if that was reported;
    `long`: also if it was not."""
    if not len(steps):
        return []
    ends = np.max([steps.end[rank] for rank in steps.end], axis=0)
    begins = np.min([steps.begin[rank] for rank in steps.begin], axis=0)
    median = float(np.median(ends - begins)) / 1e9
    index = {int(number): at for at, number in enumerate(steps.number)}
    rows: list[dict[str, Any]] = []
    least = max(STALL_SECONDS, REPORTED_STEPS * median)
    for row in late[late["delay_s"] >= least].itertuples():
        at = index[int(row.step)]
        rows.append(
            {
                "time_s": (int(begins[at]) - origin) / 1e9,
                "length": int(ends[at] - begins[at]) / 1e9,
                "step": int(row.step),
                "rank": int(row.rank),
                "seconds": float(row.delay_s),
                "text": "",
                "ended": True,
                "long": float(row.delay_s) >= max(STALL_SECONDS, STALL_STEPS * median),
            }
        )
    return rows


def _delay_at(delays: list[dict[str, Any]], second: float, rank: int) -> dict[str, Any] | None:
    """The delay that a report of that time, which misses `rank`, is about; None if there is
    none."""
    found = [
        row
        for row in delays
        if row["time_s"] <= second <= row["time_s"] + row["length"]
        and (row["long"] or rank in (-1, row["rank"]))
    ]
    return max(found, key=lambda row: (row["rank"] == rank, row["seconds"]), default=None)


# ---- reports -------------------------------------------------------------------------------------


def _reports(recording: Recording) -> list[tuple[int, str]]:
    """(time, text) of each report, in the order of time."""
    marks: list[tuple[int, str]] = []
    for one in recording.ranks.values():
        for mark in one.marks[one.marks["kind"] == int(Mark.STALL)]:
            text = one.texts[mark["text"]] if mark["text"] < len(one.texts) else ""
            marks.append((int(mark["time"]), text))
    found: list[tuple[int, str]] = []
    latest: dict[str, int] = {}
    for time, text in sorted(marks):
        if text not in latest or time - latest[text] >= SAME_REPORT:
            found.append((time, text))
        latest[text] = time
    return found


def _process_sets(recording: Recording) -> dict[str, set[int]]:
    """The name of each operation or tensor → the process sets that have it."""
    found: dict[str, set[int]] = {}
    for rank in recording.ranks.values():
        for one, operation in zip(rank.names, rank.operations(), strict=True):
            for name in (one.name, operation):
                found.setdefault(name, set()).add(one.process_set)
    return found


def _sets_of(text: str, known: dict[str, set[int]]) -> list[set[int]]:
    """For each known operation that a report says ranks wait for: the process sets that have it."""
    words = _BREAKS.split(text.partition("\nMissing ranks:")[0])
    names = {_NUMBER.sub("", word) for word in words}
    return [known[name] for name in sorted(names & known.keys())]


def _began_to_wait(text: str, time: int) -> int:
    """When the ranks began to wait according to a report of that time; 0 if it does not say."""
    waited = [float(seconds) for seconds in _WAITED.findall(text)]
    return time - round(1e9 * max(waited)) if waited else 0


def _batches_around(joint: Joint, sets: list[set[int]], time: int) -> tuple[int, int]:
    """When the last batch of these process sets before `time` ended, and when the next one began
    (or, if it was running, ended); 0: there is none. Every operation of a report (an element of
    `sets`; without any, all process sets are one) has to go on: the one that is last counts."""
    begin, end = joint.over_ranks("begin", largest=False), joint.over_ranks("end")
    done = (joint.flags & int(Flag.OK)) > 0
    before: list[int] = [0]
    after: list[int] = []
    for one in sets or [set(joint.process_set.tolist())]:
        of = np.isin(joint.process_set, sorted(one))
        before.append(int(end[of & (end <= time)].max(initial=0)))
        following = of & done & (end > time)
        moments = np.where(begin > time, begin, end)[following]
        after.append(int(moments.min()) if len(moments) else 0)
    return max(before), max(after) if all(after) else 0


def _last_time(joint: Joint) -> int:
    """The time of the latest record."""
    latest = 0
    for view in joint.views.values():
        one = view.recording
        for stream, column in (("batches", "end"), ("waits", "end"), ("marks", "time")):
            table = one.streams[stream]
            latest = max(latest, int(table[column].max()) if len(table) else 0)
    return latest
