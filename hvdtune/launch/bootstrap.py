"""Commands that run a module of this very package in a new Python."""

from __future__ import annotations

import sys
from pathlib import Path


def python_command(module: str, *arguments: str, executable: str | None = None) -> list[str]:
    """A command that runs `main(arguments)` of a module and exits with what that returns.

    `python -m` would look in the current directory first, where a checkout that was never
    compiled may lie. The package's own folder leaves sys.path again once the package is imported:
    first there, it would put whatever else is installed before the standard library.
    """
    root = str(Path(__file__).resolve().parents[2])
    start = (
        f"import sys; path = [*filter(None, sys.path)]; sys.path[:] = [{root!r}, *path]; "
        "import hvdtune; sys.path[:] = path; "
        f"from {module} import main; sys.exit(main(sys.argv[1:]))"
    )
    return [executable or sys.executable, "-c", start, *arguments]
