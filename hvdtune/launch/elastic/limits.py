"""What the user allows an elastic job."""

from __future__ import annotations

from typing import NamedTuple

from hvdtune.launch.errors import LaunchError

MOST_PROCESSES = 1024  # as many as the engine connects


class Limits(NamedTuple):
    """Numbers of processes, and seconds.

    The job waits for `processes` slots, uses all there are up to `most` (None: as many as the
    engine connects), and never trains with fewer than `least`. It keeps `spares` processes
    beyond `most` ready. `resets`: how often it may form anew (None: no limit). No process waits for
    others longer than `elastic_timeout`. A newcomer that is ready in its elastic function waits at
    most `start_timeout` for those that were started together with it. `replaces_failed`: a failure
    costs a process, not its whole host; None means no, and that the user has no choice.
    `straggler_seconds`: a process that has held the others up in steps that together took this
    long is replaced (None: none is).
    """

    processes: int
    least: int
    most: int | None = None
    resets: int | None = None
    elastic_timeout: float = 600.0
    start_timeout: float = 30.0
    spares: int = 0
    replaces_failed: bool | None = None
    straggler_seconds: float | None = None

    def check(self) -> None:
        """Raise `LaunchError`, naming the flags, if the numbers contradict each other."""
        if self.least < 1:
            raise LaunchError(f"--min-np {self.least} is not accepted: give 1 or more.")
        if self.processes < self.least:
            raise LaunchError(
                f"-np {self.processes} is less than --min-np {self.least}: the job could not start."
            )
        if (self.most or self.processes) > MOST_PROCESSES:
            raise LaunchError(
                f"{self.most or self.processes} processes are too many: at most {MOST_PROCESSES} "
                "train together."
            )
        if self.most is not None and self.most < self.processes:
            raise LaunchError(
                f"--max-np {self.most} is less than the {self.processes} processes of -np."
            )
        if self.resets is not None and self.resets < 0:
            raise LaunchError(f"--reset-limit {self.resets} is not accepted: give 0 or more.")
        if self.spares < 0:
            raise LaunchError(f"--spares {self.spares} is not accepted: give 0 or more.")
        if self.spares and self.most is None:
            raise LaunchError(
                "--spares needs --max-np: spares are the processes beyond it, and without it all "
                "processes train."
            )
