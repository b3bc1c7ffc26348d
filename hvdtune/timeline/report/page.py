"""The page of a report: verdict and next step first, then the pictures, then the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from hvdtune import pages
from hvdtune.timeline import schema, words
from hvdtune.timeline.report import cpus, figures, sentences, tables

#: A verdict with at least this expected gain is shown as a call to act.
WORTH_IT = 0.02
NUMBERS = "The numbers as a table"


def page(numbers: schema.Report) -> str:
    """The whole page, made from document.numbers_of."""
    name = numbers["source"].rpartition("/")[2]
    return pages.page(
        f"hvdtune report: {name}",
        [
            f"<h1>Where the step goes: {escape(name)}</h1>",
            f'<p class="under">{escape(sentences.job(numbers))}</p>',
            *(pages.paragraph(note, "note") for note in sentences.warnings(numbers)),
            hero(numbers["verdict"]),
            _accounting(numbers),
            _facts(numbers),
            _more_findings(numbers["findings"][1:]),
            _waterfall(numbers),
            _phases(numbers),
            _lateness(numbers),
            *_strips(numbers),
            _steps(numbers),
            _fusion(numbers),
            _sizes(numbers),
            _stragglers(numbers),
            _section("CPUs", tables.html(cpus.table(numbers))) if numbers["cpus"] else "",
            _owners(numbers),
            _tensors(numbers),
            _stalls(numbers),
            _tuning(numbers),
            _settings(numbers),
            _quality(numbers),
        ],
    )


def hero(verdict: schema.Finding) -> str:
    """The verdict: what is wrong and what to do."""
    gain = verdict["gain"]
    kind = "act" if gain >= WORTH_IT else "fine"
    pill = (
        f'<p class="gain">expected gain: {sentences.gain(verdict)} of the step</p>'
        if gain > 0
        else ""
    )
    action = verdict["action"]
    return (
        f'<section class="card hero {kind}" aria-label="Verdict"><p class="kicker">Verdict</p>'
        f'<p class="sentence">{escape(verdict["sentence"])}</p>'
        + (f'<p class="action"><b>Next:</b> {escape(action)}</p>' if action else "")
        + f"{pill}{_evidence(verdict)}</section>"
    )


def _accounting(numbers: schema.Report) -> str:
    found = numbers["accounting"]
    if not found:
        return ""
    return pages.paragraph(found["sentence"]) + tables.html(tables.accounting(found), NUMBERS)


def _evidence(finding: schema.Finding) -> str:
    rows = [(name.replace("_", " "), tables.cell(name, value))
            for name, value in finding["evidence"].items()]  # fmt: skip
    if not rows:
        return ""
    return pages.table(
        ("what", "value"), rows, caption="Evidence", words=(0, 1), summary="What this rests on"
    )


def _more_findings(findings: Sequence[schema.Finding]) -> str:
    if not findings:
        return ""
    items = "".join(
        f"<li>{escape(one['sentence'])} "
        f'<span class="action">{escape(one["action"])}</span> '
        + (f'<span class="gain">{sentences.gain(one)}</span>' if one["gain"] > 0 else "")
        + "</li>"
        for one in findings
    )
    return (
        '<section class="card"><h2>What else was found</h2>'
        f'<ol class="findings" start="2">{items}</ol></section>'
    )


def _facts(numbers: schema.Report) -> str:
    steps, overlap = numbers["steps"], numbers["overlap"]
    if not steps["count"]:
        return ""
    facts = [
        ("step, median", words.seconds(steps["median_s"])),
        ("step, mean", words.seconds(overlap["step_s"])),
        ("nine of ten steps", sentences.spread(steps)),
    ]
    if not overlap["shows_waits"]:
        at_most = f"unknown, at most {words.percent(overlap['exposed_at_most'])}"
        return pages.facts([*facts, ("blocked in communication", at_most)])
    return pages.facts(
        [
            *facts,
            ("blocked in communication", words.percent(overlap["exposed_share"])),
            ("communication hidden", words.percent(overlap["overlap_share"])),
            ("step if communication were free",
             words.seconds(overlap["ideal_free_communication_s"])),
            ("step if no rank were late", words.seconds(overlap["ideal_no_skew_s"])),
        ]
    )  # fmt: skip


def _waterfall(numbers: schema.Report) -> str:
    if not numbers["waterfall"]["ranks"]:
        return ""
    spec, height = figures.waterfall(numbers)
    drawn = {one["name"] for one in spec["data"]}
    legend = [(part["title"], part["colour"]) for part in numbers["waterfall"]["parts"]
              if part["title"] in drawn]  # fmt: skip
    return pages.figure(
        "waterfall", spec, height=height, heading="Where a step goes",
        says=sentences.waterfall(numbers),
        about="Each bar is the mean of the typical steps: those in the middle half by duration. "
        "Its parts sum to the step. In all parts except compute the rank was blocked."
        + sentences.left_out(numbers["waterfall"]["left_out"]),
        legend=legend, after=tables.html(tables.waterfall(numbers), NUMBERS),
    )  # fmt: skip


def _phases(numbers: schema.Report) -> str:
    if not numbers["phases"]:
        return ""
    heading = sentences.phases(numbers)
    return _section(heading, tables.html(tables.phases(numbers["phases"], heading)))


def _lateness(numbers: schema.Report) -> str:
    if len(numbers["lateness"]["ranks"]) < 2:
        return ""
    spec, height = figures.lateness(numbers)
    return pages.figure(
        "lateness", spec, height=height, heading="Who is late, and when",
        says=sentences.lateness(numbers), about=sentences.cells(numbers["lateness"]),
        after=tables.html(tables.lateness(numbers), NUMBERS),
    )  # fmt: skip


def _strips(numbers: schema.Report) -> list[str]:
    found = []
    shown = [
        lane
        for lane in figures.LANES
        if numbers["overlap"]["shows_waits"] or lane[0] == "communication"
    ]
    for one in numbers["strips"]:
        spec, height = figures.strip(one)
        heading = "A typical step" if one["kind"] == "typical" else "A bad step"
        found.append(
            pages.figure(
                f"strip-{one['kind']}", spec, height=height,
                heading=f"{heading}: number {one['step']}",
                says=sentences.strip(one, numbers),
                about=sentences.lanes(numbers) + sentences.left_out(one["left_out"]),
                legend=shown,
            )
        )  # fmt: skip
    return found


def _steps(numbers: schema.Report) -> str:
    if len(numbers["series"]["step"]) < 2:
        return ""
    spec, height = figures.steps(numbers)
    return pages.figure(
        "steps", spec, height=height, heading="The step time over the run",
        says=sentences.steps(numbers), legend=figures.event_legend(numbers),
    )  # fmt: skip


def _fusion(numbers: schema.Report) -> str:
    if not numbers["fusion"]["bins"]:
        return ""
    spec, height = figures.fusion(numbers)
    legend = [(reason, figures.reason_colour(reason)) for reason in numbers["fusion"]["histogram"]]
    return pages.figure(
        "fusion", spec, height=height, heading="How tensors were fused",
        says=sentences.fusion(numbers),
        about="Why batches were closed. full: the next tensor did not fit; cycle: the cycle time "
        "had passed; blocked: a rank waited for a result; step done: no more tensors were due.",
        legend=legend, after=tables.html(tables.fusion(numbers), NUMBERS),
    )  # fmt: skip


def _sizes(numbers: schema.Report) -> str:
    if not numbers["points"]:
        return ""
    spec, height = figures.sizes(numbers)
    return pages.figure(
        "sizes", spec, height=height, heading="Size and bandwidth",
        says=sentences.sizes(numbers), about=sentences.roofline(numbers),
        legend=figures.size_legend(numbers), after=tables.html(tables.sizes(numbers), NUMBERS),
    )  # fmt: skip


def _section(heading: str, *content: str) -> str:
    inner = "".join(content)
    return f'<section class="card"><h2>{escape(heading)}</h2>{inner}</section>' if inner else ""


def _stragglers(numbers: schema.Report) -> str:
    if not numbers["stragglers"]:
        return ""
    table = tables.stragglers(numbers, shows_waits=numbers["overlap"]["shows_waits"])
    return _section("Stragglers", tables.html(table))


def _owners(numbers: schema.Report) -> str:
    if not numbers["owners"]:
        return ""
    return _section("Operations by owner", tables.html(tables.owners(numbers)))


def _tensors(numbers: schema.Report) -> str:
    if not numbers["tensors"]:
        return ""
    return _section("Tensors", tables.html(tables.tensors(numbers), "The tensors, one by one"))


def _stalls(numbers: schema.Report) -> str:
    return _section("Stalls", tables.html(tables.stalls(numbers))) if numbers["stalls"] else ""


def _tuning(numbers: schema.Report) -> str:
    return (
        _section("What the tuner did", tables.html(tables.tuning(numbers)))
        if numbers["tuning"]
        else ""
    )


def _settings(numbers: schema.Report) -> str:
    if not numbers["settings"]:
        return ""
    return _section(
        "Settings in force",
        pages.paragraph(sentences.settings(numbers)),
        tables.html(tables.settings(numbers), "All settings", folds="narrow"),
    )


def _quality(numbers: schema.Report) -> str:
    return _section(
        "How far to trust these numbers",
        *(pages.paragraph(one) for one in sentences.quality(numbers)),
    )
