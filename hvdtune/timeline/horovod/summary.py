"""The text that `hvdtune timeline summary` prints: a verdict first, then the numbers behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hvdtune.timeline import words
from hvdtune.timeline.horovod import analysis, starts, turns
from hvdtune.timeline.horovod.model import Trace
from hvdtune.timeline.structure.intervals import union_length

if TYPE_CHECKING:
    import pandas as pd

#: Shares of the recorded time from which on something is mentioned.
WAITING_MATTERS = 0.05
QUEUE_MATTERS = 0.10
COMMUNICATION_MATTERS = 0.25
#: A single pause is the cause of all waiting if it makes up this share of it.
ONE_CAUSE = 0.6
#: Tensors must occur this many times, with ticks, before the summary judges a rank.
FEWEST = 3


def summary(trace: Trace, most_rows: int = 10) -> str:
    """The whole text. `most_rows` limits the rank and tensor tables."""
    whole = analysis.operations(trace)
    found = starts.find(trace, whole)
    parts = [_headline(trace, whole)]
    trace = starts.without(trace, found)
    ops = analysis.operations(trace)
    lateness = analysis.rank_lateness(trace, ops)
    parts.append(told(trace, ops, lateness, found))
    if not lateness.empty:
        parts.append(_rank_table(lateness.head(most_rows)))
    times = analysis.operation_times(trace)
    if not times.empty:
        parts.append(_time_table(times))
    batches = analysis.batches(ops)
    if not batches.empty:
        parts.append(_batch_line(batches))
    if not ops.empty:
        parts.append(_tensor_table(analysis.tensor_summary(ops).head(most_rows)))
    notes = _notes(trace, whole)
    if notes:
        parts.append("\n".join(f"Note: {note}" for note in notes))
    return "\n\n".join(parts)


def told(trace: Trace, ops: pd.DataFrame, lateness: pd.DataFrame, found: list[starts.Start]) -> str:
    """The verdict on a recording without its starts, and the starts."""
    text = verdict(trace, ops, lateness)
    if not found:
        return text
    parts = [text, starts.sentence(found)]
    if ops.empty:
        parts[0] = "Verdict: nothing but a one-time start was recorded."
    elif lateness.empty:
        parts.append("The file does not show which ranks are late afterwards.")
    elif not _is_waiting(trace, ops):
        parts.append("No rank is late afterwards.")
    return " ".join(parts)


def _is_waiting(trace: Trace, ops: pd.DataFrame) -> bool:
    judged = ops[ops["skew_us"].notna()]
    waiting = _wall(judged["first_ready"], judged["last_ready"])
    return waiting >= WAITING_MATTERS * analysis.duration_us(trace)


def verdict(trace: Trace, ops: pd.DataFrame, lateness: pd.DataFrame) -> str:
    """One or two sentences: where the time of this recording went, and what to look at.

    waiting = |U| of all [min r_k, max r_k]; queueing = |U| of all [n1, x0]; communication = |U| of
    all [x0, x1]; each as a share of T. The verdict is the first of these, in this order, that
    reaches its limit (see the constants of this module).
    """
    total = analysis.duration_us(trace)
    if ops.empty or total == 0:
        return "Verdict: no operation was executed during this recording."
    judged = ops[ops["skew_us"].notna()]
    waiting = _wall(judged["first_ready"], judged["last_ready"])
    if waiting / total >= WAITING_MATTERS:
        return _waiting_verdict(waiting, total, ops, lateness, _longest_wait(judged))
    queued = ops[ops["queue_us"].notna()]
    queueing = _wall(queued["begin"] - queued["queue_us"], queued["begin"])
    if queueing / total >= QUEUE_MATTERS:
        return (
            f"Verdict: tensors that are ready on all ranks wait for their turn during "
            f"{_share(queueing, total)}. A shorter HOROVOD_CYCLE_TIME may help."
        )
    running = _wall(ops["begin"], ops["end"])
    if running / total >= COMMUNICATION_MATTERS:
        return (
            f"Verdict: communication runs during {_share(running, total)}; ranks hardly wait for "
            "each other. The tables below show its parts."
        )
    return (
        f"Verdict: communication is not the main cost. It runs during "
        f"{_share(running, total)}, and ranks wait for each other during {_share(waiting, total)}."
    )


def _longest_wait(judged: pd.DataFrame) -> tuple[int, int]:
    """The longest time in which tensors waited without a gap, us, and for which rank."""
    longest, who, reached, since = 0, -1, -1, 0
    ordered = judged.sort_values("first_ready")
    for first, last, rank in zip(
        ordered["first_ready"], ordered["last_ready"], ordered["last_rank"], strict=True
    ):
        since = int(first) if first > reached else since
        reached = max(reached, int(last))
        if reached - since > longest:
            longest, who = reached - since, int(rank)
    return longest, who


def _waiting_verdict(
    waiting: int, total: int, ops: pd.DataFrame, lateness: pd.DataFrame, longest: tuple[int, int]
) -> str:
    said = f"Verdict: ranks wait for each other during {_share(waiting, total)}"
    if turns.judged(ops) < FEWEST:
        return (
            f"{said}, when tensors were submitted for the first time: the file does not show which "
            "ranks were late after that, and a start proves nothing about a rank."
        )
    once, whom = longest
    if once > ONE_CAUSE * waiting:
        return (
            f"{said}, {_time(once)} of that in a single pause, for rank {whom}, which says "
            "nothing about the other operations."
        )
    blamed = turns.stragglers(ops, sorted(int(rank) for rank in lateness["rank"]))
    named = blamed[blamed["kind"] != ""]
    if len(named):
        top = named.iloc[0]
        row = lateness[lateness["rank"] == top["rank"]].iloc[0]
        return (
            f"Verdict: rank {int(top['rank'])} {_when(top)}. It was the last in "
            f"{int(row['last'])} of {int(row['operations'])} operations, and the others waited for "
            f"it during {_share(int(row['wall_us']), total)}. Look at what this rank and its host "
            "do between operations. The file marks no steps, so the report promises no gain."
        )
    parts = ", ".join(
        f"for rank {int(rank)} {_percent(share)}"
        for rank, share in zip(lateness["rank"].head(3), lateness["share"].head(3), strict=True)
    )
    return f"{said}, and no single rank is the cause ({parts}): chance alone explains as much."


def _when(row: pd.Series) -> str:
    """How a rank holds the others up. Only repeated tensors show what a step is."""
    late = words.seconds(float(row["typical_late_s"]))
    if row["kind"] == "persistent":
        return "holds the others up"
    if row["kind"] == "transient":
        return (
            f"held the others up for a while, by {late} each time (occurrences "
            f"{row['from_step'] + 1} to {row['to_step'] + 1} of the tensors)"
        )
    often = f"every {row['period']} occurrences of the tensors" if row["period"] else "repeatedly"
    return f"holds the others up {often}, by {late} each time"


def _wall(begins: pd.Series, ends: pd.Series) -> int:
    return union_length((int(begin), int(end)) for begin, end in zip(begins, ends, strict=True))


def _headline(trace: Trace, ops: pd.DataFrame) -> str:
    ranks = sorted({tick.rank for tick in trace.ticks})
    text = (
        f"{trace.source}: {_time(analysis.duration_us(trace))}, {trace.event_count} events, "
        f"{len(ops)} operations on {ops['tensor'].nunique()} tensors"
    )
    return f"{text}, {len(ranks)} ranks" if ranks else text


def _notes(trace: Trace, ops: pd.DataFrame) -> list[str]:
    notes = []
    if trace.dropped:
        notes.append(f"{trace.dropped} events were lost while recording; counts are too low.")
    without = int(ops["skew_us"].isna().sum())
    if 0 < without < len(ops):
        notes.append(
            f"{without} of {len(ops)} operations have no ticks, so the file does not show which "
            "ranks were late for them (Horovod records none for tensors in its cache)."
        )
    if trace.problems:
        notes.append(f"the file has flaws; see: hvdtune timeline check {trace.source}")
    return notes


def _rank_table(lateness: pd.DataFrame) -> str:
    rows = [
        [
            str(int(row["rank"])),
            f"{int(row['last'])} of {int(row['operations'])}",
            _time(row["wall_us"]),
            _percent(row["share"]),
            _time(row["median_late_us"]),
        ]
        for _, row in lateness.iterrows()
    ]
    head = ["rank", "last in", "others waited", "share", "late (median)"]
    return "Who was late\n" + _table(head, rows)


def _time_table(times: pd.DataFrame) -> str:
    rows = [
        [
            ("  " if row["level"] == "activity" else "") + str(row["name"]),
            str(int(row["count"])),
            _time(row["mean_us"]),
            _time(row["total_us"]),
            _time(row["wall_us"]),
            _percent(row["share"]),
        ]
        for _, row in times.iterrows()
    ]
    head = ["what", "count", "mean", "sum", "wall", "share"]
    return "Where the time went (wall: time with at least one tensor in it)\n" + _table(head, rows)


def _tensor_table(tensors: pd.DataFrame) -> str:
    rows = [
        [
            _shortened(str(row["tensor"])),
            str(row["op"]),
            str(int(row["count"])),
            _time(row["total_execute_us"]),
            _time(row["execute_us"]),
            _time(row["negotiate_us"]),
            _time(row["skew_us"]),
        ]
        for _, row in tensors.iterrows()
    ]
    head = ["tensor", "op", "count", "sum", "median", "negotiation", "skew"]
    return "The most expensive tensors\n" + _table(head, rows, left=2)


def _batch_line(batches: pd.DataFrame) -> str:
    count = len(batches)
    tensors = float(batches["tensors"].median())
    size = words.size(float(batches["bytes"].median()))
    time = float(batches["execute_us"].median())
    return (
        f"Fusion: {count} batches; the median one has {tensors:g} tensors, {size}, {_time(time)}."
    )


def _table(head: list[str], rows: list[list[str]], left: int = 1) -> str:
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    text = []
    for line in lines:
        cells = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        text.append("  " + "  ".join(cells).rstrip())
    return "\n".join(text)


def _time(us: Any) -> str:
    """12.3 s, 4.56 ms or 7 us; - if unknown."""
    try:
        value = float(us)
    except TypeError:  # None, pandas.NA
        return "-"
    if value != value:
        return "-"
    if value >= 1e6:
        return f"{value / 1e6:.2f} s"
    return f"{value / 1e3:.2f} ms" if value >= 1e3 else f"{value:.0f} us"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _share(part: int, total: int) -> str:
    return f"{_time(part)} of {_time(total)} ({_percent(part / total)})"


def _shortened(name: str, most: int = 48) -> str:
    printable = "".join(c if c.isprintable() else "?" for c in name)
    return printable if len(printable) <= most else "…" + printable[1 - most :]
