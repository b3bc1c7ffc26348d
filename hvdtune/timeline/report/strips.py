"""One typical and one bad step, drawn to scale: what every rank did at which moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hvdtune.timeline import schema, words
from hvdtune.timeline.record.layout import KINDS

if TYPE_CHECKING:
    import pandas as pd

    from hvdtune.timeline.analysis.answers import Analysis

MOST_RANKS = 8
MOST_SPANS = 250  # of one lane
#: Gaps shorter than this share of the step cannot be seen; the spans beside them are joined.
SMALLEST = 1 / 1500
#: The slowest step is a bad step if it takes at least this many times the typical one.
BAD = 1.1
WARM_UP = 3


def strips(analysis: Analysis) -> list[schema.Strip]:
    """The typical step and, if there is one, a bad step; empty without steps."""
    steps = analysis.steps
    if steps.empty:
        return []
    spans = steps.groupby("step").agg(begin=("begin_s", "min"), end=("end_s", "max"))
    durations = steps.groupby("step")["duration_s"].median()
    warm = durations.iloc[WARM_UP:] if len(durations) > 4 * WARM_UP else durations
    typical = int((warm - warm.median()).abs().idxmin())
    chosen = [("typical", typical)]
    longest = (spans["end"] - spans["begin"]).loc[warm.index]
    bad = int(warm.idxmax())
    if warm[bad] >= BAD * warm[typical]:
        chosen.append(("bad", bad))
    return [_strip(analysis, kind, step, float(longest[step])) for kind, step in chosen]


def _strip(analysis: Analysis, kind: str, step: int, length: float) -> schema.Strip:
    rows = analysis.steps[analysis.steps["step"] == step].set_index("rank")
    origin = float(rows["begin_s"].min())
    shown = _shown_ranks(analysis, rows)
    return {
        "kind": kind,
        "step": step,
        "duration_s": float(rows["duration_s"].median()),
        "length_ms": 1e3 * length,
        "left_out": len(rows) - len(shown),
        "ranks": [
            _lanes(analysis, rank, rows.loc[rank], origin, length)
            for rank in shown
            if rank in analysis.recording.ranks
        ],
    }


def _shown_ranks(analysis: Analysis, rows: pd.DataFrame) -> list[int]:
    """All ranks; if there are too many, the latest ones, and some others for comparison."""
    present = [int(rank) for rank in rows.index]
    if len(present) <= MOST_RANKS:
        return present
    late = analysis.lateness.groupby("rank")["lateness_s"].mean().sort_values(ascending=False)
    worst = [int(rank) for rank in late.index if int(rank) in present][: MOST_RANKS // 2]
    others = [rank for rank in present if rank not in worst][: MOST_RANKS - len(worst)]
    return sorted([*worst, *others])


def _lanes(
    analysis: Analysis, number: int, row: pd.Series, origin: float, length: float
) -> schema.Lanes:
    """Spans [begin, end] in ms from `origin`. A rank computes while it is not blocked; if the
    recording does not show when the program waits, only its communication is known."""
    rank = analysis.recording.ranks[number]
    window = float(row["begin_s"]), float(row["end_s"])
    blocked: list[tuple[float, float]] = []
    compute: list[tuple[float, float]] = []
    if analysis.overlap.shows_waits:
        waits = _within(rank.waits, analysis.origin_ns, window)
        blocked = _joined([(a, b) for a, b, _ in waits], length * SMALLEST)
        compute = _between(blocked, window)
    batches = _within(rank.batches, analysis.origin_ns, window)
    communication: list[schema.Span] = [
        [*_ms((a, b), origin), _batch_words(rank.batches[at])] for a, b, at in batches
    ]
    if len(communication) > MOST_SPANS:
        joined = _joined([(a, b) for a, b, _ in batches], length * SMALLEST)
        communication = [_ms(span, origin) for span in joined]
    return {
        "rank": rank.rank,
        "compute": [_ms(span, origin) for span in compute][:MOST_SPANS],
        "blocked": [_ms(span, origin) for span in blocked][:MOST_SPANS],
        "communication": communication[: 2 * MOST_SPANS],
    }


def _within(
    table: np.ndarray, origin_ns: int, window: tuple[float, float]
) -> list[tuple[float, float, int]]:
    """Begin and end, clipped to the window (s from the origin), and index of the records in it."""
    begins = (table["begin"] - origin_ns) * 1e-9
    ends = (table["end"] - origin_ns) * 1e-9
    places = np.flatnonzero((ends > window[0]) & (begins < window[1]))
    return [
        (max(window[0], float(begins[at])), min(window[1], float(ends[at])), int(at))
        for at in places
    ]


def _joined(spans: list[tuple[float, float]], gap: float) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if found and begin - found[-1][1] <= gap:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def _between(
    spans: list[tuple[float, float]], window: tuple[float, float]
) -> list[tuple[float, float]]:
    edges = [window[0], *(edge for span in spans for edge in span), window[1]]
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return [(begin, end) for begin, end in pairs if end > begin]


def _ms(span: tuple[float, float], origin: float) -> schema.Span:
    return [round(1e3 * (edge - origin), 4) for edge in span]


def _batch_words(batch: Any) -> str:
    kind = KINDS[batch["kind"]] if batch["kind"] < len(KINDS) else "operation"
    return (
        f"({kind}, {words.number(int(batch['tensors']), 'tensor')}, {words.size(batch['bytes'])})"
    )
