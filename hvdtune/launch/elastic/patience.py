"""A wait for slots: with a line every few seconds, and an end."""

from __future__ import annotations

_LINE_SECONDS = 10.0


class Patience:
    """How long the job has been short of slots."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end: float | None = None
        self._next_line = 0.0

    def is_over(self, now: float) -> bool:
        """Wait on, from now if nothing waited; return whether that was long enough."""
        if self._end is None:
            self._end, self._next_line = now + self.seconds, now
        return now >= self._end

    def line(self, now: float) -> str:
        """The end of a line to say now, or ""."""
        if self._end is None or now < self._next_line:
            return ""
        self._next_line = now + _LINE_SECONDS
        return f"waiting for at most {max(self._end - now, 0):.0f} s"

    def stop(self) -> None:
        """The wait is over."""
        self._end = None

    def due(self) -> float | None:
        """When to look again; None outside a wait."""
        return None if self._end is None else min(self._end, self._next_line)
