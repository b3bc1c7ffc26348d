"""The comparison as one self-contained SVG file: a row of charts for the arrays (time over size)
and one for the gradient sets, a column for each number of ranks. Times are on a logarithmic scale.
Colours follow the reader's light or dark theme.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from peers.report import duration
from peers.results import OWN, Comparison

_COLOURS = ("#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#e69f00", "#17a2b8", "#8c564b", "#7f7f7f")
_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #222 } .title { font-weight: 600 }
.grid { stroke: #ddd } .frame { stroke: #999; fill: none } .bound { stroke: #555 }
.back { fill: #fff }
@media (prefers-color-scheme: dark) {
text { fill: #ddd } .grid { stroke: #333 } .frame { stroke: #777 } .bound { stroke: #aaa }
.back { fill: #14171c } }
"""

_WIDTH, _HEIGHT = 290, 230  # of a chart's frame
_LEFT, _TOP, _GAP_X, _GAP_Y, _LEGEND = 62, 62, 62, 62, 28


@dataclass(frozen=True)
class Series:
    """One line of a chart: y in seconds at each x, None where nothing was measured."""

    name: str
    style: str
    values: tuple[float | None, ...]
    dashed: bool = False


@dataclass(frozen=True)
class Chart:
    """`joined`: the x are sizes, and neighbours are joined by lines."""

    title: str
    labels: tuple[str, ...]
    series: tuple[Series, ...]
    joined: bool


def svg(comparison: Comparison) -> str:
    """The picture; charts without any work are left out."""
    columns = sorted({case.ranks for case in comparison.cases})
    rows = [
        [_chart(comparison, ranks, is_set) for ranks in columns]
        for is_set in (False, True)
        if any(about["is_set"] == is_set for about in comparison.works.values())
    ]
    heading = f"{_title(comparison)}: time of a call, median; lower is better"
    # The heading and the legend need space even if there are few charts.
    legend_width, legend = _legend(comparison)
    charts_width = len(columns) * (_WIDTH + _GAP_X) - _GAP_X
    width = _LEFT + max(charts_width, round(7.2 * len(heading)), legend_width) + 20
    height = _TOP + len(rows) * (_HEIGHT + _GAP_Y) + _LEGEND
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">',
        f"<title>{escape(_title(comparison))}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="back" width="{width}" height="{height}"/>',
        f'<text class="title" x="{_LEFT}" y="22">{escape(heading)}</text>',
    ]
    for row, charts in enumerate(rows):
        limits = _limits([value for chart in charts for value in _values(chart)])
        for column, chart in enumerate(charts):
            left = _LEFT + column * (_WIDTH + _GAP_X)
            parts += _draw(chart, left, _TOP + row * (_HEIGHT + _GAP_Y), limits)
    parts += [f'<g transform="translate({_LEFT} {height - _LEGEND})">', *legend, "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _title(comparison: Comparison) -> str:
    machine = comparison.machine
    return f"Allreduce, float32 sum, on {machine['cpus']} CPUs ({machine['cpu']})"


def _chart(comparison: Comparison, ranks: int, is_set: bool) -> Chart:
    works = [key for key, about in comparison.works.items() if about["is_set"] == is_set]
    if not is_set:
        works.sort(key=lambda key: comparison.works[key]["size_bytes"])
    series = []
    for peer, style in reversed(_styles(comparison).items()):  # the first, hvdtune, on top
        cases = [comparison.case(peer, ranks, work) for work in works]
        values = tuple(None if case is None else case.median for case in cases)
        series.append(Series(comparison.peers[peer]["title"], style, values))
    bounds = tuple(comparison.bound(ranks, work) for work in works)
    series.append(Series("bound", "", bounds, dashed=True))
    titles = tuple(comparison.works[work]["title"] for work in works)
    what = "one step's gradients" if is_set else "one array"
    return Chart(f"{ranks} ranks, {what}", titles, tuple(series), not is_set)


def _styles(comparison: Comparison) -> dict[str, str]:
    return {peer: _COLOURS[at % len(_COLOURS)] for at, peer in enumerate(comparison.peers)}


def _values(chart: Chart) -> list[float]:
    return [value for one in chart.series for value in one.values if value]


def _limits(values: Sequence[float]) -> tuple[int, int]:
    """Whole powers of ten around all values."""
    if not values:
        return -6, 0
    low = math.floor(math.log10(min(values)))
    return low, max(low + 1, math.ceil(math.log10(max(values))))


def _draw(chart: Chart, left: float, top: float, limits: tuple[int, int]) -> list[str]:
    low, high = limits
    bottom = top + _HEIGHT

    def y_of(value: float) -> float:
        return bottom - (math.log10(value) - low) / (high - low) * _HEIGHT

    step = _WIDTH / len(chart.labels)
    xs = [left + step * (at + 0.5) for at in range(len(chart.labels))]
    parts = [f'<text class="title" x="{left}" y="{top - 10}">{escape(chart.title)}</text>']
    for power in range(low, high + 1):
        y = y_of(10.0**power)
        parts.append(f'<path class="grid" d="M{left} {y:.1f}h{_WIDTH}"/>')
        label = _power(power)
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for x, label in zip(xs, chart.labels, strict=True):
        parts.append(
            f'<text x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">{escape(label)}</text>'
        )
    parts.append(f'<rect class="frame" x="{left}" y="{top}" width="{_WIDTH}" height="{_HEIGHT}"/>')
    beside = step / (len(chart.series) + 2)  # dots of a set stand beside each other
    for at, one in enumerate(chart.series):
        shift = 0.0 if chart.joined or one.dashed else (at - len(chart.series) / 2 + 1) * beside
        points = [(x + shift, y_of(v)) for x, v in zip(xs, one.values, strict=True) if v]
        parts += _line(one, points, chart, step)
        if not one.dashed:
            values = [value for value in one.values if value]
            parts += _dots(one, points, values)
    return parts


def _line(
    one: Series, points: Sequence[tuple[float, float]], chart: Chart, step: float
) -> list[str]:
    if one.dashed and not chart.joined:  # a bar across the set's column
        return [
            f'<path class="bound" stroke-dasharray="4 3" d="M{x - step / 2.4:.1f} {y:.1f}'
            f'h{step / 1.2:.1f}"/>'
            for x, y in points
        ]
    if not chart.joined or len(points) < 2:
        return []
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    if one.dashed:
        return [f'<path class="bound" fill="none" stroke-dasharray="4 3" d="{path}"/>']
    width = 2.6 if one.name == OWN else 1.4
    return [f'<path fill="none" stroke="{one.style}" stroke-width="{width}" d="{path}"/>']


def _dots(one: Series, points: Sequence[tuple[float, float]], values: Sequence[float]) -> list[str]:
    radius = 4.5 if one.name == OWN else 3.2
    return [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{one.style}">'
        f"<title>{escape(one.name)}: {duration(value)}</title></circle>"
        for (x, y), value in zip(points, values, strict=True)
    ]


def _power(power: int) -> str:
    """10^power seconds as `1 us` or `100 ms`."""
    for unit, exponent in (("s", 0), ("ms", -3), ("us", -6)):
        if power >= exponent:
            return f"{10 ** (power - exponent)} {unit}"
    return f"{10.0**power * 1e6:g} us"


def _legend(comparison: Comparison) -> tuple[int, list[str]]:
    """(its width, its parts)."""
    parts = []
    x = 0.0
    for peer, style in _styles(comparison).items():
        title = comparison.peers[peer]["title"]
        parts.append(f'<circle cx="{x:.0f}" cy="4" r="4" fill="{style}"/>')
        parts.append(f'<text x="{x + 9:.0f}" y="8">{escape(title)}</text>')
        x += 30 + 7.2 * len(title)
    parts.append(f'<path class="bound" stroke-dasharray="4 3" d="M{x:.0f} 4h22"/>')
    parts.append(f'<text x="{x + 28:.0f}" y="8">what memory allows</text>')
    return round(x) + 160, parts
