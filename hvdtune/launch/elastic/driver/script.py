"""The host discovery script, run again and again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from hvdtune.launch.allocation.hosts import Host
from hvdtune.launch.elastic import discovery
from hvdtune.launch.elastic.driver.errands import Errands, Outcome
from hvdtune.launch.errors import LaunchError

PAUSE_SECONDS = 1.0
DEADLINE_SECONDS = 10.0

_HINTS = {
    126: "it is not executable: chmod +x, or name its interpreter",
    127: "there is no such command",
}


class Script:
    """Runs a host discovery script repeatedly, each time a second after it has ended.

    The shell runs `text`, and is ended if that takes longer than `seconds`. `found` is called with
    the hosts of each answer, `failed` with the reason if there is none: a sentence without its
    full stop. `slots` is for hosts printed without any.
    """

    def __init__(
        self,
        errands: Errands,
        text: str,
        slots: int | None,
        found: Callable[[Sequence[Host]], None],
        failed: Callable[[str], None],
        seconds: float = DEADLINE_SECONDS,
    ) -> None:
        self._errands = errands
        self._text = text
        self._slots = slots
        self._found = found
        self._failed = failed
        self._seconds = seconds
        self.due: float | None = 0.0

    def advance(self, now: float) -> None:
        """Run it if it is due."""
        if self.due is not None and now >= self.due:
            self.due = None
            self._errands.run(
                "host discovery script", ["/bin/sh", "-c", self._text], self._seconds,
                self._take, os.environ,
            )  # fmt: skip

    def _take(self, outcome: Outcome) -> None:
        self.due = time.monotonic() + PAUSE_SECONDS
        if outcome.failure:
            hint = _HINTS.get(outcome.code, "")
            self._failed(f"{self._text!r} {outcome.failure}{hint and f': {hint}'}")
            return
        try:
            hosts = discovery.parse(outcome.output.decode("utf-8", "replace"), self._slots)
        except LaunchError as error:
            self._failed(str(error).rstrip("."))
        else:
            self._found(hosts)
