"""`hvdtune bench` with real ranks: what it prints, writes, and how it ends."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from support.jobs.ranks import clean_environment, hvdtune_command, new_directory
from support.tiers import long_too

SIZES = [4, 4096, 4 << 20]
SMALL = ("--np", "2", "-b", "4", "-e", "4M", "-f", "1024", "--iters", "3", "--warmup", "1")


def bench(*arguments: str, status: int = 0, **variables: str) -> tuple[str, str]:
    """What the command printed to standard output and to the error stream."""
    done = subprocess.run(
        hvdtune_command("bench", *arguments),
        env=clean_environment() | variables,
        cwd=new_directory(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout, done.stderr


def rows(printed: str) -> list[list[str]]:
    return [line.split() for line in printed.splitlines() if line and not line.startswith("#")]


def test_table_and_files_say_the_same() -> None:
    folder = new_directory()
    files = [f"--{kind}={folder / ('out.' + kind)}" for kind in ("json", "csv", "html")]
    printed, errors = bench(*SMALL, "--workload", "resnet50,tiny", *files)
    assert errors == ""
    table = rows(printed)
    assert [int(row[0]) for row in table[:3]] == SIZES
    assert all(row[2:5] == ["float32", "sum", "-1"] for row in table[:3])
    assert all(row[8] == row[12] == "0" for row in table[:3])
    assert [row[0] for row in table[3:]] == ["ResNet-50", "1000"]
    assert "# Out of bounds values : 0 OK" in printed
    assert "# Advice: " in printed.splitlines()[-1]

    data = json.loads((folder / "out.json").read_text())
    assert data["ranks"] == 2
    assert data["wrong"] == 0
    assert [row["size_bytes"] for row in data["sweep"]] == SIZES
    assert all(row["in_place"]["time"]["iterations"] == 3 for row in data["sweep"])
    assert [row["tensors"] for row in data["workloads"]] == [161, 1000]
    assert data["environment"]["settings"]["fusion_threshold"] > 0
    assert all(point["copy_rate"] > 0 for point in data["memory"]["points"])
    # 4 MiB is large enough for a share; the printed one is the same, rounded.
    assert table[2][15] == f"{100 * data['sweep'][2]['in_place']['share']:.0f}%"

    with (folder / "out.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 2 * 3 + 2
    assert {line["wrong"] for line in lines} == {"0"}
    assert (folder / "out.html").read_text().count('class="plot"') == 3


@pytest.mark.parametrize(
    ("operation", "dtype", "sizes", "redop", "root"),
    [
        ("allgather", "int32", [12, 3072], "none", "-1"),
        pytest.param("broadcast", "float64", [8, 2048], "none", "0", marks=pytest.mark.long),
        pytest.param("alltoall", "uint8", [6, 1536], "none", "-1", marks=pytest.mark.long),
        ("reducescatter", "float16", [6, 1536], "sum", "-1"),
    ],
)
def test_other_operations(operation, dtype, sizes, redop, root) -> None:
    limits = ("-b", str(sizes[0]), "-e", str(sizes[1]), "-f", "256", "--iters", "2")
    printed, _ = bench("--np", "3", "--op", operation, "-d", dtype, *limits)
    table = rows(printed)
    assert [int(row[0]) for row in table] == sizes
    assert all(row[2:5] == [dtype, redop, root] for row in table)
    assert all(row[8] == "0" for row in table)


def test_barrier_has_no_bandwidth() -> None:
    printed, _ = bench("--np", "2", "--op", "barrier", "--iters", "5")
    (row,) = rows(printed)
    assert row[:2] == ["0", "0"]
    assert row[6:9] == ["N/A", "N/A", "0"]


def test_ranks_are_on_this_machine_also_within_lsf() -> None:
    words = ("--np", "2", "--op", "barrier", "--iters", "5")
    printed, _ = bench(*words, LSB_JOBID="1", LSB_MCPU_HOSTS="far.invalid 8")
    assert len(rows(printed)) == 1


def test_one_rank_and_no_check() -> None:
    arguments = ("--np", "1", "-e", "64", "--iters", "2", "--no-check", "--workload", "none")
    printed, _ = bench(*arguments)
    assert all(row[7:9] == ["N/A", "N/A"] for row in rows(printed))
    assert "# Out of bounds values : not checked" in printed


def test_more_ranks_than_cpus_are_warned_about() -> None:
    arguments = ("-e", "4", "--iters", "2", "--workload", "none")
    command = [
        "taskset",
        "-c",
        str(min(os.sched_getaffinity(0))),
        *hvdtune_command("bench", "--np", "2"),
    ]
    done = subprocess.run(
        [*command, *arguments],
        env=clean_environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "# Warning: 2 ranks share 1 usable CPU; they take turns" in done.stdout


def test_timeline_is_written() -> None:
    trace = new_directory() / "t.json"
    bench(*SMALL, "--workload", "none", "--timeline", str(trace))
    assert "hvdtune_identity" in trace.read_text()


def test_settings_from_the_environment_reach_the_ranks() -> None:
    path = new_directory() / "a.json"
    bench(*SMALL, "--workload", "none", "--json", str(path), HOROVOD_FUSION_THRESHOLD="1048576")
    assert json.loads(path.read_text())["environment"]["settings"]["fusion_threshold"] == 1 << 20


def test_a_bad_setting_ends_the_bench_with_its_reason() -> None:
    arguments = (*SMALL, "--workload", "none")
    _, errors = bench(*arguments, status=2, HOROVOD_CYCLE_TIME="soon")
    assert "HOROVOD_CYCLE_TIME" in errors
    assert "Traceback" not in errors


@pytest.mark.long
def test_a_killed_rank_is_named_and_what_was_measured_is_kept() -> None:
    folder = new_directory()
    arguments = ("--np", "3", "-e", "4", "-n", "5", "--workload", "vgg16", "--json", "a.json")
    with subprocess.Popen(
        hvdtune_command("bench", *arguments, "--html", "a.html"),
        env=clean_environment(), cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        while " float32 " not in (line := process.stdout.readline()):
            assert line, process.communicate()
        kill_one_rank(process.pid)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL
    assert "was killed by SIGKILL" in errors
    assert "Traceback" not in errors
    assert "hvdtune bench: the ranks ended with status 137 before" in errors
    data = json.loads((folder / "a.json").read_text())
    assert [row["size_bytes"] for row in data["sweep"]] == [4]
    assert (folder / "a.html").exists()


def kill_one_rank(bench_process: int) -> None:
    ranks = [
        child
        for child in psutil.Process(bench_process).children(recursive=True)
        if any("hvdtune.bench.worker" in word for word in child.cmdline()[:3])
    ]
    assert len(ranks) == 3
    max(ranks, key=lambda rank: rank.pid).kill()


@pytest.mark.parametrize("number", long_too(signal.SIGTERM, long=[signal.SIGTERM, signal.SIGINT]))
def test_a_signal_ends_every_rank(number: signal.Signals) -> None:
    """The fixture of all tests finds what is left."""
    arguments = ("--np", "2", "--no-sweep", "--workload", "vgg16", "-n", "1000")
    command = hvdtune_command("bench", *arguments)
    process = subprocess.Popen(
        # A shell's background jobs ignore SIGINT, and so would the benchmark.
        ["env", "--default-signal=INT", *command],
        env=clean_environment(), cwd=new_directory(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    while "z += x" not in process.stdout.readline():
        assert process.poll() is None, process.communicate()
    time.sleep(0.2)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "Traceback" not in errors


def test_files_are_refused_before_anything_is_measured() -> None:
    printed, errors = bench("--json", str(Path("/nowhere/a.json")), status=2)
    assert printed == ""
    assert errors.startswith("hvdtune bench: argument --json: '/nowhere/a.json' cannot be written")
