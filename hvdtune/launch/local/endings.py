"""How the launcher words the end of a worker."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import NamedTuple


class Failure(NamedTuple):
    """The worker whose end ends the job.

    `code` is its exit code, or -N if signal N killed it. `last_lines` are the last lines it wrote,
    both streams together. `loss`, if its end is unknown, says how the launcher lost it; `pid` is 0
    if it is not known.
    """

    rank: int
    hostname: str
    pid: int
    code: int
    last_lines: Sequence[str]
    loss: str = ""

    @property
    def status(self) -> int:
        """The exit status a shell would report: the exit code, or 128 + the signal's number."""
        return exit_status(self.code)

    def cause(self) -> str:
        """What happened, as the end of a sentence that begins with the rank."""
        return self.loss or cause_of_end(self.code)

    def describe(self) -> str:
        """The report printed when the job has ended; it ends with a newline."""
        where = f"pid {self.pid} on {self.hostname}" if self.pid else f"on {self.hostname}"
        sentence = f"rank {self.rank} ({where}) {self.cause()}"
        if not self.last_lines:
            return f"{sentence}. It had printed nothing.\n"
        lines = "".join(f"    {line}\n" for line in self.last_lines)
        return f"{sentence}. Its last lines of output:\n{lines}"


def cause_of_end(code: int) -> str:
    """How a process ended, as the end of a sentence; `code` is -N if signal N killed it."""
    if code >= 0:
        return f"exited with code {code}"
    words = f"was killed by {signal_name(-code)}"
    if -code == signal.SIGKILL:
        words += " (the kernel sends it too when memory runs out)"
    return words


def exit_status(code: int) -> int:
    """Exit code, or 128 + N for a process that signal N killed (`code` is -N)."""
    return code if code >= 0 else 128 - code


def signal_name(number: int) -> str:
    """ "SIGKILL" for 9; "signal 40" if it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
