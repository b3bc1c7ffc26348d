"""More processes than the machine can hold, and a machine that has no room for one of them."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.jobs.launcher import alive, launch
from support.jobs.ranks import clean_environment, hvdtune_command

import hvdtune
from hvdtune.launch.allocation import capacity
from hvdtune.launch.allocation.hosts import Host
from hvdtune.launch.errors import LaunchError

REFUSED = r": .+ can hold (\d+) processes of a job at most: .+\.\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "-np", "1000000"],
        ["run", "-np", "99999999999999999999"],
        ["run", "-np", "1000000", "-H", "localhost:1000000"],
        ["run", "-np", "1000000", "-H", f"localhost:1,{os.uname().nodename}:999999"],
        ["run", "-np", "99999999", "-H", "far-away:99999999"],
        ["run", "-np", "1000000", "--hostfile", "hosts"],
        ["run", "-np", "1000000", "--mpi"],
        ["run", "-np", "1000000", "--dry-run"],
        ["tune", "-np", "1000000", "--"],
    ],
)
def test_a_number_that_cannot_be_is_refused_with_one_that_can(tmp_path, arguments):
    (tmp_path / "hosts").write_text("localhost slots=1000000\n")
    ended = launch(tmp_path, [*arguments, "touch", "started"])
    assert ended.status == 2, ended
    found = re.fullmatch(rf"hvdtune {arguments[0]}: -np \d+{REFUSED}", ended.stderr)
    assert found, ended.stderr
    assert int(found[1]) < int(arguments[2])
    assert not (tmp_path / "started").exists()


def test_so_it_is_by_the_benchmark(tmp_path):
    ended = launch(tmp_path, ["bench", "--np", "1000000"])
    assert ended.status == 2
    assert ended.stdout == ""
    assert re.fullmatch(rf"hvdtune bench: --np 1000000{REFUSED}", ended.stderr), ended.stderr


@pytest.mark.parametrize("count", [1000000, 10**30])
def test_so_it_is_by_the_function(count):
    with pytest.raises(ValueError, match=r"num_proc .+can hold \d+ processes of a job at most"):
        hvdtune.run(print, num_proc=count)


@pytest.mark.parametrize("number", ["0", "-1", "1.5", "many"])
def test_what_is_no_number_of_processes(tmp_path, number):
    ended = launch(tmp_path, ["run", "-np", number, "true"])
    assert ended.status == 2
    assert ended.stderr.count("\n") == 1
    assert "give a whole number, 1 or more" in ended.stderr or "expected one" in ended.stderr


# ---- what the machine can hold ----


class Machine:
    """A machine without limits, apart from those that a test gives it."""

    def __init__(self, monkeypatch, folder: Path) -> None:
        self.folder = folder
        self.numbers: dict[str, int] = {}
        self.files = resource.RLIM_INFINITY
        self.processes = resource.RLIM_INFINITY
        monkeypatch.setattr(capacity, "_number", self._number)
        monkeypatch.setattr(capacity, "_groups", lambda *_: [folder, folder.parent])
        monkeypatch.setattr(capacity, "_threads_of_all", lambda: 100)
        monkeypatch.setattr(capacity, "free_memory", lambda **_: None)
        monkeypatch.setattr(capacity.resource, "getrlimit", self._limit)

    def _number(self, path: object) -> int | None:
        return self.numbers.get(str(path))

    def _limit(self, kind: int) -> tuple[int, int]:
        most = self.files if kind == resource.RLIMIT_NOFILE else self.processes
        return most, most


@pytest.fixture
def machine(monkeypatch, tmp_path):
    return Machine(monkeypatch, tmp_path)


def can_hold(files=2) -> int:
    """What the refusal of a great number names; that many are not refused, one more is."""

    def require(count):
        capacity.require_room([Host("localhost", count)], count, files=files)

    with pytest.raises(LaunchError) as refused:
        require(10**9)
    most = int(re.search(r"can hold (\d+)", str(refused.value))[1])
    require(most)
    with pytest.raises(LaunchError):
        require(most + 1)
    return most


@pytest.mark.parametrize("name", ["pid_max", "threads-max"])
def test_the_kernels_process_ids(machine, name):
    machine.numbers[f"/proc/sys/kernel/{name}"] = 4000
    assert 3800 < can_hold() < 3900


@pytest.mark.parametrize(("files", "most"), [(2, 480), (4, 240)])
def test_the_launchers_open_files(machine, files, most):
    machine.files = 1024
    assert most <= can_hold(files) <= 1024 // files


@pytest.mark.parametrize("level", ["own", "around"])
def test_the_control_groups_processes(machine, level):
    folder = machine.folder if level == "own" else machine.folder.parent
    machine.numbers |= {str(folder / "pids.max"): 300, str(folder / "pids.current"): 50}
    assert 240 <= can_hold() <= 250


def test_the_users_processes(machine, monkeypatch):
    machine.processes = 100000
    monkeypatch.setattr(capacity.os, "getuid", lambda: 4294967)
    monkeypatch.setattr(capacity, "_status", lambda _: {"CapEff": "0"})
    assert 99990 <= can_hold() <= 100000


def test_root_is_not_bound_by_it(machine, monkeypatch):
    machine.processes = 10
    monkeypatch.setattr(capacity.os, "getuid", lambda: 0)
    capacity.require_room([Host("localhost", 1000)], 1000)


def test_memory(machine, monkeypatch):
    monkeypatch.setattr(capacity, "free_memory", lambda **_: 2**30)
    assert 2**30 // (1 << 20) < can_hold() < 2**30 // (100 << 10)


@pytest.mark.parametrize(
    ("most", "used"),
    [("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")],
)
def test_the_control_groups_memory(tmp_path, monkeypatch, most, used):
    (tmp_path / most).write_text("1000000\n")
    (tmp_path / used).write_text("900000\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 50000\n")
    monkeypatch.setattr(capacity, "_groups", lambda *_: [tmp_path])
    assert capacity.free_memory() == 150000


def test_swap_counts_on_request(tmp_path, monkeypatch):
    (tmp_path / "meminfo").write_text("MemAvailable: 3 kB\nSwapTotal: 9 kB\nSwapFree: 4 kB\n")
    monkeypatch.setattr(capacity, "Path", lambda _: tmp_path / "meminfo")
    monkeypatch.setattr(capacity, "_groups", lambda *_: [])
    assert capacity.free_memory() == 3 * 1024
    assert capacity.free_memory(swap=True) == 7 * 1024


def test_other_hosts_are_not_judged_by_this_one(machine):
    machine.files = 256
    capacity.require_room([Host("far-away", 1000), Host("localhost", 8)], 1008)


def test_more_files_are_opened_where_that_is_allowed_and_the_ranks_know_nothing_of_it(tmp_path):
    tool = hvdtune_command("run", "-np", "60", "sh", "-c", "ulimit -Sn")
    limited = ["sh", "-c", 'ulimit -Sn 100; exec "$@"', "sh", *tool]
    ended = subprocess.run(
        limited, env=clean_environment(), cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    assert [line.partition(":")[2] for line in ended.stdout.splitlines()] == ["100"] * 60


def test_so_are_those_for_ranks_of_another_host(tmp_path):
    """Their output goes to files here: 80 of them, more than the limit at first."""
    client = tmp_path / "fake-ssh"
    client.write_text('#!/bin/bash\nexec bash -c "${!#}"\n')
    client.chmod(0o755)
    environment = {"HVDTUNE_SSH_COMMAND": str(client), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    tool = hvdtune_command("run", "-np", "40", "-H", "far1:40", "--output-filename", "out", "true")
    ended = subprocess.run(
        ["sh", "-c", 'ulimit -Sn 64; exec "$@"', "sh", *tool], env=clean_environment(environment),
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert len([*(tmp_path / "out").glob("rank.*/stdout")]) == 40


def test_files_that_are_open_already_count(monkeypatch):
    """Those of `hvdtune.run`, for example: a file for each rank's result."""
    limits = []
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(open(os.devnull))
        there = len(os.listdir("/proc/self/fd"))
        monkeypatch.setattr(capacity.resource, "getrlimit", lambda _: (64, 10**6))
        monkeypatch.setattr(capacity.resource, "setrlimit", lambda _, new: limits.append(new))
        assert capacity.allow_files(1000) == (64, 10**6)
        monkeypatch.undo()
    [(soft, hard)] = limits
    assert there + 1000 <= soft <= there + 1100
    assert hard == 10**6


# ---- a rank that there is no room for ----

FAILING = """
import os, subprocess, sys
from hvdtune.launch import job
from hvdtune.launch.local import spawn

begin, number, what = spawn.subprocess.Popen, int(sys.argv.pop(1)), sys.argv.pop(1)
started = []

def fail(*words, **options):
    if len(started) == 3:
        raise subprocess.SubprocessError if number == 0 else OSError(number, os.strerror(number))
    started.append(begin(*words, **options))
    print("pid", started[-1].pid, flush=True)
    return started[-1]

if what == "start":
    spawn.subprocess.Popen = fail
else:
    duplicate = job.os.dup
    def fail_to_watch(descriptor):
        if len(started) == 3:
            raise OSError(number, os.strerror(number))
        return duplicate(descriptor)
    def count(*words, **options):
        started.append(begin(*words, **options))
        print("pid", started[-1].pid, flush=True)
        return started[-1]
    spawn.subprocess.Popen, job.os.dup = count, fail_to_watch
from hvdtune.cli.main import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("number", "what", "rank", "why"),
    [
        (errno.EAGAIN, "start", 3, "no more processes may be started"),
        (errno.ENOMEM, "start", 3, "no memory"),
        (errno.EMFILE, "start", 3, "may not open more files"),
        (errno.ENFILE, "start", 3, "may not open more files"),
        (0, "start", 3, "no memory"),
        (errno.EMFILE, "watch", 2, "may not open more files"),
    ],
)
def test_a_rank_without_room_ends_the_job(tmp_path, number, what, rank, why):
    words = [str(number), what, "run", "-np", "5", "sleep", "600"]
    ended = subprocess.run(
        [sys.executable, "-c", FAILING, *words],
        env=clean_environment(), cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 126, ended
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.startswith(f"hvdtune run: rank {rank} of 5 cannot be started: ")
    assert why in ended.stderr
    pids = [int(line.split()[1]) for line in ended.stdout.splitlines()]
    assert len(pids) == 3
    assert not any(alive(pid) for pid in pids)


@pytest.mark.long
@pytest.mark.skipif(
    os.getuid() != 0 or not shutil.which("setpriv"), reason="starts a job as another user"
)
def test_a_user_who_may_have_no_more_processes(tmp_path):
    """The limit falls after the launcher has looked."""
    script = "import resource, sys\n"
    script += "from hvdtune.launch.allocation import capacity\n"
    script += "capacity.require_room = lambda *_, **__: None\n"
    script += "resource.setrlimit(resource.RLIMIT_NPROC, (20, 20))\n"
    script += "from hvdtune.cli.main import main\nsys.exit(main())\n"
    # Nobody's number, and the right to read this Python, which may lie in root's folder.
    rights = "-all,+dac_override,+dac_read_search"
    become = ["setpriv", "--reuid=54321", f"--inh-caps={rights}", f"--ambient-caps={rights}"]
    ended = subprocess.run(
        [*become, sys.executable, "-c", script, "run", "-np", "60", "sleep", "600"],
        env=clean_environment(), cwd="/", capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 126, ended
    assert re.fullmatch(
        r"hvdtune run: rank \d+ of 60 cannot be started: no more processes .+\n", ended.stderr
    ), ended.stderr
