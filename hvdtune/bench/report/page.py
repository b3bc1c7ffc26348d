"""The page of `--html`: the report as one self-contained file with plotly figures."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from hvdtune import pages
from hvdtune.bench.report import table
from hvdtune.bench.report.results import Report


def write_html(report: Report, heading: list[str], path: Path) -> None:
    """Write the page; `heading` are the lines printed above the tables, without their `#`."""
    advice = f"Advice: {report.advice}" if report.advice else ""
    body = [
        "<h1>hvdtune bench</h1>",
        f'<p class="under">{"<br>".join(escape(line) for line in heading)}</p>',
        *(pages.paragraph(note, "note") for note in report.notes),
        pages.paragraph(advice, "verdict") if advice else "",
        *(
            pages.plotly_figure(drawn, f"figure-{number}")
            for number, drawn in enumerate(_figures(report), start=1)
        ),
        f"<h2>All numbers</h2><pre>{escape(chr(10).join(_text(report)))}</pre>",
    ]
    path.write_text(pages.page("hvdtune bench", body), encoding="utf-8")


def _text(report: Report) -> list[str]:
    lines = table.memory_lines(report.memory) if report.memory else []
    if report.sweep:
        header = table.sweep_header(report.sweep[0].in_place is not None)
        lines += ["", *header, *(table.sweep_row(row) for row in report.sweep)]
    if report.workloads:
        rows = [table.workload_row(row) for row in report.workloads]
        lines += ["", *table.workload_header(), *rows]
    return lines


def _figures(report: Report) -> list[Any]:
    figures = []
    if len(report.sweep) > 1:
        figures.append(_time_figure(report))
        if any(row.out_of_place.busbw is not None for row in report.sweep):
            figures.append(_busbw_figure(report))
    if report.workloads:
        figures.append(_workload_figure(report))
    return figures


def _series(report: Report, quantity: str) -> dict[str, tuple[list[int], list[float]]]:
    """(sizes, values) for each form of the sweep; `quantity` is a field of Measurement."""
    series: dict[str, tuple[list[int], list[float]]] = {}
    for form in ("out_of_place", "in_place"):
        cases = [(row.size_bytes, getattr(row, form)) for row in report.sweep]
        points = [
            (size, getattr(case, quantity))
            for size, case in cases
            if case is not None and getattr(case, quantity) is not None
        ]
        if points:
            sizes, values = zip(*points, strict=True)
            series[form.replace("_", " ")] = (list(sizes), list(values))
    return series


def _time_figure(report: Report) -> Any:
    import plotly.graph_objects as go

    figure = go.Figure()
    operation = report.sweep[0].operation
    for form, (sizes, times) in _series(report, "time").items():
        for percentile, dash in (("p50", "solid"), ("p99", "dot")):
            values = [getattr(time, percentile) * 1e6 for time in times]
            figure.add_scatter(x=sizes, y=values, name=f"{form}, {percentile}", line={"dash": dash})
    for sizes, bounds in list(_series(report, "bound").values())[:1]:
        values = [bound * 1e6 for bound in bounds]
        line = {"dash": "dash", "color": "#888"}
        figure.add_scatter(x=sizes, y=values, name="bound set by memory", line=line)
    figure.update_layout(title=f"Time of {operation}", height=450)
    figure.update_xaxes(type="log", title="size, bytes")
    figure.update_yaxes(type="log", title="time, µs")
    return figure


def _busbw_figure(report: Report) -> Any:
    import plotly.graph_objects as go

    figure = go.Figure()
    for form, (sizes, values) in _series(report, "busbw").items():
        figure.add_scatter(x=sizes, y=values, name=form, mode="lines+markers")
    bounded = [row.best_known() for row in report.sweep]
    points = [
        (row.size_bytes, case.busbw / case.share)
        for row, case in zip(report.sweep, bounded, strict=True)
        if case.share and case.busbw is not None
    ]
    if points:
        line = {"dash": "dash", "color": "#888"}
        xs, ys = zip(*points, strict=True)
        figure.add_scatter(x=list(xs), y=list(ys), name="bound set by memory", line=line)
    figure.update_layout(title="Bus bandwidth", height=450)
    figure.update_xaxes(type="log", title="size, bytes")
    figure.update_yaxes(title="busbw, GB/s", rangemode="tozero")
    return figure


def _workload_figure(report: Report) -> Any:
    import plotly.graph_objects as go

    names = [row.title for row in report.workloads]
    figure = go.Figure()
    for percentile in ("p50", "p99"):
        values = [getattr(row.step.time, percentile) * 1e3 for row in report.workloads]
        figure.add_bar(x=names, y=values, name=percentile)
    bounds = [row.step.bound for row in report.workloads]
    if any(bound is not None for bound in bounds):
        values = [None if bound is None else bound * 1e3 for bound in bounds]
        marker = {"symbol": "line-ew-open", "size": 30, "color": "#888"}
        figure.add_scatter(
            x=names, y=values, name="bound set by memory", mode="markers", marker=marker
        )
    figure.update_layout(title="One step of gradients", height=450, barmode="group")
    figure.update_yaxes(type="log", title="time, ms")
    return figure
