"""How the scripts of this folder write their pages, or say with --check that one is out of date."""

from __future__ import annotations

import sys
from pathlib import Path


def write(page: Path, text: str, script: str) -> int:
    """Write ``text`` to a page, or check it if ``script`` got --check. Returns the exit status."""
    if "--check" not in sys.argv[1:]:
        page.write_text(text, encoding="utf-8")
        return 0
    if page.exists() and page.read_text(encoding="utf-8") == text:
        return 0
    print(f"{page} is out of date: run python docs/{Path(script).name}")
    return 1
