"""A log as a page: one HTML file with everything in it, so that it opens without a network."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path

from hvdtune.autotune import figures, runs
from hvdtune.autotune.runs import Run

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em }
table { border-collapse: collapse; margin: 1em 0 } caption { text-align: left; font-weight: 600 }
td, th { border-bottom: 1px solid #ddd; padding: .2em .8em; text-align: right }
th { font-weight: 600 } td:first-child, th:first-child { text-align: left }
td.words { text-align: left } .changed { background: #e8f5e9 }
.verdict { border-left: 4px solid #19a979; padding: .5em 1em; background: #eefaf5 }
.note { border-left: 4px solid #e6a700; padding: .5em 1em; background: #fff8e5 }
"""


def write(source: str | Path, target: str | Path) -> str:
    """Write the page about the log `source`; returns the last run's verdict.

    Raises ValueError if it is no autotune log, OSError if a file cannot be read or written.
    """
    found = runs.read(source)
    text = page(found, Path(source).name)
    Path(target).write_text(text, encoding="utf-8")
    return verdict(found[-1]) if found else "the log has no samples yet"


def page(found: list[Run], name: str) -> str:
    """The page about a log's runs, the last one first."""
    from plotly.offline import get_plotlyjs

    parts = [
        "<!DOCTYPE html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>autotune: {escape(name)}</title>',
        f"<style>{_STYLE}</style><script>{get_plotlyjs()}</script></head><body>",
        f"<h1>Autotune: {escape(name)}</h1>",
    ]
    if not found:
        parts.append(
            '<p class="note">The log has no samples yet: tuning has just begun, or training ended '
            "during the first sample.</p>"
        )
    for number in range(len(found), 0, -1):
        if len(found) > 1:
            parts.append(f"<h2>Run {number} of {len(found)}</h2>")
        parts += _section(found[number - 1])
    return "\n".join([*parts, "</body></html>"]) + "\n"


def verdict(run: Run) -> str:
    """How a run ended, in a sentence."""
    if run.final is None:
        return "tuning was not finished, or is still under way: the log has no last row"
    if run.of_horovod:
        return (
            "Horovod's autotuner ended with the settings of its best single sample; it does not "
            "compare them with those it began with"
        )
    return run.final.decision or "tuning ended"


def _section(run: Run) -> list[str]:
    drawn = [one.to_html(full_html=False, include_plotlyjs=False) for one in figures.all_of(run)]
    kind = "verdict" if run.final is not None and not run.of_horovod else "note"
    return [
        f'<p class="{kind}">{escape(verdict(run))}</p>',
        _cost(run),
        _comparison(run),
        _settings(run),
        *drawn,
        _samples(run),
    ]


def _cost(run: Run) -> str:
    words = [f"{len(run.samples)} samples"]
    steps, seconds = runs.total(run, "steps"), runs.total(run, "seconds")
    if steps:
        words.append(f"{steps:.0f} steps that counted")
    if seconds:
        words.append(f"{seconds:.1f} s of training")
    return f"<p>{', '.join(words)}.</p>"


def _comparison(run: Run) -> str:
    estimate = figures.mean_of(run)
    if estimate is None:
        return ""
    low, mid, high = (
        100 * -math.expm1(estimate.value + side * estimate.margin(figures.CONFIDENCE))
        for side in (1, 0, -1)
    )
    return (
        f"<p>In {len(run.pairs())} pairs of fresh samples the candidate saved {mid:.2f} % of the "
        f"step time ({low:.2f} to {high:.2f} %).</p>"
    )


def _settings(run: Run) -> str:
    end = run.final.settings if run.final is not None else run.start
    rows = [
        f"<tr{' class=changed' if end.get(name) != value else ''}><td>{escape(name)}</td>"
        f"<td>{figures.number(value)}</td><td>{figures.number(end.get(name, value))}</td></tr>"
        for name, value in run.start.items()
    ]
    if not rows:
        return ""
    head = "<tr><th>setting</th><th>at the start</th><th>at the end</th></tr>"
    return f"<table><caption>Settings</caption>{head}{''.join(rows)}</table>"


def _samples(run: Run) -> str:
    varied = run.varied()
    cost = figures.cost_title(run)
    names = ("sample", "phase", "steps", cost, "± ms", *varied, "decision")
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    rows = []
    for one in [*run.samples, *([run.final] if run.final else [])]:
        cells = [
            str(one.number),
            one.phase,
            str(one.steps or ""),
            "" if one.cost is None else f"{one.cost:.4g}",
            f"{one.error:.2g}" if one.error else "",
            *(figures.number(one.settings[name]) for name in varied),
        ]
        row = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        rows.append(f'<tr>{row}<td class="words">{escape(one.decision)}</td></tr>')
    table = f"<table><tr>{head}</tr>{''.join(rows)}</table>"
    return f"<details><summary>All samples</summary>{table}</details>"
