"""A report for the terminal: verdict and next step first, then the tables that matter."""

from __future__ import annotations

import textwrap

from hvdtune.timeline import schema, words
from hvdtune.timeline.report import cpus, sentences, tables

WIDTH = 96
MOST_ROWS = 12


def text(numbers: schema.Report) -> str:
    """The whole text; the first paragraph is the verdict."""
    parts = [_verdict(numbers["verdict"])]
    if numbers["accounting"]:
        parts.append(_wrapped(numbers["accounting"]["sentence"]))
    parts += [_wrapped(f"Note: {one}") for one in sentences.warnings(numbers)]
    others = numbers["findings"][1:]
    if others:
        parts.append("\n".join(["Also found:", *(_finding(one) for one in others)]))
    parts.append(_wrapped(f"{numbers['source']}: {sentences.job(numbers)}"))
    if numbers["steps"]["count"]:
        parts += _about_steps(numbers)
    if len(numbers["owners"]) > 1:  # besides the gradients
        parts.append(tables.owners(numbers).text(MOST_ROWS))
    if numbers["fusion"]["bins"]:
        parts.append(_wrapped(f"Fusion: {sentences.fusion(numbers)}"))
    if numbers["sizes"]:
        parts.append(tables.sizes(numbers).text(MOST_ROWS))
        parts += [_wrapped(one) for one in [sentences.unknown_ranks(numbers)] if one]
    if numbers["stalls"]:
        parts.append(tables.stalls(numbers).text(MOST_ROWS))
    if numbers["tuning"]:
        parts.append(tables.tuning(numbers).text(MOST_ROWS))
    changed = [one for one in numbers["settings"] if one["changed"]]
    if changed:
        pairs = (f"{one['name']}={tables.value_words(one['value'])}" for one in changed)
        parts.append(_wrapped("Settings that differ from the default: " + ", ".join(pairs)))
    parts.append(_wrapped("Trust: " + " ".join(sentences.quality(numbers))))
    return "\n\n".join(parts)


def _about_steps(numbers: schema.Report) -> list[str]:
    one, overlap = numbers["steps"], numbers["overlap"]
    shows_waits = overlap["shows_waits"]
    median = words.seconds(one["median_s"])
    lasts = f"Steps: median {median}, {sentences.spread(one)} for nine of ten"
    ideal = (
        f"{lasts}; blocked in communication {words.percent(overlap['exposed_share'])}; "
        f"{words.percent(overlap['overlap_share'])} of communication is hidden. A step takes "
        f"{words.seconds(overlap['step_s'])} on average; with free communication it would take "
        f"{words.seconds(overlap['ideal_free_communication_s'])}, without late ranks "
        f"{words.seconds(overlap['ideal_no_skew_s'])}."
    )
    if not shows_waits:
        ideal = (
            f"{lasts}. A step takes {words.seconds(overlap['step_s'])} on average. How long the "
            "program is blocked in communication is unknown: at most "
            f"{words.percent(overlap['exposed_at_most'])} of it."
        )
    parts = [_wrapped(ideal)]
    if numbers["waterfall"]["typical"]:
        parts.append(_narrow(tables.waterfall(numbers)))
    if numbers["phases"]:
        heading = sentences.phases(numbers)
        parts.append(_narrow(tables.phases(numbers["phases"], heading)))
    if len(numbers["lateness"]["ranks"]) > 1:
        parts.append(_wrapped(f"Late ranks: {sentences.lateness(numbers)}"))
        if numbers["stragglers"]:
            table = tables.stragglers(numbers, shows_waits=shows_waits)
            parts.append(table.text(MOST_ROWS))
    if numbers["cpus"]:
        parts.append(cpus.table(numbers).text(MOST_ROWS))
    return parts


def _narrow(table: tables.Table) -> str:
    """As many columns as a terminal has room for."""
    return tables.Table(table.caption, table.head[:8], [row[:8] for row in table.rows]).text()


def _verdict(verdict: schema.Finding) -> str:
    lines = [_wrapped(f"Verdict: {verdict['sentence']}")]
    if verdict["action"]:
        gain = f" Expected gain: {sentences.gain(verdict)} of the step." if (
            verdict["gain"] > 0
        ) else ""  # fmt: skip
        lines.append(_wrapped(f"Next: {verdict['action']}{gain}"))
    return "\n".join(lines)


def _finding(one: schema.Finding) -> str:
    gain = f" Expected gain: {sentences.gain(one)}." if one["gain"] > 0 else ""
    return textwrap.fill(
        f"- {one['sentence']} {one['action']}{gain}", WIDTH, initial_indent="  ",
        subsequent_indent="    ", break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip


def _wrapped(line: str) -> str:
    return textwrap.fill(line, WIDTH, break_on_hyphens=False, break_long_words=False)
