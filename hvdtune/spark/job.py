"""A job in Spark, from the program's side: starts tasks, takes their reports and results."""

from __future__ import annotations

import contextlib
import json
import pickle
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hvdtune.compute_service.errors import TimeoutException
from hvdtune.core.observation.recording import run_finisher
from hvdtune.launch.errors import FAILED
from hvdtune.launch.local.endings import Failure
from hvdtune.launch.remote.link import Listener
from hvdtune.spark.cluster import Cluster
from hvdtune.spark.course import Course
from hvdtune.spark.order import Order
from hvdtune.spark.task import FAILURE, RESULT, SCHEMA

_LOOK_S = 0.2
_TOLD_AFTER_S = 5.0
_DRAIN_S = 2.0  # for output that is still on its way


class Limits(NamedTuple):
    """How many tasks must run, and until when (monotonic seconds, and as the user gave it)."""

    size: int
    until: float
    start_timeout: float


def mapper(order: Order) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """The function that Spark calls in each task, with Arrow batches in and out."""

    # Spark's workers import hvdtune only during the call: if it is missing there, Spark says so.
    def run_rank(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow

        from hvdtune.spark.task import work

        for _ in batches:
            pass
        fields = (("rank", pyarrow.int32()), ("name", pyarrow.string()), ("data", pyarrow.binary()))
        schema = pyarrow.schema(fields)
        for rank, name, data in work(order):
            yield pyarrow.RecordBatch.from_arrays([[rank], [name], [data]], schema=schema)

    return run_rank


def run_job(
    cluster: Cluster, make_order: Callable[[str, int], Order], course: Course, limits: Limits,
    say: Callable[[str], None], timeline: Path | None,
) -> list[Any]:  # fmt: skip
    """The results of the ranks, by rank; the recording is in the file `timeline`.

    `make_order(key, port)` makes the order that tells tasks where this program listens. Raises
    RuntimeError if the job fails, TimeoutException if it does not start in time. The Spark session
    stays usable.
    """
    require_slots(cluster, limits, say)
    key, tag = secrets.token_hex(32), f"hvdtune-{secrets.token_hex(8)}"
    listener = Listener(key, course.join, course.take, course.leave)
    too_late: list[str] = []
    ended = threading.Event()

    def watch() -> None:
        if course.await_all(limits.until):
            return
        # Tasks that run may not have found this program, for example behind a firewall.
        if cluster.runs(tag):
            say(
                "some tasks cannot connect to this program: their output is in the executors' logs."
            )
        elif course.started or cluster.is_heard:
            too_late.append(late(course.started, limits.size, limits.start_timeout))
            cluster.cancel(tag)
            # Spark may not have had the job yet; it would wait without end.
            while not ended.wait(_LOOK_S):
                cluster.cancel(tag)

    watcher = threading.Thread(target=watch, name="hvdtune-spark-start", daemon=True)
    watcher.start()
    try:
        with cluster.tagged(tag):
            try:
                rows = _collect(cluster, make_order(key, listener.port), limits.size)
                course.drain(_DRAIN_S)
            except BaseException:
                with contextlib.suppress(Exception):
                    cluster.cancel(tag)
                raise
    except Exception as error:
        raise _failed(error, course, too_late) from None
    finally:
        course.release()
        ended.set()
        watcher.join()
        listener.close()
    return _results(rows, limits.size, timeline)


def require_slots(cluster: Cluster, limits: Limits, say: Callable[[str], None]) -> None:
    """Raise RuntimeError if there are fewer slots than tasks: Spark would retry for minutes.

    If executors may still be added, wait for them until `limits.until`.
    """
    dynamic = cluster.setting("spark.dynamicAllocation.enabled", "false").lower() == "true"
    told_at = time.monotonic() + _TOLD_AFTER_S
    while not dynamic:
        slots = cluster.slots()
        if slots is None or slots >= limits.size:
            return
        short = (
            f"{limits.size} processes need {limits.size} slots at the same time, and Spark has "
            f"{slots} ({cluster.setting('spark.master')})"
        )
        if cluster.is_local or time.monotonic() >= limits.until:
            raise RuntimeError(
                f"{short}: ask for fewer (num_proc), or start the session with more cores."
            )
        if time.monotonic() >= told_at:
            say(f"{short}; waiting for more, {limits.start_timeout:g} s at most.")
            told_at = limits.until
        time.sleep(_LOOK_S)


def late(started: int, size: int, start_timeout: float) -> str:
    """The text of the error for tasks that have not started in time."""
    return (
        f"Timed out waiting for Spark to start the job: {started} of {size} tasks have started "
        f"within {start_timeout:g} s. All of them must get a slot at the same time; give "
        "start_timeout (or HOROVOD_SPARK_START_TIMEOUT) if that takes longer."
    )


def _collect(cluster: Cluster, order: Order, size: int) -> list[Any]:
    tasks = cluster.session.range(0, size, 1, size)
    rows: list[Any] = tasks.mapInArrow(mapper(order), SCHEMA, barrier=True).collect()
    return rows


def _failed(error: Exception, course: Course, too_late: list[str]) -> Exception:
    if too_late:
        return TimeoutException(too_late[0])
    text = str(error)
    failure = course.failure(hopeless=True)
    told = _told(text)
    why = course.not_started or told.get("why", "")
    if why:
        return RuntimeError(f"The job could not be started: {why}")
    if failure is None and "code" in told:
        failure = Failure(**told)
    if failure is None:
        if "No module named 'hvdtune'" in text:
            return RuntimeError(
                "The job could not be started: hvdtune is not installed for the Python of Spark's "
                "executors (spark.pyspark.python, PYSPARK_PYTHON)."
            )
        return RuntimeError(f"Spark job has failed: {first_lines(text)}")
    sentence = f"The job has failed: {FAILED}: {failure.describe().rstrip()}"
    if failure.loss:
        sentence += f"\nSpark says: {first_lines(text)}"
    return RuntimeError(sentence)


def _told(text: str) -> dict[str, Any]:
    """The data from a task in the exception that Spark passes on; {} if there are none."""
    place = text.find(FAILURE + "{")
    if place < 0:
        return {}
    with contextlib.suppress(ValueError):
        found: dict[str, Any] = json.JSONDecoder().raw_decode(text[place + len(FAILURE) :])[0]
        return found
    return {}


def first_lines(text: str) -> str:
    """The lines of Spark's message before its own stack trace."""
    lines = []
    for line in text.splitlines():
        if line.lstrip().startswith("at ") or line.startswith("JVM stacktrace"):
            break
        lines.append(line)
    return "\n".join(lines[:40]).strip() or "it gives no reason"


def _results(rows: Iterable[Any], size: int, timeline: Path | None) -> list[Any]:
    found: dict[int, bytearray] = {}
    recorded: dict[str, bytearray] = {}
    for row in rows:
        if row["name"] == RESULT:
            found.setdefault(row["rank"], bytearray()).extend(row["data"])
        else:
            recorded.setdefault(row["name"], bytearray()).extend(row["data"])
    if timeline is not None:
        _bring_home(recorded, timeline)
    return [_result(rank, found.get(rank)) for rank in range(size)]


def _result(rank: int, data: bytearray | None) -> Any:
    if data is None:
        raise RuntimeError(f"Rank {rank} exited with code 0 before the function returned.")
    try:
        return pickle.loads(data)
    except Exception as error:
        raise RuntimeError(f"The result of rank {rank} cannot be read here: {error}") from error


def _bring_home(recorded: dict[str, bytearray], timeline: Path) -> None:
    for name, data in recorded.items():
        timeline.with_name(name).write_bytes(data)
    if not recorded:
        raise RuntimeError("Nothing was recorded: the function has not called init().")
    problem = run_finisher(str(timeline))
    if problem:
        raise RuntimeError(f"The job has ended, but {problem}")
