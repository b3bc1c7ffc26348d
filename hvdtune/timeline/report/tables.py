"""The tables of a report, for the page and for the terminal alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hvdtune.timeline import schema, words


@dataclass(frozen=True)
class Table:
    """Cells as text. `left`: columns of words. `marked`: rows that a reader should see first."""

    caption: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    left: tuple[int, ...] = (0,)
    marked: tuple[int, ...] = ()

    def text(self, most: int | None = None) -> str:
        """For a terminal; no more rows than `most`."""
        lines = [self.head, *self.rows[:most]]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.head))]
        shown = [self.caption]
        for line in lines:
            cells = [
                cell.ljust(width) if column in self.left else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            ]
            shown.append("  " + "  ".join(cells).rstrip())
        if most is not None and len(self.rows) > most:
            shown.append(f"  … and {len(self.rows) - most} more")
        return "\n".join(shown)


def cell(name: str, value: Any) -> str:
    """A value in the unit at the end of its name."""
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if name.endswith("_per_s"):
        return words.digits(value)
    if name.endswith("_s"):
        return words.seconds(value)
    if name.endswith("_ms"):
        return words.seconds(value / 1e3)
    if name.endswith("_share") or name in ("share", "fill"):
        return words.percent(value)
    if name.endswith("bytes"):
        return words.size(value)
    if name.endswith("_gbps"):
        return words.bandwidth(1e9 * value)
    return words.grouped(value) if isinstance(value, int) else words.digits(value)


def waterfall(numbers: schema.Report) -> Table:
    """Parts × ranks, ms, with the share of the typical step."""
    found = numbers["waterfall"]
    typical, mean = found["typical"], found["mean"]
    assert typical  # without steps there is no such table
    assert mean
    bars = [mean, *found["ranks"]]
    step = typical["step_s"]
    rows = [
        (
            part["title"],
            words.milliseconds(typical["parts_s"][part["name"]]),
            words.percent(typical["parts_s"][part["name"]] / step if step else None),
            *(words.milliseconds(one["parts_s"][part["name"]]) for one in bars),
        )
        for part in found["parts"]
        if any(one["parts_s"][part["name"]] for one in (typical, *bars))
    ]
    total = ("the step", words.milliseconds(step), words.percent(1.0 if step else None),
             *(words.milliseconds(one["step_s"]) for one in bars))  # fmt: skip
    hidden = ("communication hidden by compute", words.milliseconds(typical["overlapped_s"]),
              "", *(words.milliseconds(one["overlapped_s"]) for one in bars))  # fmt: skip
    head = (
        "ms",
        "typical",
        "share",
        "mean of all",
        *(f"rank {one['rank']}" for one in found["ranks"]),
    )
    return Table("Where a step goes, ms", head, [*rows, total, hidden])


def phases(found: schema.Phases, heading: str = "What computing consists of") -> Table:
    """Phases × ranks, ms; those in which ranks differ are marked."""
    bars = [found["mean"], *(one["parts_s"] for one in found["ranks"])]
    compute = sum(found["mean"].values())
    rows = [
        (
            part["title"] + (" *" if part["differs"] else ""),
            words.percent(found["mean"][part["name"]] / compute if compute else None),
            *(words.milliseconds(one[part["name"]]) for one in bars),
        )
        for part in found["parts"]
        if any(one[part["name"]] for one in bars)
    ]
    head = ("ms", "share", "mean", *(f"rank {one['rank']}" for one in found["ranks"]))
    marked = tuple(at for at, row in enumerate(rows) if row[0].endswith("*"))
    stars = " (*: ranks differ)" if marked else ""
    return Table(f"{heading}, ms a step{stars}", head, rows, marked=marked)


def accounting(found: schema.Accounting) -> Table:
    """The mean step by cause."""
    rows = [
        (one["title"], words.milliseconds(one["seconds"]), words.percent(one["share"]))
        for one in found["shares"]
    ]
    total = ("the mean step", words.milliseconds(found["step_s"]), words.percent(1.0))
    return Table("What a step is made of, by cause", ("cause", "ms", "share"), [*rows, total])


def lateness(numbers: schema.Report) -> Table:
    """Rank × its typical lateness."""
    found = numbers["lateness"]["typical_ms"]
    worst = sorted(found.items(), key=lambda one: -(one[1] or 0.0))
    rows = [(f"rank {rank}", words.digits(late)) for rank, late in worst]
    return Table("Typical lateness of the ranks", ("rank", "median, ms"), rows[:40])


def stragglers(numbers: schema.Report, *, shows_waits: bool = True) -> Table:
    """How often each rank was last, and what that cost; at most, if waits are not recorded."""
    rows = [
        (
            f"rank {one['rank']}" + (f" on {one['host']}" if one["host"] else ""),
            one["kind"] or ("now and then" if one["delay_s"] > 0 else "not late"),
            words.percent(one["steps_last_share"]),
            words.seconds(one["typical_late_s"]),
            words.seconds(one["delay_s"]),
            words.seconds(one["caused_s"]),
            _steps(one),
        )
        for one in numbers["stragglers"]
    ]
    head = ("rank", "kind", "held up", "typically late", "delayed the job", "others waited in all",
            "steps")  # fmt: skip
    caption = "Waiting, charged to the rank that caused it"
    if not shows_waits:
        caption += ", if ranks waited whenever an operation was under way (not recorded)"
    return Table(caption, head, rows, left=(0, 1))


def _steps(one: schema.Straggler) -> str:
    first, last = one["from_step"], one["to_step"]
    if first < 0:
        return "-"
    return str(first) if first == last else f"{first} to {last}"


def _step(one: schema.Stall | schema.TuningMark) -> str:
    return str(one["step"]) if one["step"] >= 0 else "-"


def fusion(numbers: schema.Report) -> Table:
    """Why batches were closed."""
    found = numbers["fusion"]
    total = sum(found["reasons"].values())
    rows = [
        (reason, words.grouped(count), words.percent(count / total))
        for reason, count in sorted(found["reasons"].items(), key=lambda one: -one[1])
        if count
    ]
    return Table("Why batches were closed", ("reason", "batches", "share"), rows)


def sizes(numbers: schema.Report) -> Table:
    """Operation × size: times and bandwidths."""
    rows = [
        (
            one["op"],
            words.grouped(one["ranks"]) if one["ranks"] else "-",
            words.size(one["bytes"]),
            words.grouped(one["count"]),
            words.seconds(one["p50_s"]),
            words.seconds(one["p95_s"]),
            words.seconds(one["p99_s"]),
            words.digits(one["algbw_gbps"]),
            words.digits(one["busbw_gbps"]),
            words.percent(one["peak_share"]),
        )
        for one in numbers["sizes"]
    ]
    head = ("operation", "ranks", "size", "batches", "p50", "p95", "p99", "algbw GB/s",
            "busbw GB/s", "of peak" if numbers["roof"]["measured"] else "of best size")  # fmt: skip
    return Table("Time and bandwidth by operation and size", head, rows)


def stalls(numbers: schema.Report) -> Table:
    """Long waits, and the rank that each was for."""
    rows = [
        (
            _step(one),
            words.seconds(one["time_s"]),
            words.seconds(one["seconds"]),
            words.shortened(one["text"], 200),
        )
        for one in numbers["stalls"]
    ]
    return Table("Stalls", ("step", "at", "lasted", "what"), rows, left=(3,))


def tuning(numbers: schema.Report) -> Table:
    """The autotuner's decisions, and when settings changed."""
    rows = [
        (
            _step(one),
            words.seconds(one["time_s"]),
            str(one["kind"]),
            words.shortened(str(one["text"]), 200),
        )
        for one in numbers["tuning"]
    ]
    return Table("Changes while it ran", ("step", "at", "kind", "what"), rows, left=(2, 3))


def settings(numbers: schema.Report) -> Table:
    """Settings in force at the end; those that differ from the default are marked."""
    rows = [
        (
            one["name"],
            value_words(one["value"], one["name"]),
            value_words(one["at_start"], one["name"]),
            value_words(one["default"], one["name"]),
        )
        for one in numbers["settings"]
    ]
    marked = tuple(at for at, one in enumerate(numbers["settings"]) if one["changed"])
    head = ("setting", "at the end", "at the start", "default")
    return Table("Settings", head, rows, left=(0, 1, 2, 3), marked=marked)


def tensors(numbers: schema.Report) -> Table:
    """The tensors with the longest latencies."""
    rows = [
        (
            words.shortened(str(one["name"])),
            str(one["op"]),
            words.size(one["bytes"]),
            words.grouped(one["count"]),
            words.seconds(one["latency_s"]),
            words.percent(one["last_share"]),
        )
        for one in numbers["tensors"]
    ]
    head = ("tensor", "operation", "size", "count", "from submission to result", "last in a step")
    return Table("Tensors", head, rows, left=(0, 1))


def owners(numbers: schema.Report) -> Table:
    """Which call of the program made each operation of a step, and what that costs."""
    rows = [
        (
            str(one["call"]),
            words.shortened(str(one["name"] or one["site"])) or "-",
            str(one["process_set"]),
            str(one["phase"]) or "-",
            words.count(one["count"]),
            words.size(one["bytes"]),
            words.percent(one["steps"]),
            words.seconds(one["blocked_s"]),
            words.seconds(one["late_s"]),
        )
        for one in numbers["owners"]
    ]
    head = ("call", "tensor", "process set", "when", "a step", "bytes a step", "in steps",
            "blocked a step", "for late ranks")  # fmt: skip
    return Table("Operations by owner", head, rows, left=(0, 1, 3))


def value_words(value: Any, name: str = "") -> str:
    """A setting's value, sizes also in MiB; `-` if there is none."""
    from hvdtune.settings.knobs import KNOBS

    if value is None or value == "":
        return "-"
    is_size = any(knob.env == name and knob.kind == "size" for knob in KNOBS.values())
    if is_size and str(value).isdecimal() and int(value) >= 1024:
        return f"{value} ({words.size(int(value))})"
    if isinstance(value, float) and value == int(value):
        return str(int(value))
    return words.shortened(str(value), most=80)


def html(table: Table, summary: str = "", folds: str = "always") -> str:
    """The table on a page; folded under `summary` if that is given, see pages.folded."""
    from hvdtune import pages

    return pages.table(
        table.head, table.rows, caption=table.caption, words=table.left, marked=table.marked,
        summary=summary, folds=folds,
    )  # fmt: skip
