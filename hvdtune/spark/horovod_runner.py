"""`HorovodRunner`, the class with which notebooks on Databricks start Horovod (from sparkdl)."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import Any

from hvdtune.launch.errors import LaunchError
from hvdtune.launch.function.call_site import run as run_here
from hvdtune.spark import cluster as clusters
from hvdtune.spark.runner import run

_VERBOSITIES = ("log_callback_only", "all")
#: In the ranks' environment: show only the messages of `log_to_driver`.
_ONLY_LOGGED = "HVDTUNE_SPARK_ONLY_LOGGED"
#: The prefix of each line that is shown.
_MARK = "\x02hvdtune log\x03"


def log_to_driver(message: object) -> None:
    """Show a message where `HorovodRunner.run` was called, regardless of `driver_log_verbosity`.

    Call this in the ranks; each line is prefixed with the rank. Anywhere else it prints the
    message.
    """
    mark = _MARK if _ONLY_LOGGED in os.environ else ""
    text = "".join(f"{mark}{line}\n" for line in str(message).splitlines() or [""])
    sys.stdout.write(text)
    sys.stdout.flush()


class _Logged(io.TextIOBase):
    """A stream that shows marked lines and drops all others."""

    def write(self, text: str) -> int:
        """Take whole lines, each prefixed with its rank."""
        for line in text.splitlines():
            before, mark, message = line.partition(_MARK)
            if mark:
                print(before[: before.find(">:") + 2] + message, flush=True)
        return len(text)


class HorovodRunner:
    """Runs a function on `np` ranks.

    `np` > 0: in that many Spark tasks; 0: in as many as the cluster has slots; < 0: in -np
    processes on this machine, without Spark. `driver_log_verbosity` "all" shows what the ranks
    print in Spark; "log_callback_only", the default, shows the messages of `log_to_driver`, and the
    last lines of a rank that fails. Output of processes on this machine is always shown.
    """

    def __init__(self, *, np: int, driver_log_verbosity: str = "log_callback_only") -> None:
        if isinstance(np, bool) or not isinstance(np, int):
            raise LaunchError(f"np={np!r} is not accepted: give a whole number.")
        if driver_log_verbosity not in _VERBOSITIES:
            raise LaunchError(
                f"driver_log_verbosity={driver_log_verbosity!r} is not accepted: give "
                f"{' or '.join(map(repr, _VERBOSITIES))}."
            )
        self.num_processor = np
        self.driver_log_verbosity = driver_log_verbosity

    def run(self, main: Callable[..., Any], **kwargs: Any) -> Any:
        """Call `main(**kwargs)` on each rank; return what it returned on rank 0.

        Raises what `hvdtune.spark.run` raises.
        """
        if self.num_processor < 0:
            return run_here(main, kwargs=kwargs, num_proc=-self.num_processor)[0]
        size = self.num_processor
        if size == 0:
            cluster = clusters.active()
            size = cluster.slots() or cluster.parallelism()
        if self.driver_log_verbosity == "all":
            return run(main, kwargs=kwargs, num_proc=size)[0]
        with open(os.devnull, "w") as nowhere:
            return run(
                main, kwargs=kwargs, num_proc=size, env={_ONLY_LOGGED: "1"},
                stdout=_Logged(), stderr=nowhere,
            )[0]  # fmt: skip
