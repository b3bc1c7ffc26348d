"""How fast operations are, by size, and what each tensor costs. Definitions: docs/metrics.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hvdtune.timeline.structure.joint import Joint, kind_name
from hvdtune.timeline.structure.steps import Steps

if TYPE_CHECKING:
    import pandas as pd

#: A size's bandwidth is used as the peak only if it has at least this many batches.
ENOUGH = 5


def bus_factor(op: str, ranks: int) -> float:
    """busbw / algbw as nccl-tests defines it; NaN for one rank, for an unknown number of ranks (0),
    and for operations that move no data."""
    if ranks < 2:
        return float("nan")
    factors = {
        "allreduce": 2 * (ranks - 1) / ranks,
        "allgather": (ranks - 1) / ranks,
        "reducescatter": (ranks - 1) / ranks,
        "alltoall": (ranks - 1) / ranks,
        "broadcast": 1.0,
    }
    return factors.get(op, float("nan"))


def total_bytes(joint: Joint) -> np.ndarray:
    """[B] S of the formulas: the ranks' shares together for allgather, else one rank's bytes."""
    members = joint.members()
    total = joint.bytes.copy()
    gathered = np.array([kind_name(kind) == "allgather" for kind in range(256)])[
        np.minimum(joint.kind, 255)
    ]
    if gathered.any():
        shares = np.zeros(len(joint))
        seen = np.zeros(len(joint))
        for view in joint.views.values():
            shares += np.where(view.present, view.bytes, 0)
            seen += view.present
        whole = shares * np.maximum(members, seen) / np.maximum(seen, 1)
        total[gathered] = whole[gathered]
    return total


def sizes(joint: Joint, peak_gbps: float | None = None) -> pd.DataFrame:
    """One row per operation, number of ranks and size; S in [bytes_from, 2 × bytes_from), a power
    of two.

    | column | formula |
    |---|---|
    | ranks | of the process set; 0 if the capture does not show it: then there is no busbw |
    | count | batches |
    | bytes | median S |
    | p50_s, p95_s, p99_s | percentiles of t, the shortest over the ranks of e − x |
    | algbw_gbps | median of S / t, 10⁹ bytes a second |
    | busbw_gbps | algbw × bus_factor(op, ranks) |
    | peak_share | busbw / peak; the peak is `peak_gbps` if it was measured, else the largest busbw
      of a size with at least ENOUGH batches, and NaN for one with fewer that is above it |
    | total_s | Σ t |
    """
    import pandas as pd

    seconds = joint.pure() / 1e9
    use = seconds > 0
    size = total_bytes(joint)[use]
    members = joint.members()[use]
    exponent = np.where(size > 0, np.floor(np.log2(np.maximum(size, 1))), -1)
    frame = pd.DataFrame(
        {
            "op": [kind_name(kind) for kind in joint.kind[use]],
            "ranks": members,
            "bytes_from": np.where(exponent >= 0, 2.0 ** np.maximum(exponent, 0), 0).astype(int),
            "bytes": size,
            "seconds": seconds[use],
            "algbw": size / seconds[use] / 1e9,
        }
    )
    grouped = frame.groupby(["op", "ranks", "bytes_from"], sort=True, observed=True)
    result = grouped.agg(
        count=("seconds", "size"),
        bytes=("bytes", "median"),
        p50_s=("seconds", "median"),
        p95_s=("seconds", lambda values: values.quantile(0.95)),
        p99_s=("seconds", lambda values: values.quantile(0.99)),
        algbw_gbps=("algbw", "median"),
        total_s=("seconds", "sum"),
    ).reset_index()
    factors = [bus_factor(op, n) for op, n in zip(result["op"], result["ranks"], strict=True)]
    result["busbw_gbps"] = result["algbw_gbps"] * np.array(factors, float)
    often = result.loc[result["count"] >= ENOUGH, "busbw_gbps"]
    peak = peak_gbps if peak_gbps else (often.max() if len(often) else np.nan)
    result["peak_share"] = result["busbw_gbps"] / (peak if peak and peak > 0 else np.nan)
    if not peak_gbps:
        by_chance = (result["count"] < ENOUGH) & (result["peak_share"] > 1)
        result.loc[by_chance, "peak_share"] = np.nan
    return result


def tensors(joint: Joint, steps: Steps) -> pd.DataFrame:
    """One row per tensor that the reference rank knows, the one with the longest latency first.

    | column | formula |
    |---|---|
    | name, op, dtype, bytes, process_set | as first described |
    | count | how often it was reduced |
    | latency_s | median of (end of its batch − its submission) |
    | wait_s | median of (its batch begins − its submission) |
    | last_share | share of the whole steps in which it is the last to be submitted |
    | alone_share | share in which it is the only tensor of its batch |
    """
    import pandas as pd

    view = joint.reference
    known = np.flatnonzero(view.rows > 0)
    counts = view.rows[known]
    batch = np.repeat(known, counts)
    shift = np.repeat(view.first_row[known] - np.cumsum(counts) + counts, counts)
    rows = shift + np.arange(len(batch))
    names = view.recording.tensors["name"][rows]
    submitted = view.recording.tensors["submitted"][rows].astype(np.int64)
    own = submitted > 0  # not the zeros of a rank that has joined
    names, batch, submitted = names[own], batch[own], submitted[own]
    frame = pd.DataFrame(
        {
            "id": names,
            "latency_s": ((view.end[batch] - submitted) / 1e9).astype(np.float32),
            "wait_s": ((view.begin[batch] - submitted) / 1e9).astype(np.float32),
            "alone": joint.tensors[batch] == 1,
            "last": _last_of_step(steps.batch_step[batch], submitted),
        }
    )
    grouped = frame.groupby("id", sort=False)
    result = grouped.agg(
        count=("last", "size"),
        latency_s=("latency_s", "median"),
        wait_s=("wait_s", "median"),
        last_share=("last", "sum"),
        alone_share=("alone", "mean"),
    ).reset_index()
    result["last_share"] = result["last_share"] / max(len(steps), 1)
    described = view.recording.names
    for column in ("bytes", "process_set"):
        values = [getattr(name, column) for name in described]
        result.insert(1, column, _looked_up(result["id"], values, 0))
    for column, field in (("dtype", "dtype"), ("op", "kind"), ("name", "name")):
        values = [getattr(name, field) for name in described]
        result.insert(1, column, _looked_up(result["id"], values, "unknown"))
    result = result.drop(columns="id")
    return result.sort_values("latency_s", ascending=False, kind="stable", ignore_index=True)


def _looked_up(ids: pd.Series, values: list[object], otherwise: object) -> list[object]:
    return [values[at] if at < len(values) else otherwise for at in ids]


def _last_of_step(step: np.ndarray, submitted: np.ndarray) -> np.ndarray:
    """bool per row: the last submission of its step."""
    result = np.zeros(len(step), bool)
    inside = np.flatnonzero(step >= 0)
    if len(inside):
        order = inside[np.lexsort((submitted[inside], step[inside]))]
        edges = np.append(np.flatnonzero(np.diff(step[order])), len(order) - 1)
        result[order[edges]] = True
    return result
