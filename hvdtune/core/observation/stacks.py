"""This process's Python stacks, for the stall report of rank 0."""

from __future__ import annotations

import sys
import threading

_LONGEST = 8000
_LONGEST_STACK = 4000  # of one thread


def format_stacks() -> str:
    """Every Python thread's stack, the main thread first; at most 8000 characters.

    If a stack is too long for that, its innermost frames stay: they say where the thread is.
    The frames of the import system are left out.
    """
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
        calls = traceback.extract_stack(frames[ident])
        lines = traceback.format_list(
            [one for one in calls if "importlib._boot" not in one.filename]
        )
        stack = _innermost(lines)
        parts.append(f"{name} (most recent call last):\n{stack}")
    return "".join(parts)[:_LONGEST]


def _innermost(lines: list[str]) -> str:
    """The last frames that fit, and a line about the others."""
    room = _LONGEST_STACK
    first = len(lines)
    while first and len(lines[first - 1]) <= room:
        first -= 1
        room -= len(lines[first])
    left_out = f"  ... {first} outer frame{'s' * (first > 1)} left out ...\n" if first else ""
    return left_out + "".join(lines[first:])
