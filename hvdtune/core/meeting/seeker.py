"""What a means of meeting needs to know about the process that uses it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from hvdtune.core.topology import Topology


class Failed(ValueError):
    """A means did not transfer rank 0's text; the message says why, without the text."""


class TooLate(Failed):
    """The deadline passed before all processes had come."""


class Seeker(NamedTuple):
    """A process that sends rank 0's text to the others, or waits for it.

    `rank` and `size` are the launcher's numbers, and so is `root`, the process that is rank 0 of
    the job (another one if init() got a list of ranks). `number` counts the texts that these
    processes have exchanged before. `deadline` is a time of time.monotonic().
    """

    environ: Mapping[str, str]
    topology: Topology
    rank: int
    size: int
    root: int
    number: int
    deadline: float
    mpi_library: str = ""
    mpi_multiple: bool = True

    @property
    def tells(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == self.root

    def job_key(self) -> str:
        """A name for the text, if the launcher's name for the job is the same on all hosts."""
        import hashlib  # only here: it loads OpenSSL

        return hashlib.sha256(self.topology.job_id.encode()).hexdigest()[:16]

    def seconds_left(self) -> float:
        """Seconds until the deadline; not below 0."""
        return max(0.0, self.deadline - time.monotonic())
