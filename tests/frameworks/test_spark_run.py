"""Jobs in Spark: a classic session with two slots, and Spark Connect."""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("pyspark", reason="Spark is not installed")
pytest.importorskip("pyarrow", reason="PyArrow is not installed")
if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
    pytest.skip("Java is not installed", allow_module_level=True)

from rank_programs import spark_jobs
from support import spark_programs
from support.spark_sessions import MARK

from hvdtune.launch.errors import FAILED, LaunchError
from hvdtune.spark import HorovodRunner, cluster, log_to_driver, run, runner
from hvdtune.timeline import api

pytestmark = [
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
    pytest.mark.timeout(600),
]


@pytest.fixture
def session(classic_spark: Any) -> Any:
    """A classic session: local[2]."""
    classic_spark.sparkContext.setLogLevel("OFF")
    return classic_spark


@pytest.fixture(autouse=True)
def nothing_left_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the place of conftest's: the JVM and workers stay, `classic_spark` looks at the end."""
    monkeypatch.setenv("HVDTUNE_AUTOTUNE_STORE", "")
    monkeypatch.setenv("HVDTUNE_TEST_DIRECTORY", str(tmp_path))


@pytest.fixture
def no_ranks_left(session: Any) -> Iterator[None]:
    """Fail a test of which a rank, or its agent, is left."""
    yield
    deadline = time.monotonic() + 10.0
    while (left := ranks()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


def ranks() -> list[psutil.Process]:
    """The ranks of Spark's, and their agents, that are there now."""
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
            if "hvdtune.launch." in words and process.environ().get(MARK) == os.environ.get(MARK):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.usefixtures("session", "no_ranks_left")
def test_results_come_by_rank_and_output_with_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--fast"])
    out, err = io.StringIO(), io.BytesIO()
    found = run(
        spark_jobs.allreduce, (2.0,), {"offset": 1.0}, num_proc=2,
        env={"GIVEN_BY_THE_TEST": "yes"}, stdout=out, stderr=err, verbose=2,
        use_mpi=True, extra_mpi_args="-x A",
    )  # fmt: skip
    assert [one["rank"] for one in found] == [0, 1]
    for one in found:
        assert (one["size"], one["local_size"], one["sum"]) == (2, 2, 3.0 + 5.0)
        assert one["environment"] == "yes"
        assert one["argv"] == ["train.py", "--fast"]
    assert found[0]["parents"][1] != found[1]["parents"][1]
    assert sorted(out.getvalue().splitlines()) == [
        f"[{rank}]<stdout>:rank {rank} has a sum" for rank in range(2)
    ]
    told = err.getvalue().decode().splitlines()
    assert told[0].startswith("hvdtune.spark: use_mpi and extra_mpi_args have no effect")
    assert "hvdtune.spark: Running 2 processes..." in told
    for rank in range(2):
        assert f"[{rank}]<stderr>:rank {rank} is done" in told
        assert any(f"rank {rank} started on {os.uname().nodename}, pid " in line for line in told)
        assert f"hvdtune.spark: rank {rank} ended with exit code 0" in told
    assert not any("no effect: it is for Horovod on Spark" in line for line in told)


@pytest.mark.usefixtures("session", "no_ranks_left")
@pytest.mark.parametrize("torch", [False, pytest.param(True, marks=pytest.mark.long)])
def test_as_many_ranks_as_there_are_slots_are_recorded(tmp_path: Path, torch: bool) -> None:
    """With PyTorch on request: an estimator trains in Spark, too (test_spark_estimators)."""
    out = io.StringIO()
    file = tmp_path / "timeline.json"
    function, args = (spark_jobs.train, (5,)) if torch else (spark_jobs.allreduce, (1.0,))
    found = run(
        function, args, stdout=out, stderr=out, timeline=file, prefix_output_with_timestamp=True
    )
    if torch:
        assert found[0] == found[1]
        assert found[0][-1] < found[0][0]
    else:
        assert [one["sum"] for one in found] == [3.0, 3.0]
    assert "Running 2 processes (inferred from spark.default.parallelism)" in out.getvalue()
    assert [each.name for each in tmp_path.iterdir()] == ["timeline.json"]
    assert sorted(api.read(file).recording.ranks) == [0, 1]


ENDS = {
    "raise": "exited with code 1",
    "exit": "exited with code 9",
    "kill": "was killed by SIGKILL",
    "kill the task": "was lost: the Spark task that ran it has ended",
}


@pytest.mark.usefixtures("no_ranks_left")
@pytest.mark.parametrize("how", ENDS)
def test_the_end_of_a_rank_is_an_error_that_names_it(session: Any, how: str) -> None:
    out = io.StringIO()
    with pytest.raises(RuntimeError) as raised:
        run(spark_jobs.end_badly, (how,), num_proc=2, stdout=out, stderr=out)
    told = str(raised.value)
    assert told.startswith(f"The job has failed: {FAILED}: rank 1 (pid "), told
    assert f" on {os.uname().nodename}) {ENDS[how]}" in told
    assert ("ValueError: rank 1 has a reason" in told) == (how == "raise")
    if how == "kill the task":  # who may have had no time to pass the words on
        assert "Spark says: " in told
    else:
        assert "the last words of rank 1" in told
        assert "[1]<stdout>:the last words of rank 1" in out.getvalue()
    # Spark has not tried again, and can do something else.
    assert out.getvalue().count("the last words") <= 1
    assert session.range(10).count() == 10


@pytest.mark.usefixtures("session", "no_ranks_left")
def test_what_cannot_work_is_said_at_once() -> None:
    out = io.StringIO()
    with pytest.raises(RuntimeError, match=r"^3 processes need 3 slots .* Spark has 2 \(local\[2"):
        run(spark_jobs.allreduce, (1.0,), num_proc=3, stderr=out)
    with pytest.raises(LaunchError, match=r"^num_proc=0 is not accepted"):
        run(spark_jobs.allreduce, num_proc=0)
    with pytest.raises(LaunchError, match=r"^timeline='/nowhere/t.json': there is no folder"):
        run(spark_jobs.allreduce, num_proc=2, timeline="/nowhere/t.json", stderr=out)
    with pytest.raises(TypeError, match="function to call, not 'train'"):
        run("train", num_proc=2)
    with pytest.raises(TypeError, match="cannot be sent to the workers"):
        run(spark_jobs.allreduce, (threading.Lock(),), num_proc=2)
    with pytest.raises(LaunchError, match=r"^start_timeout=-1 is not accepted"):
        run(spark_jobs.allreduce, num_proc=2, start_timeout=-1)


@pytest.mark.usefixtures("no_ranks_left")
def test_tasks_that_do_not_start_in_time_are_an_error(
    session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from horovod.runner.common.util.timeout import TimeoutException

    monkeypatch.setenv("HOROVOD_SPARK_START_TIMEOUT", "1")
    (tmp_path / "busy").touch()
    busy = str(tmp_path / "busy")

    def wait(_: Any) -> None:
        while os.path.exists(busy):
            time.sleep(0.05)

    rest = session.sparkContext.parallelize([0], 1)
    other = threading.Thread(target=rest.foreach, args=(wait,))
    other.start()
    try:
        with pytest.raises(TimeoutException, match=r"0 of 2 tasks have started within 1 s"):
            run(spark_jobs.allreduce, (1.0,), num_proc=2, stderr=io.StringIO())
    finally:
        (tmp_path / "busy").unlink()
        other.join()


@pytest.mark.usefixtures("session", "no_ranks_left")
def test_a_rank_that_leaves_early_has_returned_nothing() -> None:
    with pytest.raises(RuntimeError, match=r"^Rank 1 exited with code 0 before the function"):
        run(spark_jobs.leave_early, num_proc=2, verbose=0)


@pytest.mark.usefixtures("session", "no_ranks_left")
def test_horovod_runner(capfd: pytest.CaptureFixture[str]) -> None:
    def main(factor: float) -> float:
        found = spark_jobs.allreduce(factor)
        log_to_driver(f"here is\n{found['rank']}")
        return float(found["sum"])

    assert HorovodRunner(np=2).run(main, factor=1.0) == 3.0
    shown = capfd.readouterr()
    logged = [f"[{rank}]<stdout>:{line}" for rank in range(2) for line in ("here is", rank)]
    assert sorted(shown.out.splitlines()) == sorted(logged)
    assert "has a sum" not in shown.err
    assert HorovodRunner(np=-2, driver_log_verbosity="all").run(main, factor=2.0) == 6.0
    shown = capfd.readouterr()
    assert "[1]<stdout>:rank 1 has a sum" in shown.out
    assert "[1]<stdout>:here is\n" in shown.out
    with pytest.raises(LaunchError, match="driver_log_verbosity='loud' is not accepted"):
        HorovodRunner(np=2, driver_log_verbosity="loud")


def test_without_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark import SparkContext

    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    with pytest.raises(Exception, match=r"^Could not find an active SparkContext, are you running"):
        run(spark_jobs.allreduce, (1.0,), num_proc=2)


@pytest.mark.parametrize(
    ("master", "cpus", "slots"),
    [
        ("local", 1, 1),
        ("local[3]", 1, 3),
        ("local[5, 2]", 2, 2),
        ("local-cluster[2,3,1024]", 1, 6),
        ("local-cluster[2,3,1024]", 2, 2),
        ("local[*]", 1, os.cpu_count()),
        ("spark://host:7077", 1, None),
        ("yarn", 1, None),
    ],
)
def test_slots_that_a_master_names(master: str, cpus: int, slots: int | None) -> None:
    assert cluster.slots_of(master, cpus) == slots


def test_spark_connect(tmp_path: Path) -> None:
    found = spark_programs.run("spark_connect", tmp_path)
    assert found["classic"] is False
    assert [one["sum"] for one in found["results"]] == [3.0, 3.0]
    assert found["output"] == [f"[{rank}]<stdout>:rank {rank} has a sum" for rank in range(2)]
    assert found["failure"].startswith(f"The job has failed: {FAILED}: rank 1 (pid ")
    assert "exited with code 9" in found["failure"]
    assert found["too few"].startswith("3 processes need 3 slots at the same time, and Spark has 2")
    assert found["count"] == 10
    assert found["alias"] is True
    losses = found["estimate"]["losses"]
    assert losses[-1] < losses[0] / 2
    assert found["estimate"]["schema"] == "struct<x:vector,y:double,y__output:double>"
    assert len(found["estimate"]["errors"]) == 40
    assert max(found["estimate"]["errors"]) < 1
    assert found["refused"].endswith("horovod.spark.run() starts jobs in Spark.")


@pytest.mark.usefixtures("session", "no_ranks_left")
def test_tasks_that_run_unheard_are_not_ended(monkeypatch):
    make = runner.order_for
    monkeypatch.setattr(runner, "order_for", lambda *args: make(*args)._replace(port=1))

    def slow() -> str:
        time.sleep(9)
        return os.environ["HOROVOD_RANK"]

    err = io.StringIO()
    # Spark brings its count of running tasks up to date with heartbeats, here every second.
    assert run(slow, num_proc=2, start_timeout=6, stderr=err) == ["0", "1"]
    assert "tasks cannot connect to this program" in err.getvalue()


@pytest.mark.usefixtures("session", "no_ranks_left")
def test_a_job_that_fails_leaves_no_recording(tmp_path):
    name = f"left-{os.getpid()}.json"
    with pytest.raises(RuntimeError, match="rank 1 has a reason"):
        run(
            spark_jobs.end_badly,
            ("raise",),
            num_proc=2,
            verbose=0,
            stdout=io.StringIO(),
            stderr=io.StringIO(),
            timeline=tmp_path / name,
        )

    def left() -> list[Path]:
        return list(Path(tempfile.gettempdir()).glob(f"hvdtune-*/left-{os.getpid()}*"))

    deadline = time.monotonic() + 10
    while left() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left()
