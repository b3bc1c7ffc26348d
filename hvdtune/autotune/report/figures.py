"""The figures of a report (plotly): samples in order, effects of settings, the comparison."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import Any

from hvdtune.autotune.report import runs
from hvdtune.autotune.report.runs import Run, Sample
from hvdtune.autotune.report.surface import Axis, Surface
from hvdtune.autotune.statistics.inference import Estimate

GRID = 33
MOST_TICKS = 6
WIDE = 3.0  # if costs differ by more, their axis is logarithmic
CONFIDENCE = 0.99
_COLOURS = {
    "warmup": "#b0b0b0",
    "baseline": "#636efa",
    "verify": "#19a979",
    "search": "#ef8a3c",
    "confirm": "#19a979",
}


@dataclass(frozen=True)
class Section:
    """Figures under one title; figures that stand `beside` each other share the width."""

    title: str
    figures: list[Any]
    beside: bool = False


def all_of(run: Run) -> list[Section]:
    """The figures for which a run has enough samples.

    The page sets the titles: a plot's own title is cut off on a narrow page.
    """
    import plotly.graph_objects as go

    found: list[Section] = []
    if run.samples:
        over = "Step time over the steps of tuning" if _has_steps(run) else "Samples in order"
        found.append(Section(over, [in_order(run, go)]))
    surface = _surface(run)
    if surface is not None:
        if len(surface.axes) > 1:
            title = "Response surface: the two settings that matter most, the others as they ended"
            found.append(Section(title, [response(run, surface, go)]))
        title = "What each setting does, the others as they ended"
        found.append(Section(title, slices(run, surface, go), beside=True))
    if mean_of(run) is not None:
        found.append(Section("The comparison that decided", [comparison(run, go)]))
    for figure in (figure for section in found for figure in section.figures):
        figure.update_layout(
            margin={"l": 60, "r": 16, "t": 24, "b": 48},
            legend={"orientation": "h", "y": -0.22, "yanchor": "top", "x": 0},
        )
        figure.update_xaxes(automargin=True)
        figure.update_yaxes(automargin=True)
    return found


def in_order(run: Run, go: Any) -> Any:
    """Cost with error bars, coloured by phase, over the number of steps so far that counted.

    Horovod's logs do not have these steps: for them, x is the sample's number.
    """
    figure = go.Figure()
    places = _places(run)
    is_over_steps = _has_steps(run)
    kinds = dict.fromkeys((one.phase, run.is_reference(one)) for one in run.samples)
    for phase, reference in kinds:
        chosen = [
            one
            for one in run.samples
            if (one.phase, run.is_reference(one)) == (phase, reference) and one.cost is not None
        ]
        errors = [one.error for one in chosen]
        figure.add_scatter(
            x=[places[one.number] for one in chosen],
            y=[one.cost for one in chosen],
            error_y={"array": errors, "visible": True} if any(errors) else None,
            mode="markers",
            name=f"{phase}, " + ("current settings" if reference else "candidate"),
            marker={
                "color": _COLOURS.get(phase, "#888"),
                "symbol": "circle-open" if reference else "diamond",
                "size": 9,
            },
            hovertext=[_hover(one) for one in chosen],
            hoverinfo="text",
        )
    figure.update_layout(height=420)
    figure.update_xaxes(title="steps that counted" if is_over_steps else "sample")
    costs = [one.cost for one in run.samples if one.cost is not None]
    # One bad candidate must not flatten all the others into one line.
    logarithmic = bool(costs) and max(costs) > WIDE * min(costs)
    if logarithmic:
        figure.update_yaxes(type="log", dtick="D1" if max(costs) < 10 * min(costs) else None)
    if is_over_steps and run.adopted and run.final is not None and run.final.cost is not None:
        cost = run.final.cost
        figure.add_hline(y=cost, line={"color": "#808890", "width": 1, "dash": "dot"})
        # On a logarithmic axis, plotly.js places shapes by values, but annotations by logarithms.
        figure.add_annotation(
            text="adopted",
            font={"size": 11},
            showarrow=False,
            x=1,
            xref="x domain",
            xanchor="right",
            y=math.log10(cost) if logarithmic else cost,
            yanchor="bottom",
        )
    figure.update_yaxes(title=cost_title(run))
    return figure


def _has_steps(run: Run) -> bool:
    return any(one.steps for one in run.samples)


def _places(run: Run) -> dict[int, float]:
    """The x position of each sample, by its number: the middle of its steps, if known."""
    found: dict[int, float] = {}
    steps = 0
    for one in run.samples:
        found[one.number] = steps + one.steps / 2 if _has_steps(run) else one.number
        steps += one.steps
    return found


def response(run: Run, surface: Surface, go: Any) -> Any:
    """Contours over the two settings that matter most, the others at their final values."""
    influence = surface.influence()
    first, second = sorted(surface.axes, key=lambda axis: -influence[axis.name])[:2]
    rest = _end(run)
    xs, ys = first.grid(GRID), second.grid(GRID)
    means, _ = surface.at([{**rest, first.name: x, second.name: y} for y in ys for x in xs])
    percent = [100 * math.expm1(mean) for mean in means]
    low, high = min(percent), max(percent)
    # White is the start's time if there is both better and worse; else the whole scale is used.
    middle = {"zmid": 0} if min(-low, high) > 0.2 * (high - low) else {}
    figure = go.Figure()
    figure.add_contour(
        x=[first.place(x) for x in xs],
        y=[second.place(y) for y in ys],
        z=[percent[row * GRID : (row + 1) * GRID] for row in range(GRID)],
        colorscale="RdYlGn",
        reversescale=True,
        **middle,
        colorbar={"title": {"text": "% against the start", "side": "right"}, "thickness": 14},
        hovertemplate="%{z:.1f} %<extra></extra>",
    )
    tried = run.measured
    figure.add_scatter(
        x=[first.place(one.settings[first.name]) for one in tried],
        y=[second.place(one.settings[second.name]) for one in tried],
        mode="markers",
        name="samples",
        marker={"color": "#808890", "size": 6},
        hovertext=[_hover(one) for one in tried],
        hoverinfo="text",
    )
    for words, settings, symbol in (("start", run.start, "circle-open"), ("end", rest, "star")):
        figure.add_scatter(
            x=[first.place(settings[first.name])],
            y=[second.place(settings[second.name])],
            mode="markers",
            name=words,
            marker={"symbol": symbol, "size": 16, "color": "#808890", "line": {"width": 2}},
        )
    figure.update_layout(height=520)
    figure.update_xaxes(title=setting_title(first.name), **_ticks(first))
    figure.update_yaxes(title=setting_title(second.name), **_ticks(second))
    return figure


def slices(run: Run, surface: Surface, go: Any) -> list[Any]:
    """The effect of each setting alone: the model's mean and two deviations around it."""
    rest = _end(run)
    lines, ends = [], [0.0]
    for axis in surface.axes:
        xs = axis.grid(GRID)
        means, deviations = surface.at([{**rest, axis.name: x} for x in xs])
        low, mid, high = (
            [
                100 * math.expm1(mean + side * deviation)
                for mean, deviation in zip(means, deviations, strict=True)
            ]
            for side in (-2, 0, 2)
        )
        lines.append(([axis.place(x) for x in xs], low, mid, high))
        ends += [min(low), max(high)]
    room = 0.05 * (max(ends) - min(ends)) or 1.0
    figures = []
    for axis, (places, low, mid, high) in zip(surface.axes, lines, strict=True):
        figure = go.Figure()
        figure.add_scatter(
            x=places + places[::-1], y=low + high[::-1], fill="toself",
            line={"width": 0}, fillcolor="rgba(99,110,250,.2)", hoverinfo="skip",
            showlegend=False,
        )  # fmt: skip
        figure.add_scatter(
            x=places, y=mid, line={"color": "#636efa"},
            showlegend=False, hovertemplate="%{y:.1f} %<extra></extra>",
        )  # fmt: skip
        figure.update_xaxes(title=setting_title(axis.name), **_ticks(axis))
        # All have the same scale, so that small effects look small.
        figure.update_yaxes(title="% against the start", range=[min(ends) - room, max(ends) + room])
        figure.update_layout(height=320)
        figures.append(figure)
    return figures


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
    )
    figure.add_hline(y=0, line={"color": "#808890", "width": 1})
    figure.update_layout(height=380)
    figure.update_xaxes(
        title=f"pair of samples<br>(band: the mean's margin at {100 * CONFIDENCE:g} %)",
        dtick=1 if len(differences) <= MOST_TICKS else None,
    )
    figure.update_yaxes(title="% step time against current settings")
    return figure


def mean_of(run: Run) -> Estimate | None:
    """The mean log difference of the pairs, weighted by their steps; None if there are none."""
    pairs = run.pairs()
    weights = [candidate.steps + start.steps for candidate, start in pairs]
    if not any(weights):
        return None
    shares = [weight / sum(weights) for weight in weights]
    value = sum(share * _difference(*pair) for share, pair in zip(shares, pairs, strict=True))
    errors = [math.hypot(*(runs.relative_error(one) for one in pair)) for pair in pairs]
    error = math.hypot(*(share * error for share, error in zip(shares, errors, strict=True)))
    return Estimate(value, error)


def cost_title(run: Run) -> str:
    """The axis title for the cost."""
    return "time per allreduced MB, ms" if run.of_horovod else "step time, ms"


def setting_title(name: str) -> str:
    """A setting's column name with its unit."""
    return f"{name}, MB" if name == "tensor_fusion_threshold" else name


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
