"""Log messages in Horovod's form, from the tuner's thread on rank 0.

    [2026-01-31 12:00:00.   142: I session.py:77] [0]: Autotuner: Warming up (2 remaining)

Information goes to stdout and warnings to stderr, as in Horovod; HOROVOD_LOG_HIDE_TIME leaves out
the time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime

LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")


class Messenger:
    """Prints messages at or above a level (a name in LEVELS); `record` gets all of them."""

    def __init__(
        self,
        level: str,
        hide_time: bool,
        rank: int = 0,
        record: Callable[[str], None] | None = None,
        before: Callable[[], None] | None = None,
    ) -> None:
        """`before` is called before each line that is printed."""
        self._before = before
        self._least = LEVELS.index(level.upper())
        self._hide_time = hide_time
        self._rank = rank
        self._record = record

    def info(self, text: str) -> None:
        """Print details for somebody who follows closely."""
        self._print("INFO", text)

    def warn(self, text: str) -> None:
        """Print that something went wrong although training goes on."""
        self._print("WARNING", text)

    def result(self, text: str) -> None:
        """Print the final result at any level: users who asked for tuning want to know."""
        if self._record is not None:
            self._record(text)
        self._make_room()
        print(f"hvdtune autotune: {text}", file=sys.stderr, flush=True)

    def _make_room(self) -> None:
        if self._before is not None:
            self._before()

    def _print(self, level: str, text: str) -> None:
        if self._record is not None:
            self._record(text)
        if LEVELS.index(level) < self._least:
            return
        caller = sys._getframe(2)
        place = f"{caller.f_code.co_filename.rsplit('/', 1)[-1]}:{caller.f_lineno}"
        now = datetime.now()
        when = "" if self._hide_time else f"{now:%Y-%m-%d %H:%M:%S}.{now.microsecond:6d}: "
        stream = sys.stdout if level == "INFO" else sys.stderr
        self._make_room()
        print(f"[{when}{level[0]} {place}] [{self._rank}]: {text}", file=stream, flush=True)
