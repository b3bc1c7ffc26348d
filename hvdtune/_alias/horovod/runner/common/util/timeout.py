"""A time limit."""

from __future__ import annotations

import time

from hvdtune.compute_service.errors import TimeoutException

__all__ = ["Timeout", "TimeoutException"]


class Timeout:
    """`timeout` seconds from now on; `message` may contain `{activity}`."""

    def __init__(self, timeout: float, message: str) -> None:
        self._timeout = timeout
        self._message = message
        self._end = time.monotonic() + timeout

    def remaining(self) -> float:
        """The seconds that are left, never less than 0."""
        return max(0.0, self._end - time.monotonic())

    def timed_out(self) -> bool:
        """Whether none are left."""
        return self.remaining() == 0

    def timeout_at(self) -> float:
        """When the time is up, on the clock of `time.time()`."""
        return time.time() + self._end - time.monotonic()

    def check_time_out_for(self, activity: str) -> None:
        """Raise TimeoutException, with the message, once the time is up."""
        if self.timed_out():
            text = self._message.format(activity=activity)
            raise TimeoutException(f"{text} Timeout after {self._timeout} seconds.")
