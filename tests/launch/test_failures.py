"""How jobs end: with the first failure, with a signal, with the launcher; never with leftovers."""

from __future__ import annotations

import os
import pty
import re
import signal
import sys
from types import SimpleNamespace

import pytest
from support.jobs.launcher import SLEEP, launch, start, wait_until_gone
from support.jobs.ranks import clean_environment, hvdtune_command

from hvdtune.launch.allocation.hosts import Host, assign_ranks
from hvdtune.launch.worker import Worker
from hvdtune.launch.workers import Workers

# Rank 1 ends in the way {way}, once all ranks have printed their pids; the others sleep.
ONE_ENDS = """
print("pid", os.getpid(), flush=True)
if rank == 1:
    while not os.path.exists("go"):
        time.sleep(0.01)
    print("my last words", file=sys.stderr, flush=True)
    {way}
time.sleep(600)
"""


def run_until_rank_1_ends(tmp_path, way, env=None):
    with start(tmp_path, ["run", "-np", "3"], ONE_ENDS.format(way=way), env) as launcher:
        lines = launcher.wait_for_lines("<stdout>:pid ", 3)
        pids = [int(line) for line in lines]
        (tmp_path / "go").touch()
        ended = launcher.wait()
    wait_until_gone(pids)
    own = [line for line in ended.stderr.splitlines() if not line.startswith("[")]
    return ended, "\n".join(own)


@pytest.mark.parametrize("code", [1, 3, 255])
def test_the_exit_code_of_the_first_failure_is_the_launchers(tmp_path, code):
    ended, own = run_until_rank_1_ends(tmp_path, f"sys.exit({code})")
    assert ended.status == code
    assert f"Process 1 exit with status code {code}.\n" in ended.stdout
    assert "Terminating remaining workers after failure of Process 1.\n" in ended.stdout
    assert f"rank 1 (pid {pid_of(ended, 1)} on localhost) exited with code {code}." in own
    assert "my last words" in own


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGABRT", "SIGTERM"])
def test_a_signal_is_named_and_gives_128_plus_its_number(tmp_path, name):
    ended, own = run_until_rank_1_ends(tmp_path, f"os.kill(os.getpid(), signal.{name})")
    number = int(signal.Signals[name])
    assert ended.status == 128 + number
    assert f"Process 1 exit with status code {128 + number}.\n" in ended.stdout
    assert f"rank 1 (pid {pid_of(ended, 1)} on localhost) was killed by {name}" in own
    assert "my last words" in own


def pid_of(ended, rank):
    [line] = [
        line for line in ended.stdout.splitlines() if line.startswith(f"[{rank}]<stdout>:pid")
    ]
    return line.split()[-1]


def test_a_traceback_is_among_the_last_lines(tmp_path):
    _, own = run_until_rank_1_ends(tmp_path, "raise RuntimeError('out of luck')")
    assert "RuntimeError: out of luck" in own


def test_a_failure_without_output_says_so(tmp_path):
    ended = launch(tmp_path, ["run", "-np", "1"], "sys.exit(4)\n")
    assert ended.status == 4
    assert "rank 0" in ended.stderr
    assert "It had printed nothing." in ended.stderr


def test_survivors_have_a_moment_for_their_own_words(tmp_path):
    """As with HorovodInternalError: the others notice, say so, and exit with an error too."""
    script = """
parent = os.getppid()
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(0.3)
print("I noticed", rank, flush=True)
sys.exit(9)
"""
    ended = launch(tmp_path, ["run", "-np", "3"], script)
    assert ended.status == 137
    for rank in (0, 2):
        assert f"[{rank}]<stdout>:I noticed {rank}\n" in ended.stdout
    assert "Process 1 exit with status code 137." in ended.stdout
    assert "Process 0 exit" not in ended.stdout


# Rank 1 holds a connection to everybody; the others fail at once when it is cut.
CONNECTED = """
import socket
address = "\\0hvdtune-test-" + os.environ["HVDTUNE_JOB_ID"]
here = socket.socket(socket.AF_UNIX)
if rank == 1:
    here.bind(address)
    here.listen(size)
    peers = [here.accept()[0] for _ in range(size - 1)]
    {way}
while here.connect_ex(address):
    time.sleep(0.01)
here.recv(1)
{effect}
"""


@pytest.mark.parametrize(
    ("way", "effect", "status"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "os._exit(1)", 137),
        # The cause takes its time to end after its connections are closed.
        (
            "[peer.close() for peer in peers]; time.sleep(0.3); sys.exit(3)",
            "sys.exit('HorovodInternalError: rank 1 has left')",
            3,
        ),
    ],
)
def test_the_cause_is_blamed_even_if_its_effects_are_seen_first(tmp_path, way, effect, status):
    ended = launch(tmp_path, ["run", "-np", "6"], CONNECTED.format(way=way, effect=effect))
    assert ended.status == status
    assert f"Process 1 exit with status code {status}.\n" in ended.stdout
    assert ended.stdout.count("Process") == 2
    assert "hvdtune run: rank 1 " in ended.stderr


def test_when_all_fail_alike_the_first_is_blamed(tmp_path):
    script = (
        f"pid_of = {str(tmp_path)!r} + '/pid%d'\n"
        "os.symlink(str(os.getpid()), pid_of % rank)\n"
        "if rank + 1 < size:\n"
        "    while not os.path.lexists(pid_of % (rank + 1)): time.sleep(0.01)\n"
        # Its directory is there until the launcher knows of its end.
        "    while os.path.exists('/proc/' + os.readlink(pid_of % (rank + 1))): time.sleep(0.01)\n"
        "sys.exit('HorovodInternalError: shapes differ')\n"
    )
    ended = launch(tmp_path, ["run", "-np", "3"], script)
    assert ended.status == 1
    assert "hvdtune run: rank 2 " in ended.stderr


def test_workers_that_ignore_sigterm_are_killed(tmp_path):
    script = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    script += ONE_ENDS.format(way="sys.exit(5)")
    with start(tmp_path, ["run", "-np", "3"], script) as launcher:
        pids = [int(line) for line in launcher.wait_for_lines("<stdout>:pid ", 3)]
        (tmp_path / "go").touch()
        assert launcher.wait().status == 5
    wait_until_gone(pids)


def test_a_stopped_worker_is_killed(tmp_path):
    with start(tmp_path, ["run", "-np", "3"], ONE_ENDS.format(way="sys.exit(5)")) as launcher:
        pids = [int(line) for line in launcher.wait_for_lines("<stdout>:pid ", 3)]
        stopped = int(pid_of(type("Now", (), {"stdout": launcher.output(0)}), 0))
        os.kill(stopped, signal.SIGSTOP)
        (tmp_path / "go").touch()
        assert launcher.wait().status == 5
    wait_until_gone(pids)


def test_one_worker_that_is_done_early_ends_nothing(tmp_path):
    script = "time.sleep(0.5 * rank)\nprint('done', rank)\n"
    ended = launch(tmp_path, ["run", "-np", "3"], script)
    assert ended.status == 0
    assert ended.stdout.count("done") == 3


# Each worker leaves three children: an ordinary one, one in a session of its own that ignores
# SIGTERM, and the orphan of a child that is gone.
FAMILY = """
print("pid", os.getpid(), flush=True)
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
children = [
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]),
    subprocess.Popen([sys.executable, "-c", stubborn], start_new_session=True),
]
orphan = "import subprocess, sys; print('pid', subprocess.Popen(['sleep', '600'], \\
start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)"
subprocess.run([sys.executable, "-c", orphan], check=True)
for child in children:
    print("pid", child.pid, flush=True)
"""
ENDINGS = {
    "success": "sys.exit(0)",
    "failure": "sys.exit(7 if rank == 1 else 0)",
    "crash": "os.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.mark.parametrize("how", ENDINGS)
def test_descendants_do_not_outlive_the_job(tmp_path, how):
    script = FAMILY + "while not os.path.exists('go'): time.sleep(0.01)\n" + ENDINGS[how] + "\n"
    with start(tmp_path, ["run", "-np", "2"], script) as launcher:
        pids = [int(line) for line in launcher.wait_for_lines("<stdout>:pid ", 8)]
        (tmp_path / "go").touch()
        assert launcher.wait().status == {"success": 0, "failure": 7, "crash": 137}[how]
    wait_until_gone(pids)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"])
def test_a_signal_to_the_launcher_ends_everything(tmp_path, name):
    with start(tmp_path, ["run", "-np", "2"], FAMILY + "time.sleep(600)\n") as launcher:
        pids = [int(line) for line in launcher.wait_for_lines("<stdout>:pid ", 8)]
        launcher.send(signal.Signals[name])
        ended = launcher.wait()
    assert ended.status == 128 + signal.Signals[name]
    assert name in ended.stderr
    assert "Process" not in ended.stdout  # nobody failed
    wait_until_gone(pids)


def test_after_ctrl_c_a_worker_may_save_its_state(tmp_path):
    script = (
        """
def save(*_):
    time.sleep(0.3)
    print("saved", flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
"""
        + SLEEP
    )
    with start(tmp_path, ["run", "-np", "2"], script) as launcher:
        launcher.wait_for_lines("<stdout>:pid ", 2)
        launcher.send(signal.SIGINT)
        ended = launcher.wait()
    assert ended.status == 130
    assert ended.stdout.count("saved") == 2


def test_ctrl_c_on_a_terminal(tmp_path):
    """The terminal signals its whole foreground group, of which the workers are no part."""
    worker = tmp_path / "worker.py"
    worker.write_text("import os, time\nprint('pid', os.getpid())\ntime.sleep(600)\n")
    command = hvdtune_command("run", "-np", "2", sys.executable, str(worker))
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(command[0], command, clean_environment())
    shown = b""
    while shown.count(b"<stdout>:pid ") < 2 or not shown.endswith(b"\n"):
        shown += os.read(terminal, 4096)
    os.write(terminal, b"\x03")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 130
    wait_until_gone([int(number) for number in re.findall(rb"<stdout>:pid (\d+)", shown)])


def test_a_second_ctrl_c_does_not_wait(tmp_path):
    script = (
        """
def never(*_):
    print("asked", flush=True)
    time.sleep(600)

signal.signal(signal.SIGTERM, never)
"""
        + SLEEP
    )
    with start(tmp_path, ["run", "-np", "2"], script) as launcher:
        pids = [int(line) for line in launcher.wait_for_lines("<stdout>:pid ", 2)]
        launcher.send(signal.SIGINT)
        launcher.wait_for_lines("<stdout>:asked", 2)
        launcher.send(signal.SIGINT)
        assert launcher.wait().status == 130
    wait_until_gone(pids)


def test_when_the_launcher_is_killed_everything_dies(tmp_path):
    with start(tmp_path, ["run", "-np", "2"], FAMILY + "time.sleep(600)\n") as launcher:
        pids = [int(line) for line in launcher.wait_for_lines("<stdout>:pid ", 8)]
        launcher.send(signal.SIGKILL)
        assert launcher.wait().status == -signal.SIGKILL
    wait_until_gone(pids)


def test_when_the_process_that_runs_the_job_is_killed_everything_dies(tmp_path):
    script = "print('parent', os.getppid(), flush=True)\n" + FAMILY + "time.sleep(600)\n"
    with start(tmp_path, ["run", "-np", "2"], script) as launcher:
        pids = [int(line) for line in launcher.wait_for_lines("<stdout>:pid ", 8)]
        inner = int(launcher.wait_for_lines("<stdout>:parent ", 2)[0])
        assert inner != launcher.process.pid
        os.kill(inner, signal.SIGKILL)
        ended = launcher.wait()
    assert ended.status == 137
    assert "was killed by SIGKILL" in ended.stderr
    wait_until_gone(pids)


def test_when_both_are_killed_at_once_the_workers_die(tmp_path):
    script = "print('parent', os.getppid(), flush=True)\n" + SLEEP
    with start(tmp_path, ["run", "-np", "2"], script) as launcher:
        pids = [int(line) for line in launcher.wait_for_lines("<stdout>:pid ", 2)]
        inner = int(launcher.wait_for_lines("<stdout>:parent ", 2)[0])
        # Stopped, the inner one cannot clean up before it dies itself.
        os.kill(inner, signal.SIGSTOP)
        launcher.send(signal.SIGKILL)
        os.kill(inner, signal.SIGKILL)
        launcher.wait()
    wait_until_gone(pids)


@pytest.mark.parametrize("group", [False, True])
def test_a_worker_that_may_not_be_signalled_is_left_alone(monkeypatch, group):
    """It runs as another user, as with sudo."""
    sent = []

    def refuse(pid: int, number: int) -> None:
        sent.append((pid, number))
        raise PermissionError

    [slot] = assign_ranks([Host("localhost", 1)], 1)
    worker = Worker(0, slot, SimpleNamespace(pid=2**30))
    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg" if group else "kill", refuse)
        worker.signal(signal.SIGTERM, group)
    assert sent == [(2**30, signal.SIGTERM)]


def test_nobody_waits_for_a_worker_that_cannot_be_ended(monkeypatch):
    def refuse(pid: int, number: int) -> None:
        if pid == 2**30:
            raise PermissionError
        raise ProcessLookupError

    slots = assign_ranks([Host("localhost", 2)], 2)
    workers = [Worker(n, slot, SimpleNamespace(pid=2**30 + n)) for n, slot in enumerate(slots)]
    running = SimpleNamespace(running=lambda: (worker for worker in workers if worker.running))
    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", refuse)
        said = Workers.leave(running)
    assert said == [
        f"rank 0 (process {2**30}) runs as another user: it cannot be ended, and goes on"
    ]
    assert [worker.running for worker in workers] == [False, True]
