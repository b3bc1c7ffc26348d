"""The signals that a job receives while it runs: noted, and reported when it next looks."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
from types import FrameType

from hvdtune.launch.local.guard import ENDING_SIGNALS, FORWARDED_SIGNALS


class Signals:
    """From now on each signal wakes `selector`; `noted` has those not dealt with yet.

    SIGCHLD wakes it as well.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self.noted: list[int] = []
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        selector.register(read_end, selectors.EVENT_READ, lambda: _drain(read_end))

        def note(number: int, _frame: FrameType | None) -> None:
            self.noted.append(number)

        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        handled = (*ENDING_SIGNALS, *FORWARDED_SIGNALS)
        signals = {n for n in handled if signal.getsignal(n) != signal.SIG_IGN}
        signals.add(signal.SIGTERM)  # even if ignored: it reports our parent's death
        for number in signals:
            signal.signal(number, note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)

    @property
    def ask_to_end(self) -> bool:
        """Whether a noted signal asks the job to end."""
        return any(number in ENDING_SIGNALS for number in self.noted)


def _drain(descriptor: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(descriptor, 4096):
            pass
