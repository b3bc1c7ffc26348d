"""`hvdtune.spark.run_elastic`: a job whose ranks are the Spark tasks that currently exist."""

from __future__ import annotations

import contextlib
import pickle
import secrets
import selectors
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hvdtune.launch import placed
from hvdtune.launch.elastic.actions import End
from hvdtune.launch.elastic.driver.driver import Driver
from hvdtune.launch.elastic.exclusion import Exclusion
from hvdtune.launch.elastic.limits import Limits
from hvdtune.launch.elastic.membership import Membership
from hvdtune.launch.errors import LaunchError
from hvdtune.launch.function import pickling
from hvdtune.launch.remote.link import Listener
from hvdtune.settings import knobs
from hvdtune.spark import cluster as clusters
from hvdtune.spark.course import Output
from hvdtune.spark.elastic.hosts import Hosts
from hvdtune.spark.job import first_lines, late
from hvdtune.spark.order import Order, order_for
from hvdtune.spark.runner import start_seconds, whole
from hvdtune.spark.task import SCHEMA

# The parameters' names by the flags of `hvdtune run`.
_PARAMETERS = {
    "--min-np": "min_num_proc",
    "--max-np": "max_num_proc",
    "--reset-limit": "reset_limit",
    "--elastic-timeout": "elastic_timeout",
    "--start-timeout": "start_timeout",
    "-np": "num_proc",
}


# fmt: off
def run_elastic(
    fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None, min_num_proc: int | None = None, max_num_proc: int | None = None,
    start_timeout: float | None = None, elastic_timeout: float | None = None,
    reset_limit: int | None = None, env: Mapping[str, str] | None = None, stdout: Any = None,
    stderr: Any = None, verbose: int = 1, nics: Collection[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    min_np: int | None = None, max_np: int | None = None,
) -> list[Any]:
    """Call `fn(*args, **kwargs)` in a changing number of Spark tasks; the results, by rank.

    The function must use `hvd.elastic.run`. Spark runs `max_num_proc` tasks, not in barrier mode;
    the job begins with `num_proc` and goes on while `min_num_proc` are left. If a rank fails, its
    task fails, and Spark restarts it until it has failed spark.task.maxFailures times: see
    `hvdtune.spark.conf`. Each rank counts as being on a host of its own. The signature is
    Horovod's.

    Args:
        num_proc: the number of ranks at the start; by default spark.default.parallelism.
        min_num_proc, max_num_proc: by default as many as num_proc; min_np, max_np: old names.
        start_timeout: seconds within which the first tasks must connect; by default
            HOROVOD_SPARK_START_TIMEOUT, or 600.
        elastic_timeout: seconds within which lost ranks must be replaced; by default 600.
        reset_limit: how often the job may be re-formed.

    The other arguments are those of `hvdtune.spark.run`. Raises RuntimeError, with the reason, if
    the job fails, LaunchError (a ValueError) for numbers that contradict each other.
    """
    cluster = clusters.active()
    size = cluster.parallelism() if num_proc is None else whole(num_proc)
    given = [min_num_proc if min_np is None else min_np, max_num_proc if max_np is None else max_np]
    least, most = (size if number is None else whole(number) for number in given)
    start = start_seconds(start_timeout)
    settings = knobs.from_environ()
    patience = 600.0 if elastic_timeout is None else float(elastic_timeout)
    limits = Limits(size, least, most, reset_limit, patience, float(settings.start_timeout))
    with _in_python():
        limits.check()
    call = pickling.call(fn, args, kwargs)
    output = Output(stdout, stderr)

    def say(sentence: str) -> None:
        if verbose >= 1:
            output.say(sentence)

    say(f"Running {size} processes, {least} to {most}...")
    job = placed.new_job()
    interfaces = sorted(nics or ())
    with selectors.DefaultSelector() as selector:
        membership = Membership(limits, Exclusion(None))
        driver = Driver(
            selector,
            membership,
            job=job["HVDTUNE_JOB_ID"],
            secret=job["HVDTUNE_SECRET"],
            heartbeat=float(settings.elastic_heartbeat),
            say=say,
        )
        address = next(iter(cluster.addresses()), "127.0.0.1")
        hosts = Hosts(
            driver, output, prefix_output_with_timestamp, interfaces, address,
            say if verbose >= 2 else lambda _: None,
            size,
        )
        driver.starter = hosts
        key = secrets.token_hex(32)
        listener = Listener(key, hosts.join, hosts.take, hosts.leave)
        order = order_for(
            call, job, env or {}, interfaces, "", cluster.addresses(), listener.port, key, ""
        )
        spark = _SparkJob(cluster, order, most, driver)

        def look() -> None:
            if hosts.most_seen < size and driver.end is None:
                driver.end = End(1, late(hosts.most_seen, size, start))

        timer = threading.Timer(start, driver.post, (look,))
        timer.daemon = True
        timer.start()
        try:
            driver.run()
        finally:
            timer.cancel()
            timer.join()
            driver.stop()
            listener.close()
            spark.end()
            driver.close()
    return _results(driver, membership, hosts)
# fmt: on


@contextlib.contextmanager
def _in_python() -> Iterator[None]:
    try:
        yield
    except LaunchError as error:
        text = str(error)
        for flag, name in _PARAMETERS.items():
            text = text.replace(flag, name)
        raise LaunchError(text) from None


class _SparkJob:
    """The tasks, in a thread of their own. If they end before the job, the job ends."""

    def __init__(self, cluster: clusters.Cluster, order: Order, tasks: int, driver: Driver) -> None:
        self.error = ""
        self._cluster = cluster
        self._driver = driver
        self._tag = f"hvdtune-{secrets.token_hex(8)}"
        self._thread = threading.Thread(
            target=self._run, args=(order, tasks), name="hvdtune-spark-job", daemon=True
        )
        self._thread.start()

    def _run(self, order: Order, tasks: int) -> None:
        why = "all Spark tasks have ended before the job"
        try:
            with self._cluster.tagged(self._tag):
                data = self._cluster.session.range(0, tasks, 1, tasks)
                data.mapInArrow(_mapper(order), SCHEMA).collect()
        except Exception as error:
            why = first_lines(str(error))
        self.error = why
        with contextlib.suppress(OSError):  # the driver has ended
            self._driver.post(self._lose)

    def _lose(self) -> None:
        if self._driver.end is None:
            self._driver.end = End(1, f"Spark job has failed: {self.error}")

    def end(self) -> None:
        """End the remaining tasks."""
        with contextlib.suppress(Exception):
            self._cluster.cancel(self._tag)
        self._thread.join()


def _mapper(order: Order) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def serve_task(batches: Iterable[Any]) -> Iterator[Any]:
        from hvdtune.spark.elastic.task import serve

        for _ in batches:
            pass
        yield from serve(order)  # it yields nothing

    return serve_task


def _results(driver: Driver, membership: Membership, hosts: Hosts) -> list[Any]:
    assert driver.end is not None
    if driver.end.status != 0:
        text = driver.end.text
        for flag, name in _PARAMETERS.items():
            text = text.replace(flag, name)
        reason = hosts.reason()
        raise RuntimeError(f"The job has failed: {text}" + (f"\n{reason}" if reason else ""))
    found: list[str] = []
    while identity := membership.identity_at(membership.generation, len(found)):
        found.append(identity)
    return [pickle.loads(hosts.results[one]) for one in found if one in hosts.results]
