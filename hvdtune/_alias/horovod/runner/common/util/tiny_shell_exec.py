"""A shell command whose output is returned as text."""

from __future__ import annotations

import io
from collections.abc import Mapping

from . import safe_shell_exec


def execute(command: str, env: Mapping[str, str] | None = None) -> tuple[str, int]:
    """Run a shell command; returns the output of both streams, and its exit status."""
    output = io.StringIO()
    status = safe_shell_exec.execute(command, env=env, stdout=output, stderr=output)
    return output.getvalue(), status
