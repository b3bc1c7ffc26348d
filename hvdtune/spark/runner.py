"""`hvdtune.spark.run`: the arguments of a job in Spark."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from hvdtune.launch import placed
from hvdtune.launch.errors import LaunchError
from hvdtune.launch.function import pickling
from hvdtune.spark import cluster as clusters
from hvdtune.spark.course import Course, Output
from hvdtune.spark.job import Limits, run_job
from hvdtune.spark.order import Order, order_for

_START_TIMEOUT = "HOROVOD_SPARK_START_TIMEOUT"
_START_TIMEOUT_S = 600.0


# fmt: off
def run(
    fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None, start_timeout: float | None = None,
    use_mpi: bool | None = None, use_gloo: bool | None = None, extra_mpi_args: str | None = None,
    env: Mapping[str, str] | None = None, stdout: Any = None, stderr: Any = None, verbose: int = 1,
    nics: Collection[str] | None = None, prefix_output_with_timestamp: bool = False,
    executable: str | None = None, timeline: str | os.PathLike[str] | None = None,
) -> list[Any]:
    """Call `fn(*args, **kwargs)` in `num_proc` Spark tasks; return the results, by rank.

    Spark starts all tasks together (barrier mode), and each runs the function in a new Python
    process, a rank of the job. Ranks are numbered host by host, beginning with task 0's. Their
    output appears here with their rank before each line. Function, arguments and results are
    pickled by cloudpickle. The signature is Horovod's, except `timeline`.

    Args:
        num_proc: how many; by default spark.default.parallelism.
        start_timeout: seconds within which all tasks must run; by default
            HOROVOD_SPARK_START_TIMEOUT, or 600.
        env: variables for the ranks, in addition to those of their Spark executor.
        stdout, stderr: streams of text or bytes for the ranks' output; by default this
            program's.
        verbose: 0: nothing; 1: how many processes run; 2: also where each starts and ends.
        nics: names of the network interfaces to use between hosts.
        prefix_output_with_timestamp: put the time before each line of output.
        executable: the Python of the ranks; by default their Spark executor's.
        timeline: a file here for the joined recording of all ranks.
        use_mpi, use_gloo, extra_mpi_args: accepted; hvdtune's own engine connects the ranks.

    Raises Exception if there is no Spark session; RuntimeError with rank, host, exit code and last
    lines if a rank fails, and if Spark has too few slots; TimeoutException if the tasks do not all
    start in time; TypeError if something cannot be pickled. Nothing is run twice, nothing is left,
    and the session can be used afterwards.
    """
    cluster = clusters.active()
    output = Output(stdout, stderr)

    def say(sentence: str) -> None:
        if verbose >= 1:
            output.say(sentence)

    if use_mpi or extra_mpi_args:
        say("use_mpi and extra_mpi_args have no effect: hvdtune connects the ranks itself.")
    inferred = num_proc is None
    size = cluster.parallelism() if num_proc is None else whole(num_proc)
    call = pickling.call(fn, args, kwargs)
    timeout = start_seconds(start_timeout)
    limits = Limits(size, time.monotonic() + timeout, timeout)
    by = " (inferred from spark.default.parallelism)" if inferred else ""
    say(f"Running {size} processes{by}...")
    file = None if timeline is None else _place(timeline)

    def make_order(key: str, port: int) -> Order:
        recording = file.name.removesuffix(".gz") if file is not None else ""
        return order_for(
            call, placed.new_job(), env or {}, sorted(nics or ()), executable or "",
            cluster.addresses(), port, key, recording,
        )

    course = Course(size, output, prefix_output_with_timestamp, int(verbose))
    return run_job(cluster, make_order, course, limits, say, file)
# fmt: on


def whole(count: Any) -> int:
    """A valid number of processes. Raises `LaunchError`."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise LaunchError(f"num_proc={count!r} is not accepted: give a whole number, 1 or more.")
    return count


def start_seconds(given: float | None) -> float:
    """The seconds given, or those of HOROVOD_SPARK_START_TIMEOUT, or 600."""
    text = os.environ.get(_START_TIMEOUT) if given is None else given
    try:
        seconds = _START_TIMEOUT_S if text in (None, "") else float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        name = _START_TIMEOUT if given is None else "start_timeout"
        raise LaunchError(f"{name}={text!r} is not accepted: give seconds, more than 0.")
    return seconds


def _place(timeline: str | os.PathLike[str]) -> Path:
    """The recording's path; checks that its folder exists."""
    path = Path(timeline).absolute()
    if not path.parent.is_dir():
        raise LaunchError(f"timeline={os.fspath(timeline)!r}: there is no folder {path.parent}.")
    return path
