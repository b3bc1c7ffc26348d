"""The pictures of a report as plotly specifications, made from the numbers of document.py.

A specification is a dictionary for plotly.js; colours are names of hvdtune/pages/page.css.
"""

from __future__ import annotations

import math
from typing import Any

from hvdtune.timeline import schema, words

Spec = dict[str, Any]

#: Parts smaller than this share of the longest bar are too thin to be seen.
VISIBLE = 0.002
#: Steps longer than this many typical steps do not extend a picture's scale.
FAR = 4
LANES: tuple[tuple[schema.Lane, str], ...] = (
    ("compute", "compute"),
    ("blocked", "blocked"),
    ("communication", "exposed"),
)
_LANE_HEIGHT = 0.26
_SERIES = ("series-1", "series-2", "series-3", "series-4", "series-5", "series-6")
REASON_COLOURS = {
    "full": "series-3",
    "cycle": "series-5",
    "blocked": "series-2",
    "step done": "series-1",
    "end": "series-4",
}


def waterfall(numbers: schema.Report) -> tuple[Spec, int]:
    """One stacked bar for the typical step and one per rank; x in ms."""
    found = numbers["waterfall"]
    typical, mean = found["typical"], found["mean"]
    assert typical  # without steps there is no such picture
    assert mean
    rows = [("typical step", typical)]
    if mean["step_s"] < FAR * typical["step_s"]:
        rows.append(("mean of all", mean))
    rows += [(f"rank {one['rank']}", one) for one in found["ranks"]]
    longest = max((row["step_s"] for _, row in rows), default=0.0)
    data = []
    for part in found["parts"]:
        values = [1e3 * (row["parts_s"].get(part["name"]) or 0.0) for _, row in rows]
        if max(values) < VISIBLE * 1e3 * longest:
            continue
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": part["title"],
                "y": [name for name, _ in rows],
                "x": [_rounded(value) for value in values],
                "text": [
                    f"{words.digits(value)} ms" if value > 0.09 * 1e3 * longest else ""
                    for value in values
                ],
                "textposition": "inside",
                "insidetextanchor": "middle",
                "textangle": 0,
                "insidetextfont": {"color": f"@on-{part['colour']}"},
                "marker": {"color": f"@{part['colour']}"},
                "hovertemplate": f"%{{y}}: {part['title']} %{{x:.3~g}} ms<extra></extra>",
            }
        )
    layout = {
        "barmode": "stack",
        "bargap": 0.28,
        "showlegend": False,
        "uniformtext": {"mode": "hide", "minsize": 11},
        "xaxis": {"title": {"text": "ms of a step"}, "rangemode": "tozero"},
        "yaxis": {"autorange": "reversed", "type": "category", "showgrid": False},
        "hovermode": "closest",
    }
    return {"data": data, "layout": layout}, 76 + (34 if len(rows) < 9 else 27) * len(rows)


def lateness(numbers: schema.Report) -> tuple[Spec, int]:
    """Rank × step: how late, ms. If there are many steps or ranks, several share a cell."""
    late = numbers["lateness"]
    rows = [_range("rank", group) for group in late["ranks"]]
    columns = [_range("step", pair) for pair in late["steps"]]
    data = [
        {
            "type": "heatmap",
            "z": late["late_ms"],
            "y": rows,
            "x": [first for first, _ in late["steps"]],
            "customdata": [columns for _ in rows],
            "xgap": 1 if len(columns) <= 60 else 0,
            "ygap": 1,
            "zmin": 0,
            "zmax": max(late["most_ms"], 100 * numbers["steps"].get("median_s", 0.0), 0.01),
            "colorscale": [[at / 4, f"@heat-{at}"] for at in range(5)],
            "colorbar": {
                "orientation": "h",
                "thickness": 10,
                "len": 0.6,
                "x": 0,
                "xanchor": "left",
                "y": 1.02,
                "yanchor": "bottom",
                "outlinewidth": 0,
                "ticksuffix": " ms",
                "ypad": 4,
            },
            "hovertemplate": "%{y}, %{customdata}: %{z:.3~g} ms late<extra></extra>",
        }
    ]
    layout = {
        "xaxis": {"title": {"text": "step"}, "showgrid": False},
        "yaxis": {"autorange": "reversed", "type": "category", "showgrid": False},
    }
    each = max(7.0, min(34.0, 440 / max(1, len(rows))))
    return {"data": data, "layout": layout}, int(112 + each * len(rows))


def strip(one: schema.Strip) -> tuple[Spec, int]:
    """One step: lanes of every rank on a common axis, ms from the step's start."""
    data = []
    ticks = []
    unit, scale = _unit(one["length_ms"])
    for place, rank in enumerate(one["ranks"]):
        ticks.append((place, f"rank {rank['rank']}"))
        for lane, (name, colour) in enumerate(LANES):
            spans = rank[name]
            if not spans:
                continue
            edges = [(float(span[0]), float(span[1])) for span in spans]
            y = place + (lane - 1) * _LANE_HEIGHT
            data.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "base": [_rounded(begin * scale) for begin, _ in edges],
                    "x": [_rounded((end - begin) * scale) for begin, end in edges],
                    "y": [y] * len(spans),
                    "width": [_LANE_HEIGHT * 0.92] * len(spans),
                    "marker": {"color": f"@{colour}", "cornerradius": 0},
                    "text": [span[2] if len(span) > 2 else "" for span in spans],
                    "textposition": "none",
                    "hovertemplate": f"rank {rank['rank']}: {name} from %{{base:.3~f}} {unit} for "
                    f"%{{x:.3~g}} {unit} %{{text}}<extra></extra>",
                }
            )
    layout = {
        "barmode": "overlay",
        "showlegend": False,
        "xaxis": {
            "title": {"text": f"{unit} since the step began"},
            "range": [0, one["length_ms"] * scale],
        },
        "yaxis": {
            "tickvals": [at for at, _ in ticks],
            "ticktext": [text for _, text in ticks],
            "range": [len(ticks) - 0.5, -0.5],
            "showgrid": False,
            "zeroline": False,
        },
        "hovermode": "closest",
    }
    return {"data": data, "layout": layout}, 84 + 46 * len(ticks)


def fusion(numbers: schema.Report) -> tuple[Spec, int]:
    """Batches by the number of their tensors, stacked by why they were closed."""
    found = numbers["fusion"]
    data = [
        {
            "type": "bar",
            "name": reason,
            "x": found["bins"],
            "y": counts,
            "marker": {"color": f"@{reason_colour(reason)}"},
            "hovertemplate": f"%{{y}} batches of %{{x}} tensors, closed: {reason}<extra></extra>",
        }
        for reason, counts in found["histogram"].items()
    ]
    layout = {
        "barmode": "stack",
        "showlegend": False,
        "bargap": 0.15,
        "xaxis": {"title": {"text": "tensors in a batch"}, "type": "category"},
        "yaxis": {"title": {"text": "batches"}, "rangemode": "tozero"},
    }
    return {"data": data, "layout": layout}, 320


def reason_colour(reason: str) -> str:
    """The colour of one reason for closing a batch."""
    return REASON_COLOURS.get(reason, "muted")


def sizes(numbers: schema.Report) -> tuple[Spec, int]:
    """Bus bandwidth against size: single batches, medians by size, and the roofline."""
    data: list[Spec] = []
    points = numbers["points"]
    operations = list(dict.fromkeys(point["op"] for point in [*points, *numbers["sizes"]]))
    for at, op in enumerate(operations):
        colour = f"@{_SERIES[at % len(_SERIES)]}"
        own = [one for one in points if one["op"] == op]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": op,
                "x": [one["bytes"] for one in own],
                "y": [one["busbw_gbps"] for one in own],
                "marker": {"color": colour, "size": 5, "opacity": 0.35},
                "hovertemplate": f"{op}, %{{x:,}} bytes: %{{y:.3~g}} GB/s<extra></extra>",
            }
        )
        rows = [one for one in numbers["sizes"] if one["op"] == op and one["busbw_gbps"]]
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": f"{op}, median",
                "x": [one["bytes"] for one in rows],
                "y": [one["busbw_gbps"] for one in rows],
                "line": {"color": colour, "width": 2},
                "marker": {"color": colour, "size": 10, "line": {"color": "@card", "width": 1.5}},
                "hovertemplate": f"{op}, median at %{{x:,}} bytes: %{{y:.3~g}} GB/s<extra></extra>",
            }
        )
    if numbers["roofline"]:
        data.append(_roofline(numbers["roofline"]))
    layout = {
        "showlegend": False,
        "xaxis": {"title": {"text": "size of a batch"}, "type": "log", **_size_ticks(points)},
        "yaxis": {"title": {"text": "bus bandwidth, GB/s"}, **_bandwidth_axis(points)},
        "hovermode": "closest",
    }
    return {"data": data, "layout": layout}, 380


def _size_ticks(points: list[schema.Point]) -> Spec:
    """Powers of two: at most seven."""
    low = min((one["bytes"] for one in points), default=1)
    high = max((one["bytes"] for one in points), default=1)
    first, last = math.floor(math.log2(low)), math.ceil(math.log2(high))
    stride = max(1, math.ceil((last - first) / 6))
    values = [2**power for power in range(first, last + stride, stride)]
    return {"tickvals": values, "ticktext": [words.size(value) for value in values]}


def _bandwidth_axis(points: list[schema.Point]) -> Spec:
    """Logarithmic, unless all values are within a factor of ten."""
    values = [one["busbw_gbps"] for one in points]
    if not values or max(values) < 10 * min(values):
        return {"type": "linear", "rangemode": "tozero"}
    return {"type": "log", "dtick": 1}


def size_legend(numbers: schema.Report) -> list[tuple[str, str]]:
    """What the colours of `sizes` stand for."""
    points = [*numbers["points"], *numbers["sizes"]]
    operations = list(dict.fromkeys(point["op"] for point in points))
    chips = [(op, _SERIES[at % len(_SERIES)]) for at, op in enumerate(operations)]
    return [*chips, ("roofline", "muted")] if numbers["roofline"] else chips


def _roofline(roofline: list[list[float]]) -> Spec:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "roofline",
        "x": [x for x, _ in roofline],
        "y": [y for _, y in roofline],
        "line": {"color": "@muted", "dash": "dash", "width": 2},
        "hovertemplate": "roofline at %{x:,} bytes: %{y:.3~g} GB/s<extra></extra>",
    }


def steps(numbers: schema.Report) -> tuple[Spec, int]:
    """The step time over the run, and what happened when: tuner, stalls, stragglers."""
    series = numbers["series"]
    highest = max(series["high_ms"])
    unit, scale = _unit(highest)
    data: list[Spec] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [*series["step"], *reversed(series["step"])],
            "y": [_rounded(y * scale) for y in (*series["high_ms"], *reversed(series["low_ms"]))],
            "fill": "toself",
            "fillcolor": "@overlapped",
            "opacity": 0.45,
            "line": {"width": 0},
            "hoverinfo": "skip",
        },
        {
            "type": "scatter",
            "mode": "lines",
            "x": series["step"],
            "y": [_rounded(y * scale) for y in series["median_ms"]],
            "line": {"color": "@series-1", "width": 2},
            "hovertemplate": f"step %{{x}}: %{{y:.4~g}} {unit}<extra></extra>",
        },
    ]
    for kind, colour, symbol in EVENTS:
        events = [one for one in numbers["events"] if one["kind"] == kind]
        if events:
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "x": [one["step"] for one in events],
                    "y": [_rounded(one["at_ms"] * scale) for one in events],
                    "marker": {
                        "color": f"@{colour}",
                        "symbol": symbol,
                        "size": 11,
                        "line": {"color": "@card", "width": 1},
                    },
                    "text": [words.shortened(one["text"], 90) for one in events],
                    "hovertemplate": f"{kind} at step %{{x}}: %{{text}}<extra></extra>",
                }
            )
    layout = {
        "showlegend": False,
        "xaxis": {
            "title": {"text": "step"},
            "range": [series["step"][0], series["step"][-1]],
            "zeroline": False,
        },
        "yaxis": {
            "title": {"text": f"step time, {unit}"},
            **({"type": "log", "dtick": 1} if highest > 10 * min(series["low_ms"]) > 0 else ZERO),
        },
        "hovermode": "closest",
    }
    return {"data": data, "layout": layout}, 320


EVENTS = (
    ("tuner", "series-4", "triangle-down"),
    ("stall", "skew", "x"),
    ("straggler", "queue", "diamond"),
)


def event_legend(numbers: schema.Report) -> list[tuple[str, str]]:
    """What the colours of `steps` stand for."""
    kinds = {one["kind"] for one in numbers["events"]}
    present = [(kind, colour) for kind, colour, _ in EVENTS if kind in kinds]
    return [("median of the ranks", "series-1"), ("fastest to slowest", "overlapped"), *present]


ZERO = {"rangemode": "tozero"}


def _unit(longest_ms: float) -> tuple[str, float]:
    """The unit for an axis with times up to this, and the factor that converts ms to it."""
    return ("s", 1e-3) if longest_ms >= 5000 else ("ms", 1.0)


def _range(word: str, numbers: list[int]) -> str:
    first, last = numbers[0], numbers[-1]
    return f"{word} {first}" if first == last else f"{word}s {first}-{last}"


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
