"""Lines for a pipe, and a progress bar below them on a terminal."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

_BAR_WIDTH = 24


class Display:
    """Prints lines at once; draws the bar on `bar` (the error stream) if that is a terminal."""

    def __init__(self, out: TextIO | None = None, bar: TextIO | None = None) -> None:
        self._out = sys.stdout if out is None else out
        self._bar = sys.stderr if bar is None else bar
        self._draws = self._bar.isatty()
        self._started = time.monotonic()
        self._shown = False
        self.total = 0
        self.done = 0

    def lines(self, lines: list[str]) -> None:
        """Print finished lines above the bar."""
        self.clear()
        for line in lines:
            print(line, file=self._out)
        self._out.flush()

    def phase(self, text: str) -> None:
        """Say what is being measured now; counts the phase before it as done."""
        if self._draws:
            columns = shutil.get_terminal_size().columns
            line = self.bar_text(text, time.monotonic() - self._started)[: columns - 1]
            self._bar.write(f"\r\x1b[K{line}")
            self._bar.flush()
            self._shown = True
        self.done += 1

    def bar_text(self, text: str, elapsed: float) -> str:
        """The bar as drawn: `[#####.....]  3/32  12 s  allreduce 4 MiB`."""
        total = max(1, self.total)
        filled = min(_BAR_WIDTH, self.done * _BAR_WIDTH // total)
        bar = "#" * filled + "." * (_BAR_WIDTH - filled)
        return f"[{bar}] {self.done}/{total}  {elapsed:.0f} s  {text}"

    def clear(self) -> None:
        """Take the bar off the terminal."""
        if self._shown:
            self._bar.write("\r\x1b[K")
            self._bar.flush()
            self._shown = False
