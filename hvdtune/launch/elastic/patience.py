"""A wait for slots: a line every few seconds, and a time limit."""

from __future__ import annotations

_LINE_SECONDS = 10.0


class Patience:
    """How long the job has been short of slots since it last had enough."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end: float | None = None  # None: the job has enough
        self._next_line = 0.0
        self.due: float | None = None  # when to call `wait` again; None outside a wait

    def wait(self, now: float, may_end: bool) -> str | None:
        """The job waits, and gives up in the end if it `may_end`: None means that it gives up now.

        Otherwise returns the beginning of a line to say now, or "".
        """
        if self._end is None:
            self._end, self._next_line = now + self._seconds, now
        if may_end and now >= self._end:
            return None
        line = ""
        if now >= self._next_line:
            self._next_line = now + _LINE_SECONDS
            line = f"waiting, for at most {max(self._end - now, 0):.0f} s"
        self.due = min(self._end, self._next_line) if may_end else self._next_line
        return line

    def stop(self) -> None:
        """The job has enough slots."""
        self._end = None

    def pause(self) -> None:
        """The job does something else for now, until `wait` is called again."""
        self.due = None
