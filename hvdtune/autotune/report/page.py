"""A log as a page: one self-contained HTML file that opens without a network."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path

from hvdtune import pages
from hvdtune.autotune.report import figures, runs, words
from hvdtune.autotune.report.runs import Run


def write(source: str | Path, target: str | Path) -> str:
    """Write the page about the log `source`; returns the last run's verdict.

    Raises ValueError if it is not an autotune log, OSError if a file cannot be read or written.
    """
    found = runs.read(source)
    text = page(found, Path(source).name)
    Path(target).write_text(text, encoding="utf-8")
    return verdict(found[-1]) if found else "the log has no samples yet"


def page(found: list[Run], name: str) -> str:
    """The page about a log's runs, the last one first."""
    parts = [f"<h1>Autotune: {escape(name)}</h1>"]
    if not found:
        parts.append(
            pages.paragraph(
                "The log has no samples yet: tuning has just begun, or training ended during the "
                "first sample.",
                "note",
            )
        )
    for number in range(len(found), 0, -1):
        if len(found) > 1:
            parts.append(f"<h2>Run {number} of {len(found)}</h2>")
        parts += _section(found[number - 1], f"run-{number}")
    return pages.page(f"autotune: {name}", parts)


def verdict(run: Run) -> str:
    """How a run ended, in a sentence."""
    if run.final is None:
        return "tuning was not finished, or is still under way: the log has no final row"
    if run.of_horovod:
        return (
            "Horovod's autotuner ended with the settings of its best single sample; it does not "
            "compare them with those it began with"
        )
    return run.final.decision or "tuning ended"


def _section(run: Run, prefix: str) -> list[str]:
    drawn = [
        part
        for number, section in enumerate(figures.all_of(run), start=1)
        for part in _drawn(section, f"{prefix}-figures-{number}")
    ]
    kind = "verdict" if run.final is not None and not run.of_horovod else "note"
    return [
        pages.paragraph(verdict(run), kind),
        _cost(run),
        _comparison(run),
        _settings(run),
        *drawn,
        _samples(run),
    ]


def _drawn(section: figures.Section, prefix: str) -> list[str]:
    return [
        f"<h3>{escape(section.title)}</h3>",
        '<div class="beside">' if section.beside else "<div>",
        *(
            pages.plotly_figure(one, f"{prefix}-{number}", section.title)
            for number, one in enumerate(section.figures, start=1)
        ),
        "</div>",
    ]


def _cost(run: Run) -> str:
    parts = [words.samples(len(run.samples))]
    steps, seconds = runs.total(run, "steps"), runs.total(run, "seconds")
    if steps:
        parts.append(f"{steps:.0f} steps that counted")
    if seconds:
        parts.append(f"{seconds:.1f} s of training")
    return pages.paragraph(f"{', '.join(parts)}.")


def _comparison(run: Run) -> str:
    estimate = figures.mean_of(run)
    if estimate is None:
        return ""
    low, mid, high = (
        100 * -math.expm1(estimate.value + side * estimate.margin(figures.CONFIDENCE))
        for side in (1, 0, -1)
    )
    return pages.paragraph(
        f"In fresh samples the candidate saved {mid:.2f} % of the step time ({low:.2f} to "
        f"{high:.2f} %). That is for these samples alone; the verdict's margin also allows for "
        "several looks at them and for how samples scattered before."
    )


def _settings(run: Run) -> str:
    end = run.final.settings if run.final is not None else run.start
    if not run.start:
        return ""
    rows = [
        (figures.setting_title(name), figures.number(value), figures.number(end.get(name, value)))
        for name, value in run.start.items()
    ]
    marked = [at for at, (name, value) in enumerate(run.start.items()) if end.get(name) != value]
    head = ("setting", "at the start", "at the end")
    return pages.table(head, rows, caption="Settings", marked=marked)


def _samples(run: Run) -> str:
    varied = run.varied()
    head = ("sample", "phase", "steps", figures.cost_title(run), "± ms", *varied, "decision")
    rows = [
        (
            str(one.number),
            one.phase,
            str(one.steps or ""),
            "" if one.cost is None else f"{one.cost:.4g}",
            f"{one.error:.2g}" if one.error else "",
            *(figures.number(one.settings[name]) for name in varied),
            one.decision,
        )
        for one in [*run.samples, *([run.final] if run.final else [])]
    ]
    return pages.table(
        head, rows, caption="Samples", words=(1, len(head) - 1), summary="All samples"
    )
