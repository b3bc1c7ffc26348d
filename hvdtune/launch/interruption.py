"""Ctrl-C and SIGTERM end a command at once, in one line and with the status a shell expects.

Once a job starts, the job itself handles them: see `hvdtune.launch.local.guard`.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Ended(SystemExit):
    """Signal `number` asked the command to end."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(128 + number)


def _once(number: int, _frame: FrameType | None) -> None:
    for each in _NUMBERS:
        if signal.getsignal(each) is _once:
            signal.signal(each, signal.SIG_DFL)
    raise KeyboardInterrupt if number == signal.SIGINT else Ended(number)


@contextlib.contextmanager
def heard() -> Iterator[None]:
    """In this context SIGTERM raises `Ended`, and SIGINT KeyboardInterrupt; a second one ends us.

    Ignored signals stay ignored, and signals that have other handlers keep them.
    """
    with _replaced((signal.SIG_DFL, signal.default_int_handler), _once):
        yield


@contextlib.contextmanager
def fatal() -> Iterator[None]:
    """For calls that no handler can break, such as the resolver's: end at once and silently.

    Does nothing in a process in which `heard` is not in force.
    """
    with _replaced((_once,), signal.SIG_DFL):
        yield


def by_default() -> None:
    """Let Ctrl-C end this process as it ends any process without signal handlers."""
    if _in_main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def _replaced(known: tuple[Any, ...], handler: Any) -> Iterator[None]:
    before = {}
    if _in_main_thread():
        found = {number: signal.getsignal(number) for number in _NUMBERS}
        before = {number: each for number, each in found.items() if each in known}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, each in before.items():
            if signal.getsignal(number) is handler:
                signal.signal(number, each)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
