"""An analysis as the numbers that a report shows: one JSON document for page, text and `--json`.

Data that grows with the length of the recording is aggregated here, so a page stays small however
long the run was. docs/report.md describes the document.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from hvdtune.timeline import schema
from hvdtune.timeline.advice import accounting
from hvdtune.timeline.analysis import phases
from hvdtune.timeline.analysis.answers import PARTS
from hvdtune.timeline.analysis.sizes import bus_factor, total_bytes
from hvdtune.timeline.record.layout import Recording
from hvdtune.timeline.report import cpus
from hvdtune.timeline.report.strips import strips
from hvdtune.timeline.structure import step_starts

if TYPE_CHECKING:
    import pandas as pd

    from hvdtune.timeline.analysis.answers import Analysis
    from hvdtune.timeline.evidence.finding import Finding
    from hvdtune.timeline.structure.owners import Family

#: Raised with every change that a reader of `--json` would misread.
DOCUMENT = 1
MOST_CELLS = 8000
MOST_COLUMNS = 240
MOST_ROWS = 64
MOST_BARS = 12
MOST_POINTS = 1500
MOST_IN_SERIES = 800
MOST_EVENTS = 200
MOST_LISTED = 40
MOST_SIZES = 200

#: A part of the waterfall → its title and its colour. The order is analysis.answers.PARTS.
PART_WORDS = {
    "compute_s": ("compute", "compute"),
    "skew_wait_s": ("waiting for a late rank", "skew"),
    "negotiation_s": ("negotiation", "negotiation"),
    "cycle_wait_s": ("waiting for more tensors in a batch", "cycle"),
    "queue_s": ("waiting for earlier batches", "queue"),
    "copy_in_s": ("copy in", "copy-in"),
    "reduce_s": ("reduction", "reduce"),
    "copy_out_s": ("copy out", "copy-out"),
    "peer_wait_s": ("waiting for others in a batch", "peer"),
    "other_s": ("other", "other"),
}
SUMS = ("exposed_s", "communication_s", "overlapped_s")  # beside the parts, not among them


def numbers_of(analysis: Analysis, findings: list[Finding]) -> schema.Report:
    """The whole document. `findings` are verdict.findings(analysis): the largest gain first."""
    recording = analysis.recording
    told = [_finding(one) for one in findings]
    points, series = _points(analysis), _series(analysis.steps)
    roofline, roof = _roofline(points, recording)
    return {
        "document": DOCUMENT,
        "kind": "hvdtune",
        "source": recording.source,
        "job": _job(recording),
        "verdict": told[0],
        "findings": told,
        "accounting": accounting.numbers(analysis, findings),
        "start": step_starts.numbers(analysis.starts, analysis.origin_ns),
        "steps": _steps(analysis),
        "waterfall": _waterfall(analysis),
        "phases": phases.numbers(analysis),
        "overlap": plain(analysis.overlap),
        "lateness": _lateness(analysis.lateness),
        "stragglers": _rows(_held_up(analysis.stragglers), MOST_LISTED),
        "cpus": cpus.numbers(analysis),
        "strips": strips(analysis),
        "fusion": _fusion(analysis),
        "sizes": _rows(analysis.sizes, MOST_SIZES),
        "points": points,
        "tensors": _rows(analysis.tensors, MOST_LISTED),
        "owners": [_owner(one, analysis) for one in analysis.owners[:MOST_LISTED]],
        "stalls": _rows(analysis.stalls, MOST_LISTED),
        "tuning": _rows(_changes(analysis.tuning), MOST_LISTED),
        "series": series,
        "settings": _settings(analysis),
        "quality": plain(analysis.quality),
        "roofline": roofline,
        "roof": roof,
        "events": _events(analysis, series),
    }


def _held_up(stragglers: pd.DataFrame) -> pd.DataFrame:
    """The ranks that held up at least one step."""
    return stragglers[stragglers["steps_last_share"] > 0]


def _changes(tuning: pd.DataFrame) -> pd.DataFrame:
    """The rows of `tuning` without the settings that the run began with."""
    return tuning[~((tuning["kind"] == "settings") & (tuning["epoch"] == 0))]


def _finding(one: Finding) -> schema.Finding:
    return {
        "kind": one.kind,
        "sentence": one.sentence,
        "action": one.action,
        "gain": float(one.gain),
        "interval": [float(bound) for bound in one.interval],
        "evidence": plain(one.evidence),
    }


def _owner(one: Family, analysis: Analysis) -> schema.Owner:
    row = plain(one)
    del row["names"], row["busy"]
    if not analysis.overlap.shows_waits and not one.blocked_s:
        row |= {"blocked_s": None, "late_s": None}
    return row


def _job(recording: Recording) -> schema.Job:
    one = recording.ranks[min(recording.ranks)].identity
    identities = [rank.identity for rank in recording.ranks.values()]
    return {
        "id": one.job,
        "ranks": recording.size,
        "recorded": sorted(recording.ranks),
        "hosts": sorted({identity.host for identity in identities}),
        "version": one.version,
        "framework": one.framework,
        "cpus": one.cpus or None,
        "started_wall_us": one.started_wall_us,
        "complete": all(rank.complete for rank in recording.ranks.values()),
    }


def _steps(analysis: Analysis) -> schema.Steps:
    """Percentiles over the steps, of the median over ranks."""
    steps = analysis.steps
    if steps.empty:
        return {"count": 0}
    durations = steps.groupby("step")["duration_s"].median().to_numpy()
    low, middle, high = np.percentile(durations, (5, 50, 95))
    begin, end = float(steps["begin_s"].min()), float(steps["end_s"].max())
    origin = analysis.origin_ns
    bounds = (origin + round(1e9 * begin), origin + round(1e9 * end))
    wall = end - begin - step_starts.seconds_within(analysis.starts, *bounds)
    return {
        "count": len(durations),
        "first": int(steps["step"].min()),
        "last": int(steps["step"].max()),
        "median_s": float(middle),
        "p5_s": float(low),
        "p95_s": float(high),
        "mean_s": float(durations.mean()),
        "wall_s": wall,
        "per_second": len(durations) / wall if wall > 0 else None,
    }


def typical_rows(waterfall: pd.DataFrame) -> pd.DataFrame:
    """The rows of typical steps: those whose median duration is in the middle half of all.

    The means of the parts over these rows sum to the mean step; medians would not.
    """
    medians = waterfall.groupby("step")["step_s"].median()
    low, high = medians.quantile([0.25, 0.75])
    chosen = medians.index[(medians >= low) & (medians <= high)]
    return waterfall[waterfall["step"].isin(chosen)]


def _waterfall(analysis: Analysis) -> schema.Waterfall:
    table = analysis.waterfall
    parts: list[schema.Part] = [
        {"name": part, "title": PART_WORDS[part][0], "colour": PART_WORDS[part][1]}
        for part in PARTS
    ]
    if table.empty or not analysis.overlap.shows_waits:
        return {
            "parts": parts,
            "typical": None,
            "mean": None,
            "ranks": [],
            "left_out": 0,
            "steps": 0,
        }
    rows = typical_rows(table)
    by_rank = rows.groupby("rank")[["step_s", *SUMS, *PARTS]].mean()
    bars: list[schema.RankBar] = [
        {"rank": int(rank), **bar_of(row)} for rank, row in by_rank.iterrows()
    ]
    shown = bars
    if len(bars) > MOST_BARS:
        # The ranks that differ most from the others are the most informative.
        compute = by_rank[PARTS[0]]
        far = (compute - compute.median()).abs().sort_values(ascending=False).index[:MOST_BARS]
        shown = [bar for bar in bars if bar["rank"] in set(far)]
    return {
        "parts": parts,
        "typical": bar_of(by_rank.mean()),
        "mean": bar_of(table[["step_s", *SUMS, *PARTS]].mean()),
        "ranks": shown,
        "left_out": len(bars) - len(shown),
        "steps": int(rows["step"].nunique()),
    }


def bar_of(row: pd.Series) -> schema.Bar:
    """A step's parts, in the document's form."""
    return {
        "step_s": float(row["step_s"]),
        "exposed_s": float(row["exposed_s"]),
        "communication_s": float(row["communication_s"]),
        "overlapped_s": float(row["overlapped_s"]),
        "parts_s": {part: float(row[part]) for part in PARTS},
    }


def _lateness(table: pd.DataFrame) -> schema.Lateness:
    """Rank × step. If there are too many for a picture, a cell is the mean over several steps, and
    a row the latest of several ranks."""
    if table.empty:
        return {"ranks": [], "steps": [], "late_ms": [], "most_ms": 0.0, "typical_ms": {}}
    wide = table.pivot_table(index="rank", columns="step", values="lateness_s", aggfunc="mean")
    grid = 1e3 * wide.to_numpy()
    typical = {str(rank): _number(float(np.nanmedian(row))) for rank, row in
               zip(wide.index, grid, strict=True)}  # fmt: skip
    rows = np.array_split(np.arange(len(wide.index)), min(MOST_ROWS, len(wide.index)))
    most = min(MOST_COLUMNS, MOST_CELLS // len(rows))
    columns = np.array_split(np.arange(len(wide.columns)), min(most, len(wide.columns)))
    cells = np.array([[_mean(grid[np.ix_(row, column)]) for column in columns] for row in rows])
    finite = cells[np.isfinite(cells)]
    return {
        "ranks": [[int(wide.index[row[0]]), int(wide.index[row[-1]])] for row in rows],
        "steps": [[int(wide.columns[one[0]]), int(wide.columns[one[-1]])] for one in columns],
        "late_ms": [[_number(float(value)) for value in row] for row in cells],
        "most_ms": _number(float(np.percentile(finite, 99.5))) if finite.size else 0.0,
        "typical_ms": typical,
    }


def _mean(block: np.ndarray) -> float:
    """The largest of the means over the steps of the ranks that share a row."""
    known = np.isfinite(block)
    counts = known.sum(axis=1)
    if not counts.any():
        return math.nan
    sums = np.where(known, block, 0.0).sum(axis=1)
    return float((sums[counts > 0] / counts[counts > 0]).max())


def _fusion(analysis: Analysis) -> schema.Fusion:
    table = analysis.batches
    numbers: schema.Fusion = plain(analysis.fusion)
    numbers["batches"], numbers["bins"], numbers["histogram"] = len(table), [], {}
    if table.empty:
        return numbers
    powers = np.ceil(np.log2(np.maximum(table["tensors"].to_numpy(float), 1))).astype(int)
    last = int(powers.max())
    labels = ["1", "2", *(f"{2 ** (at - 1) + 1}-{2**at}" for at in range(2, last + 1))][: last + 1]
    reasons = table["reason"].astype(str).to_numpy()
    numbers["bins"] = labels
    numbers["histogram"] = {
        reason: np.bincount(powers[reasons == reason], minlength=last + 1).tolist()
        for reason in sorted(set(reasons), key=lambda one: -int((reasons == one).sum()))
    }
    return numbers


def _points(analysis: Analysis) -> list[schema.Point]:
    """Single batches for the scatter plot, sampled evenly over the run."""
    import pandas as pd

    table = analysis.batches
    kinds = table[["op", "ranks"]].astype({"op": str}).drop_duplicates().itertuples(index=False)
    factors = {(op, ranks): bus_factor(op, ranks) for op, ranks in kinds}
    known = [key for key, factor in factors.items() if factor > 0]
    keys = pd.MultiIndex.from_frame(table[["op", "ranks"]].astype({"op": str}))
    table = table.assign(bytes=total_bytes(analysis.joint))  # the rows are the batches
    usable = table[(table["run_s"] > 0) & (table["bytes"] > 0) & keys.isin(known)]
    if usable.empty:
        return []
    places = np.unique(np.linspace(0, len(usable) - 1, MOST_POINTS).astype(int))
    return [
        {
            "op": str(row.op),
            "bytes": int(row.bytes),
            "busbw_gbps": _number(
                float(row.bytes / row.run_s / 1e9 * factors[str(row.op), row.ranks])
            ),
        }
        for row in usable.iloc[places].itertuples()
    ]


def _roofline(
    points: list[schema.Point], recording: Recording
) -> tuple[list[list[float]], schema.Roof]:
    """min(peak, bytes / shortest time): the most that size and latency allow.

    The peak is the machine's measured one if the recording has it, else the best batch's.
    """
    if not points:
        return [], {"peak_gbps": None, "measured": False}
    peaks = [one.identity.peak_gbps for one in recording.ranks.values()]
    measured = [peak for peak in peaks if peak]
    best = max(point["busbw_gbps"] for point in points)
    peak = float(max(measured)) if measured else best
    # The slope: the bandwidth that each byte adds while the fixed cost dominates.
    slope = max(point["busbw_gbps"] / point["bytes"] for point in points)
    low = min(point["bytes"] for point in points)
    high = max(point["bytes"] for point in points)
    knee = peak / slope
    xs = sorted({float(low), float(high), *([knee] if low < knee < high else [])})
    line = [[x, float(_number(min(peak, slope * x)))] for x in xs]
    return (line if len(line) > 1 else []), {"peak_gbps": peak, "measured": bool(measured)}


def _series(steps: pd.DataFrame) -> schema.Series:
    """The step time over the run, at most MOST_IN_SERIES points: median, lowest and highest."""
    if steps.empty:
        return {"step": [], "median_ms": [], "low_ms": [], "high_ms": []}
    grouped = steps.groupby("step")["duration_s"].agg(["median", "min", "max"])
    parts = np.array_split(np.arange(len(grouped)), min(MOST_IN_SERIES, len(grouped)))
    values = 1e3 * grouped.to_numpy()
    return {
        "step": [int(grouped.index[part[0]]) for part in parts],
        "median_ms": [_number(float(np.median(values[part, 0]))) for part in parts],
        "low_ms": [_number(float(values[part, 1].min())) for part in parts],
        "high_ms": [_number(float(values[part, 2].max())) for part in parts],
    }


def _events(analysis: Analysis, series: schema.Series) -> list[schema.Event]:
    """Events with their steps: the tuner, stalls, stragglers."""
    if not series["step"]:
        return []
    found = []
    for kind, table in (("tuner", _changes(analysis.tuning)), ("stall", analysis.stalls)):
        rows = table[table["step"] >= 0].head(MOST_EVENTS)
        found += [(kind, int(row.step), str(row.text)) for row in rows.itertuples()]
    for row in analysis.stragglers.itertuples():
        if row.kind:
            text = f"rank {row.rank} is late from here to step {row.to_step}"
            found.append(("straggler", int(row.from_step), text))
    return [
        {
            "kind": kind,
            "step": step,
            "text": text,
            "at_ms": series["median_ms"][
                max(0, int(np.searchsorted(series["step"], step, side="right")) - 1)
            ],
        }
        for kind, step, text in found
    ]


def _settings(analysis: Analysis) -> list[schema.Setting]:
    """Every setting in force, at the start and the end, with its default; changed ones first."""
    from hvdtune.settings.knobs import KNOBS

    first = analysis.recording.ranks[min(analysis.recording.ranks)]
    begun = first.identity.settings
    defaults = {knob.env: knob.default for knob in KNOBS.values()}
    rows: list[schema.Setting] = [
        {
            "name": name,
            "value": value,
            "at_start": begun.get(name, value),
            "default": defaults.get(name),
            "moved": not same_setting(value, begun.get(name, value)),
            "changed": name in defaults and not same_setting(value, defaults[name]),
        }
        for name, value in sorted({**begun, **analysis.settings}.items())
    ]
    return sorted(rows, key=lambda row: not row["changed"])


def same_setting(value: Any, default: Any) -> bool:
    """Whether two values mean the same, however they are written."""
    try:
        return float(value) == float(default)
    except (TypeError, ValueError):
        # A JSON file has lists instead of tuples.
        one, other = ("" if part in (None, [], ()) else part for part in (value, default))
        if isinstance(one, list | tuple) and isinstance(other, list | tuple):
            return list(one) == list(other)
        return str(one) == str(other)


def _rows(table: pd.DataFrame, most: int) -> list[Any]:
    return [
        {str(key): plain(value) for key, value in row.items()}
        for row in table.head(most).to_dict("records")
    ]


def plain(value: Any) -> Any:
    """In types that JSON has: no NaN, no NumPy, no dataclass, no table."""
    import pandas as pd

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(plain(key)): plain(one) for key, one in value.items()}
    if isinstance(value, pd.DataFrame):
        return _rows(value, MOST_LISTED)
    if isinstance(value, pd.Series):
        return plain(value.to_dict())
    if isinstance(value, list | tuple | set | np.ndarray):
        return [plain(one) for one in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | bool | None) else str(value)


def _number(value: float) -> float:
    """Five significant digits: a page contains thousands of these numbers."""
    return float(f"{value:.5g}")
