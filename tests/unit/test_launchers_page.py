"""The table of launchers in docs/running/data-planes.md is what its script makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture
def generator(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    import generate_launchers

    yield generate_launchers
    for name in ("generate_launchers", "launchers_table"):
        sys.modules.pop(name, None)


def test_the_page_is_up_to_date():
    made = subprocess.run(
        [sys.executable, DOCS / "generate_launchers.py", "--check"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout + made.stderr


def test_what_is_refused_is_a_note_and_what_is_not_tried_says_so(generator, monkeypatch):
    table = generator.table
    rows = (
        table.Launcher("a", "a", "1", {"": table.WORKS, "MPI": "No.", "GLOO": table.UNTRIED}),
        table.Launcher("b", "b", "2", {"": "Never.", "MPI": "No.", "GLOO": table.WORKS}),
    )
    monkeypatch.setattr(table, "LAUNCHERS", rows)
    assert generator.lines()[2:] == [
        "| `a` | 1 | works | refused (1) | not tried |",
        "| `b` | 2 | refused (2) | refused (1) | works |",
        "",
        '(1) "No."',
        '(2) "Never."',
    ]


def test_a_page_without_the_marks_is_an_error(generator):
    with pytest.raises(ValueError, match="lacks"):
        generator.page(f"# A page\n{generator.BEGIN}")
    made = generator.page(f"before\n{generator.BEGIN}old\n{generator.END}after\n")
    assert made.startswith(f"before\n{generator.BEGIN}\n| started by |")
    assert made.endswith(f"\n{generator.END}after\n")
    assert generator.page(made) == made
