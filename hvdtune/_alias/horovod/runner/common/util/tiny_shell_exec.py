"""A shell command whose output is wanted as a text."""

from __future__ import annotations

import io
from collections.abc import Mapping

from . import safe_shell_exec


def execute(command: str, env: Mapping[str, str] | None = None) -> tuple[str, int]:
    """Run a command of the shell; what it has written to both streams, and its exit status."""
    output = io.StringIO()
    status = safe_shell_exec.execute(command, env=env, stdout=output, stderr=output)
    return output.getvalue(), status
