"""The figures of a report (plotly): samples in order, what settings do, what decided."""

from __future__ import annotations

import math
from html import escape
from typing import Any

from hvdtune.autotune import runs
from hvdtune.autotune.inference import Estimate, paired
from hvdtune.autotune.runs import Run, Sample
from hvdtune.autotune.surface import Axis, Surface

GRID = 33
MOST_TICKS = 9
CONFIDENCE = 0.99
_COLOURS = {
    "warmup": "#b0b0b0",
    "baseline": "#636efa",
    "verify": "#19a979",
    "search": "#ef8a3c",
    "confirm": "#19a979",
}


def all_of(run: Run) -> list[Any]:
    """The figures that a run has enough samples for."""
    import plotly.graph_objects as go

    figures: list[Any] = []
    if run.samples:
        figures.append(in_order(run, go))
    surface = _surface(run)
    if surface is not None:
        if len(surface.axes) > 1:
            figures.append(response(run, surface, go))
        figures.append(slices(run, surface, go))
    if len(run.pairs()) > 1:
        figures.append(comparison(run, go))
    return figures


def in_order(run: Run, go: Any) -> Any:
    """Cost by sample number, with error bars, coloured by phase."""
    figure = go.Figure()
    kinds = dict.fromkeys((one.phase, run.is_candidate(one)) for one in run.samples)
    for phase, candidate in kinds:
        chosen = [
            one
            for one in run.samples
            if (one.phase, run.is_candidate(one)) == (phase, candidate) and one.cost is not None
        ]
        errors = [one.error for one in chosen]
        figure.add_scatter(
            x=[one.number for one in chosen],
            y=[one.cost for one in chosen],
            error_y={"array": errors, "visible": True} if any(errors) else None,
            mode="markers",
            name=f"{phase}, " + ("candidate" if candidate else "settings of the start"),
            marker={
                "color": _COLOURS.get(phase, "#888"),
                "symbol": "diamond" if candidate else "circle-open",
                "size": 9,
            },
            hovertext=[_hover(one) for one in chosen],
            hoverinfo="text",
        )
    figure.update_layout(title="Samples in order", height=420)
    figure.update_xaxes(title="sample")
    figure.update_yaxes(title=cost_title(run))
    return figure


def response(run: Run, surface: Surface, go: Any) -> Any:
    """Contours over the two settings that matter most, the others as they ended."""
    influence = surface.influence()
    first, second = sorted(surface.axes, key=lambda axis: -influence[axis.name])[:2]
    rest = _end(run)
    xs, ys = first.grid(GRID), second.grid(GRID)
    means, _ = surface.at([{**rest, first.name: x, second.name: y} for y in ys for x in xs])
    percent = [100 * math.expm1(mean) for mean in means]
    figure = go.Figure()
    figure.add_contour(
        x=[first.place(x) for x in xs],
        y=[second.place(y) for y in ys],
        z=[percent[row * GRID : (row + 1) * GRID] for row in range(GRID)],
        colorscale="RdYlGn",
        reversescale=True,
        zmid=0,
        colorbar={"title": "% against<br>the start"},
        hovertemplate="%{z:.1f} %<extra></extra>",
    )
    tried = run.measured
    figure.add_scatter(
        x=[first.place(one.settings[first.name]) for one in tried],
        y=[second.place(one.settings[second.name]) for one in tried],
        mode="markers",
        name="samples",
        marker={"color": "#222", "size": 6},
        hovertext=[_hover(one) for one in tried],
        hoverinfo="text",
    )
    for words, settings, symbol in (("start", run.start, "circle-open"), ("end", rest, "star")):
        figure.add_scatter(
            x=[first.place(settings[first.name])],
            y=[second.place(settings[second.name])],
            mode="markers",
            name=words,
            marker={"symbol": symbol, "size": 16, "color": "#111", "line": {"width": 2}},
        )
    figure.update_layout(
        title="Response surface: the two settings that matter most, the others as they ended",
        height=520,
        legend={"orientation": "h"},
    )
    figure.update_xaxes(title=first.name, **_ticks(first))
    figure.update_yaxes(title=second.name, **_ticks(second))
    return figure


def slices(run: Run, surface: Surface, go: Any) -> Any:
    """What each setting does alone: the model's mean and two deviations around it."""
    from plotly.subplots import make_subplots

    names = [axis.name for axis in surface.axes]
    figure = make_subplots(rows=1, cols=len(names), subplot_titles=names, shared_yaxes=True)
    rest = _end(run)
    for column, axis in enumerate(surface.axes, start=1):
        xs = axis.grid(GRID)
        means, deviations = surface.at([{**rest, axis.name: x} for x in xs])
        places = [axis.place(x) for x in xs]
        bounds = [
            [
                100 * math.expm1(mean + side * deviation)
                for mean, deviation in zip(means, deviations, strict=True)
            ]
            for side in (-2, 2)
        ]
        figure.add_scatter(
            x=places + places[::-1], y=bounds[0] + bounds[1][::-1], fill="toself",
            line={"width": 0}, fillcolor="rgba(99,110,250,.2)", hoverinfo="skip",
            showlegend=False, row=1, col=column,
        )  # fmt: skip
        figure.add_scatter(
            x=places, y=[100 * math.expm1(mean) for mean in means], line={"color": "#636efa"},
            showlegend=False, hovertemplate="%{y:.1f} %<extra></extra>", row=1, col=column,
        )  # fmt: skip
        figure.update_xaxes(**_ticks(axis), row=1, col=column)
    figure.update_layout(title="What each setting does, the others as they ended", height=380)
    figure.update_yaxes(title="% against the start", row=1, col=1)
    return figure


def comparison(run: Run, go: Any) -> Any:
    """The pairs that decided, their mean and its margin."""
    differences = [_difference(candidate, start) for candidate, start in run.pairs()]
    estimate = mean_of(run)
    assert estimate is not None
    margin = estimate.margin(CONFIDENCE)
    figure = go.Figure()
    figure.add_bar(
        x=list(range(1, len(differences) + 1)),
        y=[100 * math.expm1(difference) for difference in differences],
        name="candidate against the start",
        marker={"color": ["#19a979" if one < 0 else "#d65f5f" for one in differences]},
    )
    low, high = (100 * math.expm1(estimate.value + side * margin) for side in (-1, 1))
    figure.add_hrect(y0=low, y1=high, fillcolor="#636efa", opacity=0.15, line_width=0)
    figure.add_hline(
        y=100 * math.expm1(estimate.value),
        line={"color": "#636efa"},
        annotation_text=f"mean, and its margin at {100 * CONFIDENCE:g} % (one-sided)",
    )
    figure.add_hline(y=0, line={"color": "#222", "width": 1})
    figure.update_layout(title="The comparison that decided, pair by pair", height=380)
    figure.update_xaxes(title="pair", dtick=1)
    figure.update_yaxes(title="% step time of the candidate, below 0: faster")
    return figure


def mean_of(run: Run) -> Estimate | None:
    """The mean log difference of the pairs, if there are two or more."""
    differences = [_difference(candidate, start) for candidate, start in run.pairs()]
    if len(differences) < 2:
        return None
    return paired(differences, Estimate(0.0, 0.0, 0.0))


def cost_title(run: Run) -> str:
    """What is compared, for an axis."""
    return "time per allreduced MB, ms" if run.of_horovod else "step time, ms"


def number(value: float) -> str:
    """A setting's value for people."""
    return f"{value:.4g}"


def _surface(run: Run) -> Surface | None:
    names = run.varied()
    axes = [Axis(name, tuple(sorted({one.settings[name] for one in run.measured})))
            for name in names]  # fmt: skip
    axes = [axis for axis in axes if len(axis.values) > 1]
    found = runs.gains(run) if run.measured else []
    try:
        return Surface(
            axes,
            [one.settings for one, _, _ in found],
            [y for _, y, _ in found],
            [error for _, _, error in found],
        )
    except ValueError:
        return None


def _end(run: Run) -> dict[str, float]:
    return run.final.settings if run.final is not None else run.start


def _difference(candidate: Sample, start: Sample) -> float:
    assert candidate.cost is not None
    assert start.cost is not None
    return math.log(candidate.cost / start.cost)


def _ticks(axis: Axis) -> dict[str, Any]:
    values = list(axis.values) if len(axis.values) <= MOST_TICKS else axis.grid(MOST_TICKS)
    return {"tickvals": [axis.place(one) for one in values], "ticktext": [*map(number, values)]}


def _hover(sample: Sample) -> str:
    lines = [f"sample {sample.number}, {sample.phase}"]
    if sample.cost is not None:
        lines.append(f"{sample.cost:.4g} ± {sample.error:.2g} ms")
    lines += [f"{name} {number(value)}" for name, value in sample.settings.items()]
    lines += [sample.decision] if sample.decision else []
    return "<br>".join(map(escape, lines))
