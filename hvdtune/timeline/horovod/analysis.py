"""Questions about a timeline; each answer is a pandas DataFrame, each number has a formula.

Symbols, all times in microseconds (us) of the recording's clock:

    r_k    the tick of rank k: when it was ready for the operation
    n0,n1  begin and end of the operation's negotiation
    x0,x1  begin and end of its execution (ALLREDUCE, ALLGATHER …)
    |U|    length of a union of intervals: time covered at least once, overlaps counted once
    T      duration of the recording: last end minus first begin
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from hvdtune.timeline.horovod import turns
from hvdtune.timeline.horovod.model import NEGOTIATE, Span, Trace
from hvdtune.timeline.structure.intervals import union_length

if TYPE_CHECKING:
    import pandas as pd

OPERATION_COLUMNS = (
    *("tensor", "op", "index", "negotiate_us", "first_ready", "last_ready", "first_rank"),
    *("last_rank", "ranks", "skew_us", "queue_us", "begin", "end", "execute_us", "dtype", "shape"),
    *("bytes", "batch"),
)


def duration_us(trace: Trace) -> int:
    """T, us: from the first begin or tick to the last end or tick, without the time left out. 0 for
    an empty trace."""
    begins = [span.begin for span in trace.spans] + [tick.time for tick in trace.ticks]
    ends = [span.end for span in trace.spans] + [tick.time for tick in trace.ticks]
    return max(0, max(ends) - min(begins) - trace.left_out_us) if begins else 0


def operations(trace: Trace) -> pd.DataFrame:
    """Every executed operation on every tensor: one row each, in order of execution.

    | column | formula |
    |---|---|
    | index | how often the tensor was executed before |
    | negotiate_us | n1 − n0 of the last negotiation that ended before x0 |
    | first_ready, last_ready | min r_k, max r_k, us; with their ranks first_rank, last_rank |
    | ranks | number of ticks |
    | skew_us | max r_k − min r_k; needs two ticks |
    | queue_us | x0 − n1: ready everywhere, not yet running |
    | begin, end, execute_us | x0, x1, x1 − x0 |
    | dtype, shape, bytes, batch | as recorded; missing for failed operations |

    Values that the file does not have are missing (NA). The ticks of a negotiation are those of its
    row after the previous negotiation's end, up to its own end.
    """
    import pandas as pd

    ticks: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for tick in trace.ticks:
        ticks[tick.tensor].append((tick.time, tick.rank))
    tops: dict[str, list[Span]] = defaultdict(list)
    for span in trace.spans:
        if span.depth == 0:
            tops[span.tensor].append(span)
    rows: list[dict[str, Any]] = []
    for tensor, spans in tops.items():
        rows += _operations_of_row(spans, ticks[tensor])
    frame = pd.DataFrame(rows, columns=list(OPERATION_COLUMNS))
    whole = [c for c in OPERATION_COLUMNS if c not in ("tensor", "op", "dtype", "shape")]
    frame[whole] = frame[whole].astype("Int64")
    return frame.sort_values(["begin", "end"], kind="stable", ignore_index=True)


def _operations_of_row(spans: list[Span], ticks: list[tuple[int, int]]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    times = [time for time, _ in ticks]
    negotiation: Span | None = None
    used = upto = 0  # the latest negotiation's ticks are ticks[used:upto]
    for span in spans:
        if span.name.startswith(NEGOTIATE):
            negotiation = span
            used, upto = upto, max(upto, bisect_right(times, span.end))
            continue
        row: dict[str, Any] = {"tensor": span.tensor, "op": span.name, "index": len(rows)}
        row |= {"begin": span.begin, "end": span.end, "execute_us": span.duration}
        row |= {name: span.args[name] for name in ("dtype", "shape") if name in span.args}
        for name in ("bytes", "batch"):
            if isinstance(span.args.get(name), int):
                row[name] = span.args[name]
        if negotiation is not None:
            row["negotiate_us"] = negotiation.duration
            row["queue_us"] = max(0, span.begin - negotiation.end)
            row |= _readiness(ticks[used:upto])
            negotiation = None
        rows.append(row)
    return rows


def _readiness(ticks: list[tuple[int, int]]) -> dict[str, Any]:
    if not ticks:
        return {}
    (first, first_rank), (last, last_rank) = ticks[0], ticks[-1]
    row = {"first_ready": first, "first_rank": first_rank, "ranks": len(ticks)}
    if len(ticks) > 1:
        row |= {"last_ready": last, "last_rank": last_rank, "skew_us": last - first}
    return row


def tensor_summary(ops: pd.DataFrame) -> pd.DataFrame:
    """Per tensor and operation, the most expensive first.

    count = executions; execute_us, negotiate_us, skew_us, queue_us = medians over them;
    total_execute_us = Σ (x1 − x0); bytes = of the last execution. `ops` is from operations().
    Sums of times over tensors exceed wall time, because tensors of one batch run together.
    """
    grouped = ops.groupby(["tensor", "op"], sort=False)
    frame = grouped.agg(
        count=("begin", "size"),
        total_execute_us=("execute_us", "sum"),
        execute_us=("execute_us", "median"),
        negotiate_us=("negotiate_us", "median"),
        skew_us=("skew_us", "median"),
        queue_us=("queue_us", "median"),
        bytes=("bytes", "last"),
    )
    return frame.sort_values("total_execute_us", ascending=False, kind="stable").reset_index()


def operation_times(trace: Trace) -> pd.DataFrame:
    """Per kind of span, operations and negotiations first: how often and how long.

    count; total_us = Σ duration; mean_us = total_us / count; wall_us = |U| of the spans: the time
    in which at least one was open; share = wall_us / T. `level` is "negotiation", "operation" or
    "activity". Rows are ordered by level and wall_us.
    """
    import pandas as pd

    by_name: dict[tuple[int, str, str], list[Span]] = defaultdict(list)
    for span in trace.spans:
        if span.depth > 0:
            level = (2, "activity")
        else:
            level = (0, "negotiation") if span.name.startswith(NEGOTIATE) else (1, "operation")
        by_name[level[0], level[1], span.name].append(span)
    total = duration_us(trace)
    rows = []
    for (order, level_name, name), spans in by_name.items():
        wall = union_length((span.begin, span.end) for span in spans)
        length = sum(span.duration for span in spans)
        rows.append(
            {
                "order": order,
                "level": level_name,
                "name": name,
                "count": len(spans),
                "total_us": length,
                "mean_us": length / len(spans),
                "wall_us": wall,
                "share": wall / total if total else 0.0,
            }
        )
    columns = ["order", "level", "name", "count", "total_us", "mean_us", "wall_us", "share"]
    frame = pd.DataFrame(rows, columns=columns)
    frame = frame.sort_values(["order", "wall_us"], ascending=[True, False], kind="stable")
    return frame.drop(columns="order").reset_index(drop=True)


def rank_lateness(trace: Trace, ops: pd.DataFrame) -> pd.DataFrame:
    """Per rank, how late it was and what that cost: the skew of an operation is charged to the
    rank whose tick is last. The costliest rank is first.

    | column | formula |
    |---|---|
    | operations | operations in which the rank has a tick and at least two ranks do |
    | last | operations in which its tick is the last |
    | last_share | last / operations |
    | charged_us | Σ (max r_k − min r_k) over those, however many tensors waited at once |
    | wall_us | \\|U\\| of [min r_k, max r_k] over those: time in which any tensor waited for it |
    | share | wall_us / T |
    | median_late_us | median of r_k − min r_k over all its operations |
    | chance | probability that equal ranks cause as much waiting: turns.stragglers() |
    """
    import pandas as pd

    judged = ops[ops["skew_us"].notna()]
    waits: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for last_rank, first, last in zip(
        judged["last_rank"], judged["first_ready"], judged["last_ready"], strict=True
    ):
        waits[int(last_rank)].append((int(first), int(last)))
    lateness = _lateness_by_rank(trace, judged)
    total = duration_us(trace)
    blamed = turns.stragglers(ops, sorted(lateness))
    by_chance = dict(zip(blamed["rank"], blamed["chance"], strict=True))
    rows = []
    for rank in sorted(lateness):
        charged = waits[rank]
        wall = union_length(charged)
        rows.append(
            {
                "rank": rank,
                "operations": len(lateness[rank]),
                "last": len(charged),
                "last_share": len(charged) / len(lateness[rank]),
                "charged_us": sum(end - begin for begin, end in charged),
                "wall_us": wall,
                "share": wall / total if total else 0.0,
                "median_late_us": float(pd.Series(lateness[rank]).median()),
                "chance": by_chance[rank],
            }
        )
    columns = ["rank", "operations", "last", "last_share", "charged_us", "wall_us", "share"]
    frame = pd.DataFrame(rows, columns=[*columns, "median_late_us", "chance"])
    return frame.sort_values("wall_us", ascending=False, kind="stable", ignore_index=True)


def _lateness_by_rank(trace: Trace, judged: pd.DataFrame) -> dict[int, list[int]]:
    """r_k − min r_k of every tick that belongs to an operation of `judged`."""
    windows: dict[str, tuple[list[int], list[int]]] = {}
    for tensor, group in judged.groupby("tensor", sort=False):
        ordered = group.sort_values("first_ready")
        windows[str(tensor)] = (
            [int(value) for value in ordered["first_ready"]],
            [int(value) for value in ordered["last_ready"]],
        )
    lateness: dict[int, list[int]] = defaultdict(list)
    for tick in trace.ticks:
        if tick.tensor not in windows:
            continue
        firsts, lasts = windows[tick.tensor]
        at = bisect_left(lasts, tick.time)
        if at < len(firsts) and firsts[at] <= tick.time:
            lateness[tick.rank].append(tick.time - firsts[at])
    return lateness


def batches(ops: pd.DataFrame) -> pd.DataFrame:
    """Per fused batch, in order: op, tensors, bytes (Σ of its tensors'), begin (min x0), end
    (max x1), execute_us = end − begin, gbps = bytes / execute_us / 1000, in 10^9 bytes a second.

    Empty if the file does not say which tensors were fused (Horovod's do not).
    """
    known = ops[ops["batch"].notna()]
    frame = (
        known.groupby(["batch", "op"], sort=False)
        .agg(
            tensors=("tensor", "size"),
            bytes=("bytes", "sum"),
            begin=("begin", "min"),
            end=("end", "max"),
        )
        .reset_index()
    )
    frame["execute_us"] = frame["end"] - frame["begin"]
    seconds = frame["execute_us"].where(frame["execute_us"] > 0).astype("Float64")
    frame["gbps"] = frame["bytes"].astype("Float64") / seconds / 1000
    return frame
