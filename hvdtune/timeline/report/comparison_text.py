"""A comparison for the terminal: the verdict first, then the tables behind it."""

from __future__ import annotations

import textwrap

from hvdtune.timeline import schema, words
from hvdtune.timeline.report.tables import Table, value_words

WIDTH = 96
MOST_ROWS = 16
#: Parts that take less than this share of a step in both runs are not listed.
WORTH_LISTING = 0.002


def text(numbers: schema.Comparison) -> str:
    """The whole text; the first paragraph is the verdict."""
    a, b = numbers["a"], numbers["b"]
    parts = [
        _wrapped(f"Verdict: {numbers['verdict']}"),
        *(_wrapped(f"Note: {note}") for note in numbers["notes"]),
        f"a: {a['source']}, {words.number(a['steps'], 'step')}\n"
        f"b: {b['source']}, {words.number(b['steps'], 'step')}",
        _parts(numbers).text(),
    ]
    if numbers["mean_causes"]:
        parts.append(_causes(numbers).text(MOST_ROWS))
    if numbers["bandwidth"]:
        parts.append(_bandwidth(numbers).text(MOST_ROWS))
    parts.append(_settings(numbers).text() if numbers["settings"] else "The settings are the same.")
    parts.append(_wrapped(f"Method: {numbers['method']}. It covers how steps differ, not how runs "
                          "do: for small differences, record each several times."))  # fmt: skip
    return "\n\n".join(parts)


def _parts(numbers: schema.Comparison) -> Table:
    step = numbers["step"]
    rows = [
        _row(one["title"], one["a_s"], one["b_s"])
        for one in numbers["parts"]
        if max(one["a_s"], one["b_s"]) >= WORTH_LISTING * step["a_s"]
    ]
    total = _row("median step", step["a_s"], step["b_s"])
    head = ("ms", "a", "b", "saved", "change")
    caption = "Where a typical step goes, ms" if numbers["parts"] else "The step, ms"
    return Table(caption, head, [*rows, total])


def _causes(numbers: schema.Comparison) -> Table:
    mean = numbers["mean_step"]
    rows = [
        _row(one["title"], one["a_s"], one["b_s"])
        for one in numbers["mean_causes"]
        if max(one["a_s"], one["b_s"]) >= WORTH_LISTING * mean["a_s"]
    ]
    sums = (sum(one["a_s"] for one in numbers["mean_causes"]),
            sum(one["b_s"] for one in numbers["mean_causes"]))  # fmt: skip
    head = ("ms", "a", "b", "saved", "change")
    return Table("The mean step by cause, ms", head, [*rows, _row("mean step", *sums)])


def _row(title: str, a: float, b: float) -> tuple[str, ...]:
    return (
        title,
        words.milliseconds(a),
        words.milliseconds(b),
        words.milliseconds(a - b),
        f"{100 * (b / a - 1):+.1f} %" if a > 0 else "-",
    )


def _bandwidth(numbers: schema.Comparison) -> Table:
    rows = [
        (
            one["op"],
            str(one["ranks"] or "-"),
            words.size(one["bytes_from"]),
            words.digits(one["a_gbps"]),
            words.digits(one["b_gbps"]),
            "-" if one["change"] is None else f"{100 * one['change']:+.1f} %",
        )
        for one in numbers["bandwidth"]
    ]
    head = ("operation", "ranks", "from size", "a", "b", "change")
    return Table("Bus bandwidth, GB/s", head, rows)


def _settings(numbers: schema.Comparison) -> Table:
    rows = [(one["name"], value_words(one["a"], one["name"]), value_words(one["b"], one["name"]))
            for one in numbers["settings"]]  # fmt: skip
    return Table("Settings that differ", ("setting", "a", "b"), rows, left=(0, 1, 2))


def _wrapped(line: str) -> str:
    return textwrap.fill(line, WIDTH, break_on_hyphens=False, break_long_words=False)
