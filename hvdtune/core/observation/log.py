"""Messages in the engine's format, filtered by HOROVOD_LOG_LEVEL as the engine's own are."""

from __future__ import annotations

import sys

import hvdtune._native as _native
from hvdtune.core import world


def write(level: str, message: str) -> None:
    """Print ``message``, with the caller's file and line, at ``level`` ("info", "warning", …)."""
    caller = sys._getframe(1)
    rank = world.rank() if world.is_initialized() else -1
    _native.log(level, caller.f_code.co_filename, caller.f_lineno, rank, message)
