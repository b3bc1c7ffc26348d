"""A worker as the launcher knows it: where it runs, its output, how it ended."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections import deque
from typing import TYPE_CHECKING

from hvdtune.launch.allocation.hosts import Slot
from hvdtune.launch.local.endings import Failure
from hvdtune.launch.local.output import TAIL_LINES, WorkerStream

if TYPE_CHECKING:
    from hvdtune.launch.remote.connection import Connection

PEER_ERROR = "HorovodInternalError"


class Worker:
    """A worker on this host, with its `process`, or one reached over a `connection`.

    `number` is its own in the job, `slot` its place when it started. `code` is its exit code once
    it has ended, -N for signal N; `loss` says why its end is unknown. `left`: nobody waits for its
    end any more.
    """

    def __init__(
        self,
        number: int,
        slot: Slot,
        process: subprocess.Popen[bytes] | None = None,
        connection: Connection | None = None,
    ) -> None:
        self.number = number
        self.slot = slot
        self.process = process
        self.connection = connection
        self.pid = process.pid if process else 0
        self.code: int | None = None
        self.loss = ""
        self.left = False
        self.streams: list[WorkerStream] = []
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)

    @property
    def running(self) -> bool:
        """Whether it has not ended, as far as is known, and its end is waited for."""
        return self.code is None and not self.left

    def signal(self, number: int, group: bool = False) -> None:
        """Send the worker, or its process group, a signal, if that is allowed."""
        if self.connection is not None:
            self.connection.signal(self.number, number, group)
        else:
            # A worker that sudo has started runs as another user.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                (os.killpg if group else os.kill)(self.pid, number)

    def may_be_signalled(self) -> bool:
        """Whether `signal` has an effect, if the worker runs."""
        try:
            if self.connection is None:
                os.kill(self.pid, 0)
        except PermissionError:
            return False
        except ProcessLookupError:
            pass
        return True

    def innocence(self) -> int:
        """How likely a failed worker is to have failed because of another: 0, 1 or 2.

        0: it was killed by a signal or lost with its host; 1: it exited with an error; 2: it exited
        with the error that reports another worker's end.
        """
        assert self.code is not None
        if self.code < 0 or self.loss:
            return 0
        return 2 if any(PEER_ERROR in line for line in self.tail) else 1

    def failure(self) -> Failure:
        """How it has ended, for people."""
        assert self.code is not None
        return Failure(
            self.slot.rank, self.slot.hostname, self.pid, self.code, [*self.tail], self.loss
        )
