"""The outcome of one part of the checks, and the page with all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

PASSED, FAILED, SKIPPED = "passed", "FAILED", "skipped"


@dataclass(frozen=True)
class Outcome:
    """`state`: one of the three above; `said`: one sentence; `table`: rows, the header first."""

    state: str
    said: str
    table: Sequence[Sequence[str]] = ()


@dataclass
class Results:
    """All parts in their order, and the machine that they ran on."""

    machine: dict[str, str]
    parts: list[tuple[str, Outcome, float]] = field(default_factory=list)

    @property
    def failed(self) -> list[str]:
        """The titles of the parts that failed."""
        return [title for title, outcome, _ in self.parts if outcome.state == FAILED]


def page(results: Results) -> str:
    """The Markdown page."""
    lines = [
        "# Results on a GPU",
        "",
        "<!-- Written by benchmarks/gpu_checks.sh: run it again instead of editing this page. -->",
        "",
        *(f"- {what}: {value}" for what, value in results.machine.items()),
        "",
        *markdown_table(
            [
                ("part", "outcome", "seconds"),
                *((title, one.state, f"{took:.0f}") for title, one, took in results.parts),
            ]
        ),
    ]
    for title, outcome, _ in results.parts:
        lines += ["", f"## {title}", "", f"{outcome.state}: {outcome.said}"]
        if outcome.table:
            lines += ["", *markdown_table(outcome.table)]
    return "\n".join(lines) + "\n"


def markdown_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table whose first row is the header; a bar in a cell is escaped."""
    if len({len(row) for row in rows}) != 1:
        raise ValueError("all rows of a table have as many cells as its header")
    texts = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
    head, *body = (f"| {text} |" for text in texts)
    return [head, "|" + "---|" * len(rows[0]), *body]
