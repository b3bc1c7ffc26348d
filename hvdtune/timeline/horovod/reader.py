"""Reads hvdtune's and Horovod's timelines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hvdtune.timeline.horovod.model import Instant, Span, Tick, Trace
from hvdtune.timeline.record.capture_file import VIEW
from hvdtune.timeline.record.events import TimelineError, load_events

#: At most this many problems of one kind are listed; the rest are counted.
_MOST_LISTED = 20


def read_trace(path: str | Path) -> Trace:
    """Read a timeline: plain or gzip, complete or cut off, with events in any order.

    Begins and ends are paired within a row (pid and, if given, tid): an end belongs to the
    innermost begin that is open at its time; events with equal times are taken in the file's order.
    Raises TimelineError (a ValueError) for a file that is no timeline, OSError if it cannot be
    read. Every lesser fault is a sentence in the trace's `problems`.
    """
    events, problems = load_events(path)
    trace = Trace(source=str(path), event_count=len(events), problems=problems)
    names = _row_names(events, trace)
    rows: dict[tuple[Any, Any], list[dict[str, Any]]] = defaultdict(list)
    untimed = 0
    for event in events:
        phase = event["ph"]
        if phase == "M":
            trace.for_viewers |= event.get("name") == VIEW
            if event.get("name") == "hvdtune_cut_off":
                why = _mapping(event.get("args")).get("reason")
                problems.append(f"The recording was cut off after the last event here: {why}.")
            continue
        if not _is_time(event.get("ts")):
            untimed += 1
        elif phase in "BEX":
            rows[_key(event.get("pid")), _key(event.get("tid"))].append(event)
        elif phase in "iI":
            args = event.get("args")
            trace.instants.append(Instant(str(event.get("name")), int(event["ts"]), _mapping(args)))
    if untimed:
        problems.append(f"{untimed} events have no time and were left out.")
    for (pid, _), row in rows.items():
        tensor = names.get(pid, f"row {pid}")
        _read_row(tensor, sorted(row, key=lambda event: float(event["ts"])), trace)
    trace.instants.sort(key=lambda instant: instant.time)
    trace.ticks.sort(key=lambda tick: tick.time)
    trace.spans.sort(key=lambda span: (span.begin, -span.end))
    _shorten(problems)
    return trace


def read_layout(path: str | Path) -> Trace:
    """The same for a timeline in Horovod's layout. Raises TimelineError for a file that hvdtune
    made from a recording for trace viewers: its rows are different and allow no verdict."""
    trace = read_trace(path)
    if trace.for_viewers:
        raise TimelineError(
            f"{path} shows some steps of a recording in trace viewers and does not contain its "
            "records: give hvdtune report the recording itself"
        )
    return trace


def _row_names(events: Iterable[dict[str, Any]], trace: Trace) -> dict[Any, str]:
    names: dict[Any, str] = {}
    for event in events:
        if event["ph"] != "M" or event.get("name") != "process_name":
            continue
        args = _mapping(event.get("args"))
        if isinstance(args.get("start_time_since_epoch_in_micros"), int):
            trace.start_epoch_us = args["start_time_since_epoch_in_micros"]
        elif "name" in args:
            names[_key(event.get("pid"))] = str(args["name"])
    trace.tensors = list(dict.fromkeys(names.values()))
    return names


def _read_row(tensor: str, events: list[dict[str, Any]], trace: Trace) -> None:
    """Pair the row's begins and ends; `events` are in order of time."""
    stack: list[dict[str, Any]] = []
    for event in events:
        time = int(event["ts"])
        if event["ph"] == "B":
            stack.append(event)
        elif event["ph"] == "X":
            _read_complete(tensor, event, len(stack), trace)
        elif not stack:
            trace.problems.append(f"An end without a begin in the row of {tensor!r} at {time} us.")
        else:
            begin = stack.pop()
            args = {**_mapping(begin.get("args")), **_mapping(event.get("args"))}
            name = str(begin.get("name"))
            trace.spans.append(Span(tensor, name, int(begin["ts"]), time, len(stack), args))
    for begin in stack:
        trace.problems.append(
            f"{begin.get('name')} in the row of {tensor!r} has not ended; it began at "
            f"{int(begin['ts'])} us."
        )


def _read_complete(tensor: str, event: dict[str, Any], depth: int, trace: Trace) -> None:
    """A tick has a rank as its name and no duration; anything else is a span of its own."""
    name, time = str(event.get("name")), int(event["ts"])
    duration = event.get("dur", 0)
    if name.isascii() and name.isdigit() and len(name) < 10 and not duration:
        trace.ticks.append(Tick(tensor, int(name), time))
    elif _is_time(duration):
        args = _mapping(event.get("args"))
        trace.spans.append(Span(tensor, name, time, time + int(duration), depth, args))


def _is_time(value: Any) -> bool:
    # Bounds keep infinities, NaN and numbers beyond any clock out of the arithmetic.
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e18 < value < 1e18


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _key(value: Any) -> Any:
    return value if isinstance(value, int | str) or value is None else str(value)


def _shorten(problems: list[str]) -> None:
    """Keep the first few of each kind, in place."""
    kinds = {
        "An end without a begin": "ends without a begin",
        " has not ended; ": "spans that have not ended",
    }
    for sign, plural in kinds.items():
        surplus = [problem for problem in problems if sign in problem][_MOST_LISTED:]
        if surplus:
            dropped = set(map(id, surplus))
            problems[:] = [problem for problem in problems if id(problem) not in dropped]
            problems.append(f"… and {len(surplus)} more {plural}.")
