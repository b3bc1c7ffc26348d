"""`hvdtune tune`, started as users start it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support.jobs.ranks import clean_environment, hvdtune_command

from hvdtune.autotune.memory.store import Store
from hvdtune.autotune.report import log

SCRIPT = str(Path(__file__).parents[1] / "rank_programs" / "short_training.py")
ENDLESS = str(Path(SCRIPT).with_name("endless_training.py"))
PATIENCE_S = 120.0  # only matters if something hangs
# Little, but 45 steps at least; the budget only matters if something hangs.
LITTLE = (
    *("--budget", "4m", "--autotune-warmup-samples", "15", "--autotune-steps-per-sample", "3"),
    *("--autotune-bayes-opt-max-samples", "2", "--fusion-threshold-mb", "128"),
    *("--chunk-size", "0"),
)


def tune(
    *arguments: str, env: dict[str, str | None] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        hvdtune_command("tune", *arguments),
        env=clean_environment(env),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
def test_a_short_script_is_run_until_the_end_of_the_search(tmp_path: Path) -> None:
    store, path = tmp_path / "store.json", tmp_path / "log.csv"
    files = ("--autotune-store", str(store), "--autotune-log-file", str(path))
    ended = tune("-np", "2", *LITTLE, *files, "--", sys.executable, SCRIPT, "40")
    assert ended.returncode == 0, ended.stderr
    rows = log.read(path)
    assert [row["phase"] for row in rows[14:17]] == ["warmup", "baseline", "search"]
    assert rows[-1]["phase"] == "final"
    # More steps than one run of the script has.
    cost = re.search(r"; cost: (\d+) steps", ended.stderr)
    assert cost is not None
    assert int(cost[1]) > 40
    assert {row["tensor_fusion_threshold"] for row in rows} == {"128"}
    assert ended.stderr.count("hvdtune autotune: ") == 1
    assert rows[-1]["decision"] in ended.stderr
    if "remembered as" not in ended.stderr:
        # So rough was the machine that nothing is certain.
        assert rows[-1]["accepted"] == "0"
        assert not store.exists()
        return
    [profile] = Store(store).read().values()
    assert profile.program == "short_training.py"
    assert profile.identity["work"] == {"tensors": 10, "bytes": 40_000}


def test_a_program_that_fails_is_shown(tmp_path: Path) -> None:
    ended = tune("-np", "2", *LITTLE, sys.executable, SCRIPT, "30", "fail")
    assert ended.returncode == 1
    assert "hvdtune tune: the program ended with exit status 3." in ended.stderr
    assert "about to fail" in ended.stderr
    assert ended.stdout == ""


@pytest.mark.long
def test_a_long_name_of_the_folder_for_temporary_files(tmp_path: Path) -> None:
    """A socket's path may have 107 bytes; this folder's has more."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    ended = tune(
        "-np", "2", *LITTLE, sys.executable, SCRIPT, "40", env={"TMPDIR": str(folder)}
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("hvdtune autotune: ") == 1
    assert list(folder.iterdir()) == []


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_nothing_is_left_of_a_job_whose_tuner_is_killed(tmp_path: Path) -> None:
    folder, temporary = tmp_path / "pids", tmp_path / "tmp"
    folder.mkdir()
    temporary.mkdir()
    with subprocess.Popen(
        hvdtune_command("tune", "-np", "2", sys.executable, ENDLESS, str(folder)),
        env=clean_environment({"TMPDIR": str(temporary)}),
        stderr=subprocess.DEVNULL,
    ) as tuner:
        try:
            wait_until(lambda: len(list(folder.iterdir())) == 2, "the ranks have not started")
            started = psutil.Process(tuner.pid).children(recursive=True)
            ranks = {int(path.name) for path in folder.iterdir()}
            assert ranks <= {process.pid for process in started}
            assert len(started) > 2, "the launcher is there, too"
        finally:
            tuner.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(map(is_running, started)), "something still runs")
    assert list(temporary.iterdir()) == []


def is_running(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
