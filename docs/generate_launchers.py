"""Writes the table of launchers into docs/running/data-planes.md:

    python docs/generate_launchers.py [--check]

from launchers_table.py, which tests/launch/test_launchers.py checks against real jobs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import generated_page
import launchers_table as table

PAGE = Path(__file__).with_name("running") / "data-planes.md"
BEGIN = "<!-- Made by docs/generate_launchers.py from docs/launchers_table.py: edit that. -->\n"
END = "<!-- End of what docs/generate_launchers.py makes. -->\n"


def lines() -> list[str]:
    """The table, and below it the sentences that its numbers stand for."""
    sentences: list[str] = []

    def cell(status: str) -> str:
        if status in (table.WORKS, table.UNTRIED):
            return status
        if status not in sentences:
            sentences.append(status)
        return f"refused ({sentences.index(status) + 1})"

    rows = [
        f"| `{row.command}` | {row.release} | "
        + " | ".join(cell(row.planes[plane]) for plane in table.PLANES)
        + " |"
        for row in table.LAUNCHERS
    ]
    head = f"| started by | | {' | '.join(table.PLANES.values())} |"
    notes = [f'({number}) "{sentence}"' for number, sentence in enumerate(sentences, 1)]
    return [head, "|---|---|" + "---|" * len(table.PLANES), *rows, "", *notes]


def page(before: str) -> str:
    """The whole page, made from its text `before`. Raises ValueError if that lacks the marks."""
    head, begin, rest = before.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} lacks {BEGIN!r} or {END!r}")
    return "".join((head, BEGIN, "\n", "\n".join(lines()), "\n\n", END, tail))


def main() -> int:
    """Write the page, or with --check say whether it is up to date."""
    return generated_page.write(PAGE, page(PAGE.read_text(encoding="utf-8")), __file__)


if __name__ == "__main__":
    sys.exit(main())
