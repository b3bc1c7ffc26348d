"""This process's Python stacks, for the stall report of rank 0."""

from __future__ import annotations

import sys
import threading

_LONGEST = 8000


def format_stacks() -> str:
    """Every Python thread's stack, the main thread first; at most 8000 characters."""
    import traceback  # only here: every rank would pay for it at its start

    frames = sys._current_frames()
    main = threading.main_thread().ident
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own = threading.get_ident()
    parts = []
    for ident in sorted(frames, key=lambda ident: ident != main):
        if ident == own and ident not in names:
            continue  # the engine's thread that asks
        name = "main thread" if ident == main else f"thread {names.get(ident, ident)}"
        stack = "".join(traceback.format_stack(frames[ident]))
        parts.append(f"{name} (most recent call last):\n{stack}")
    return "".join(parts)[:_LONGEST]
