"""Real jobs, looked at from outside while they run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path

import pytest
from rank_programs import live, training
from support.jobs.ranks import Ranks, clean_environment, hvdtune_command, start_ranks
from support.tiers import long_too


def hvdtune(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        hvdtune_command(*arguments),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=clean_environment({"COLUMNS": "200"}),
    )


def start(tmp_path: Path, np: int = 3, env: dict[str, str] | None = None) -> Ranks:
    """A job that runs until the file `stop` exists."""
    return start_ranks(np, live.train, -1, 0.0, 0, str(tmp_path / "stop"), env=env)


def test_top_stacks_and_jobs_see_a_running_job(tmp_path: Path) -> None:
    with start(tmp_path) as ranks:
        ranks.wait_for_output(0, "running")
        pid = str(ranks.pid(0))
        jobs = hvdtune("jobs").stdout
        assert re.search(rf"^{pid} \(.*, 3 ranks, job ", jobs, re.MULTILINE), jobs
        top = hvdtune("top", "--once", "--job", pid)
        assert top.returncode == 0, top.stderr
        assert "steps/s" in top.stdout
        assert f"3 ranks, pid {pid}" in top.stdout
        stacks = hvdtune("stacks", "--job", pid)
        for rank in range(3):
            assert f"Rank {rank}: host " in stacks.stdout
        assert stacks.stdout.count("rank_programs/live.py") >= 3
        one = hvdtune("stacks", "--job", pid, "--rank", "2").stdout
        assert "Rank 2:" in one
        assert "Rank 0:" not in one
        wrong = hvdtune("stacks", "--job", pid, "--rank", "3")
        assert wrong.returncode == 2
        assert wrong.stderr == "hvdtune stacks: there is no rank 3; the job's are 0 to 2\n"
        (tmp_path / "stop").touch()
        ranks.wait(60)
    gone = hvdtune("top", "--once", "--job", pid)
    assert gone.returncode == 1
    assert f"no job '{pid}' of yours is running on this host" in gone.stderr


def test_top_ends_with_the_job(tmp_path: Path) -> None:
    with start(tmp_path) as ranks:
        ranks.wait_for_output(0, "running")
        pid = str(ranks.pid(0))
        command = hvdtune_command("top", "--job", pid, "--interval", "0.05")
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=clean_environment()
        ) as top:
            assert top.stdout is not None
            first = top.stdout.readline()
            assert f"pid {pid}" in first
            (tmp_path / "stop").touch()
            ranks.wait(60)
            rest = top.stdout.read()
            assert top.wait(60) == 0
    assert rest.rstrip().endswith(f"the job of process {pid} has ended.")
    assert "\x1b" not in rest, "plain text where there is no terminal"


def test_stacks_of_ranks_in_the_middle_of_something(tmp_path: Path) -> None:
    """Two wait in an operation for the third, which is stopped: no schedule reaches anybody."""
    import signal

    stop_file = tmp_path / "stop"
    program = training.stay_away_from
    with start_ranks(3, program, "awaited", 2, str(stop_file)) as ranks:
        ranks.wait_for_output(2, "staying away")
        ranks.signal(2, signal.SIGSTOP)
        stacks = hvdtune("stacks", "--job", str(ranks.pid(0))).stdout
        ranks.signal(2, signal.SIGCONT)
        for _ in range(10):  # a rank that has just been stopped may take its time
            again = hvdtune("stacks", "--job", str(ranks.pid(0))).stdout
            if "no Python stack" not in again:
                break
        stop_file.touch()
        ranks.wait(60)
    assert again.count("stay_away_from") == 3
    assert "no Python stack" not in again
    assert stacks.count("stay_away_from") == 2
    assert "process stopped\nno Python stack: the process has not answered" in stacks


def top_with(text: str, pid: int) -> str:
    """What `hvdtune top` shows of that job, once it has the text."""
    shown, deadline = "", time.monotonic() + 60
    while text not in shown:
        assert time.monotonic() < deadline, shown
        top = hvdtune("top", "--once", "--job", str(pid))
        assert top.returncode == 0, top.stderr
        shown = top.stdout
    return shown


@pytest.mark.parametrize("late", [0, 2])
def test_what_waits_for_a_rank_is_in_the_queue(tmp_path: Path, late: int) -> None:
    """Tensors that all ranks know: announcing them wakes nobody before the last rank comes."""
    stop_file = tmp_path / "stop"
    with start_ranks(3, live.stay_away, late, str(stop_file)) as ranks:
        ranks.wait_for_output(late, "staying away")
        top_with("5 tensors: 5 for ranks", ranks.pid(0))
        stop_file.touch()
        ranks.wait(60)


def test_several_jobs_must_be_told_apart(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with start(tmp_path, 1) as first, start(other, 1) as second:
        first.wait_for_output(0, "running")
        second.wait_for_output(0, "running")
        answer = hvdtune("top", "--once")
        for ranks, stop in ((first, tmp_path), (second, other)):
            assert f"{ranks.pid(0)} (" in answer.stderr
            (stop / "stop").touch()
            ranks.wait(60)
    assert answer.returncode == 2
    assert answer.stderr.startswith("hvdtune top: several jobs are meant; choose one with --job")


def test_recording_is_started_and_stopped_from_outside(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    with start(tmp_path, 2, {"HOROVOD_TIMELINE": "DYNAMIC"}) as ranks:
        ranks.wait_for_output(0, "running")
        pid = str(ranks.pid(0))
        begun = hvdtune("timeline", "start", str(file), "--job", pid)
        assert begun.returncode == 0, begun.stderr
        where = (
            f"{file}, other ranks' to t.rank1.json beside it on their hosts; joined into {file} "
            "when the job has ended\n"
        )
        assert begun.stdout == f"recording to {where}"
        ended = hvdtune("timeline", "stop", "--job", pid)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout == f"recorded to {where}"
        again = hvdtune("timeline", "stop", "--job", pid)
        assert again.stdout == "no recording was under way\n"
        (tmp_path / "stop").touch()
        ranks.wait(60)
    assert isinstance(json.loads(file.read_text()), list)


def test_a_job_that_cannot_record_says_why(tmp_path: Path) -> None:
    with start(tmp_path, 1) as ranks:
        ranks.wait_for_output(0, "running")
        refused = hvdtune("timeline", "start", "t.json", "--job", str(ranks.pid(0)))
        (tmp_path / "stop").touch()
        ranks.wait(60)
    assert refused.returncode == 2
    assert "HOROVOD_TIMELINE" in refused.stderr


def test_a_file_that_cannot_be_written_is_said_to_who_asked(tmp_path: Path) -> None:
    with start(tmp_path, 2, {"HOROVOD_TIMELINE": "DYNAMIC"}) as ranks:
        ranks.wait_for_output(0, "running")
        (tmp_path / "file").touch()
        file = str(tmp_path / "file" / "t.json")
        refused = hvdtune("timeline", "start", file, "--job", str(ranks.pid(0)))
        (tmp_path / "stop").touch()
        ranks.wait(60)
    assert refused.returncode == 2
    assert f"cannot write the timeline to {file}" in refused.stderr
    assert "nothing is recorded" in refused.stderr


def test_metrics_go_to_a_file(tmp_path: Path) -> None:
    file = tmp_path / "job.prom"
    env = {"HVDTUNE_METRICS_FILE": str(file), "HVDTUNE_METRICS_INTERVAL": "3600"}
    with start(tmp_path, 2, env) as ranks:
        ranks.wait_for_output(0, "running")
        (tmp_path / "stop").touch()
        steps = ranks.wait(60).values[0]
    text = file.read_text()
    assert "hvdtune_ranks 2.0\n" in text
    counted = re.search(r"^hvdtune_steps_total (\d+)", text, re.MULTILINE)
    assert counted is not None
    assert 0 < int(counted[1]) <= steps
    assert sorted(os.listdir(tmp_path)) == ["job.prom", "stop"]


@pytest.mark.parametrize("hosts", [None, [1, 1]], ids=str)
def test_a_late_rank_is_named_once_and_its_end_too(hosts: list[int] | None) -> None:
    with start_ranks(2, live.train, 1, 0.02, 240, hosts=hosts) as ranks:
        result = ranks.wait(120)
        pid = ranks.pid(1)
    log = [line for line in result[0].stderr.splitlines() if " the others up" in line]
    assert len(log) == 2, result[0].stderr
    assert re.search(rf"rank 1 \(host \S+, pid {pid}\) holds the others up in \d+ % of", log[0])
    assert "no longer holds the others up" in log[1]
    since = re.search(r"since step (\d+) at", log[0])
    assert since is not None
    assert int(since[1]) <= 60
    assert "the others up" not in result[1].stderr, "only rank 0 says it"


@pytest.mark.parametrize("host", long_too(0, long=[0, 1]))
def test_a_host_late_as_a_whole_is_named_once_and_its_end_too(host: int) -> None:
    late = [2 * host, 2 * host + 1]
    with start_ranks(4, live.train, late, 0.05, 240, hosts=[2, 2]) as ranks:
        result = ranks.wait(120)
    log = [
        line
        for line in result[0].stderr.splitlines()
        if "host " in line and " the others up" in line
    ]
    of_host = [line for line in log if f"host host{host} (ranks {late[0]},{late[1]})" in line]
    assert len(of_host) == 2, result[0].stderr
    assert "% of the steps: the other hosts wait for it" in of_host[0]
    assert "no longer holds the others up. It did from step" in of_host[1]
    since = re.search(r"since step (\d+) at", of_host[0])
    assert since is not None
    assert int(since[1]) <= 60
    assert not [line for line in log if f"host host{1 - host} (" in line]


def test_top_and_the_timeline_name_a_late_host(tmp_path: Path) -> None:
    trace, stop_file = tmp_path / "t.json", tmp_path / "stop"
    env = {"HOROVOD_TIMELINE": str(trace), "HVDTUNE_TIMELINE_FORMAT": "horovod"}
    arguments = ([2, 3], 0.05, 0, str(stop_file))
    with start_ranks(4, live.train, *arguments, env=env, hosts=[2, 2]) as ranks:
        ranks.wait_for_output(0, "running")
        shown = top_with("host host1 (ranks 2, 3) holds the others up", ranks.pid(0))
        stop_file.touch()
        ranks.wait(60)
    assert re.search(
        r"slowest +host host1 \(ranks 2, 3\) holds the others up: it costs \d", shown
    ), shown
    assert "STRAGGLER host host1 is late" in trace.read_text()


def test_of_a_host_with_one_late_rank_the_rank_alone_is_named() -> None:
    with start_ranks(4, live.train, 3, 0.05, 160, hosts=[2, 2]) as ranks:
        result = ranks.wait(120)
        pid = ranks.pid(3)
    log = [line for line in result[0].stderr.splitlines() if "holds the others up in" in line]
    assert len(log) == 1, result[0].stderr
    assert f"rank 3 (host host1, pid {pid}) holds the others up in" in log[0]


@pytest.mark.parametrize("np", [2, 5])
def test_equal_ranks_are_not_named(np: int) -> None:
    with start_ranks(np, live.train, -1, 0.0, 400) as ranks:
        result = ranks.wait(120)
    assert "the others up" not in result[0].stderr
    assert result.values == (400,) * np


@pytest.mark.parametrize("blocking", [False, True])
def test_a_rank_with_work_of_its_own_is_not_late(blocking: bool) -> None:
    with start_ranks(2, live.own_work, 0.01, 120, blocking) as ranks:
        result = ranks.wait(120)
    assert result.values == (120, 120)
    assert "the others up" not in result[0].stderr


def test_nobody_is_named_where_it_is_switched_off() -> None:
    environment = {"HVDTUNE_STRAGGLER_SHARE": "0"}
    with start_ranks(2, live.train, 1, 0.01, 160, env=environment) as ranks:
        result = ranks.wait(120)
    assert "the others up" not in result[0].stderr


def test_waits_that_go_past_the_coordinator_are_exposed_too() -> None:
    with start_ranks(2, live.direct_waits, 200, 0.0003) as ranks:
        steps, exposed = ranks.wait(120).values[0]
    assert steps >= 100, "those of the tensor that the coordinator sees"
    # Rank 0 does nothing but wait for rank 1, and that is most of a step.
    assert exposed is not None
    assert exposed > 0.5
