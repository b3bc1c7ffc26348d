"""The limited report about a timeline in Horovod's layout, from one rank's ticks and spans."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdtune import pages
from hvdtune.timeline import schema, words
from hvdtune.timeline.analysis.chance import RARE
from hvdtune.timeline.horovod import analysis, starts, summary
from hvdtune.timeline.horovod.model import Trace
from hvdtune.timeline.horovod.reader import read_layout
from hvdtune.timeline.record.events import TimelineError
from hvdtune.timeline.record.layout import KINDS
from hvdtune.timeline.report.tables import Table, html

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 40
OPERATIONS = tuple(kind.upper() for kind in KINDS)

MISSING = (
    "This file has Horovod's layout: one rank's view of single tensors. It says nothing about "
    "steps, what the framework did meanwhile, the other ranks' own time, or settings. So this "
    "report has no waterfall of a step, no overlap and no expected gain.",
    "For the full report, run the script under hvdtune and record it: hvdtune run "
    "--timeline-filename t.json …; then: hvdtune report t.json",
)
#: This is true of files that Horovod wrote; hvdtune's files in this layout mark every step.
FIRST_STEP_ONLY = (
    "Horovod records when ranks were ready only until a tensor is in its cache, that is, in the "
    "first step; so its files do not show which ranks were late after that."
)


def document(path: str | Path) -> schema.HorovodReport:
    """The numbers. Raises TimelineError if the file contains no operation."""
    trace = read_layout(path)
    operations = analysis.operations(trace)
    known = operations["op"].isin(OPERATIONS)
    if not known.any():
        raise TimelineError(
            f"{path} contains no operation of hvdtune or Horovod, so there is nothing to report. "
            "To read a trace of PyTorch's profiler, merge it with hvdtune's recording of the same "
            "run: hvdtune timeline merge"
        )
    found = starts.find(trace, operations)
    steady = starts.without(trace, found)
    operations = analysis.operations(steady)
    late = analysis.rank_lateness(steady, operations)
    verdict: schema.Finding = {
        "kind": "horovod",
        "sentence": summary.told(steady, operations, late, found).removeprefix("Verdict: "),
        "action": "",
        "gain": 0.0,
        "interval": [0.0, 0.0],
        "evidence": {},
    }
    return {
        "document": 1,
        "kind": "horovod",
        "source": str(path),
        "verdict": verdict,
        "findings": [verdict],
        "missing": [*MISSING, *([FIRST_STEP_ONLY] if _first_step_only(trace, operations) else [])],
        "summary": summary.summary(trace),
        "duration_s": analysis.duration_us(trace) / 1e6,
        "start": starts.numbers(found),
        "lateness": _records(late),
        "times": _records(analysis.operation_times(steady)),
        "tensors": _records(analysis.tensor_summary(operations).head(MOST_ROWS)),
        "problems": trace.problems,
    }


def _first_step_only(trace: Trace, operations: pd.DataFrame) -> bool:
    return not _is_ours(trace) and bool(operations["skew_us"].isna().any())


def _is_ours(trace: Trace) -> bool:
    """Whether hvdtune wrote the file: then every operation has the number of its batch."""
    return any("batch" in span.args for span in trace.spans)


def text(numbers: schema.HorovodReport) -> str:
    """The text of `hvdtune timeline summary`, and what the file does not contain."""
    notes = "\n".join(f"Note: {one}" for one in numbers["missing"])
    return f"{numbers['summary']}\n\n{notes}"


def page(numbers: schema.HorovodReport) -> str:
    """The same as a page."""
    from hvdtune.timeline.report.page import hero

    name = numbers["source"].rpartition("/")[2]
    return pages.page(
        f"hvdtune report: {name}",
        [
            f"<h1>Horovod's timeline: {escape(name)}</h1>",
            hero(numbers["verdict"]),
            *(pages.paragraph(one, "note") for one in numbers["missing"]),
            _late_ranks(numbers),
            html(_times(numbers)),
            html(_tensors(numbers)),
        ],
    )


def _late_ranks(numbers: schema.HorovodReport) -> str:
    rows = numbers["lateness"]
    if not rows:
        return ""
    spec = {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "y": [f"rank {one['rank']}" for one in rows],
                "x": [one["wall_us"] / 1e3 for one in rows],
                "marker": {"color": "@skew"},
                "hovertemplate": "%{y}: the others waited %{x:.3~g} ms<extra></extra>",
            }
        ],
        "layout": {
            "xaxis": {"title": {"text": "ms"}, "rangemode": "tozero"},
            "yaxis": {"autorange": "reversed", "type": "category"},
        },
    }
    first = rows[0]
    says = f"The others waited {words.seconds(first['wall_us'] / 1e6)} for rank {first['rank']}."
    if first["chance"] >= RARE:
        says = "The others waited for the last rank; among equal ranks, chance explains as much."
    return pages.figure(
        "lateness",
        spec,
        height=80 + 30 * len(rows),
        heading="Ranks that the others waited for",
        says=says,
    )


def _times(numbers: schema.HorovodReport) -> Table:
    rows = [
        (
            one["name"],
            words.grouped(one["count"]),
            words.seconds(one["mean_us"] / 1e6),
            words.seconds(one["total_us"] / 1e6),
            words.percent(one["share"]),
        )
        for one in numbers["times"]
    ]
    head = ("what", "count", "mean", "sum", "share of the time")
    return Table("Where the time went", head, rows)


def _tensors(numbers: schema.HorovodReport) -> Table:
    rows = [
        (
            words.shortened(one["tensor"]),
            one["op"],
            words.grouped(one["count"]),
            *(
                words.seconds(us / 1e6 if us is not None else None)
                for us in (one["total_execute_us"], one["execute_us"], one["negotiate_us"])
            ),
        )
        for one in numbers["tensors"]
    ]
    head = ("tensor", "operation", "count", "sum", "median", "negotiation")
    return Table("The most expensive tensors", head, rows, left=(0, 1))


def _records(table: Any) -> list[Any]:
    from hvdtune.timeline.report.document import plain

    return [{key: plain(value) for key, value in row.items()} for row in table.to_dict("records")]
