"""SIGINT and SIGTERM at given moments of a launcher's life: one line, the status of a shell."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.jobs.launcher import hear_signals, launch
from support.jobs.ranks import clean_environment

NUMBERS = [signal.SIGINT, signal.SIGTERM]
SAYS = {signal.SIGINT: "interrupted.", signal.SIGTERM: "ended by SIGTERM."}

COMMAND = "\nfrom hvdtune.cli.main import main\nsys.exit(main())\n"

# Sends this process the signal as soon as `place`, "module:name", is called.
AT_A_CALL = """
import importlib, os, sys
number, place = int(sys.argv.pop(1)), sys.argv.pop(1)
module, _, name = place.partition(":")
module = importlib.import_module(module)

def interrupted(*_words, **_options):
    os.kill(os.getpid(), number)
    raise SystemExit("nobody heard the signal")

setattr(module, name, interrupted)
"""


def run(folder: Path, script: str, *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, words)],
        env=clean_environment(), cwd=folder, capture_output=True, text=True, timeout=120,
        stdin=subprocess.DEVNULL, preexec_fn=hear_signals,
    )  # fmt: skip


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(
    "place",
    [
        "hvdtune.cli.run:add_arguments",
        "hvdtune.cli.run:run",
        "hvdtune.launch.allocation.hosts:parse_hosts",
        "hvdtune.launch.settings:choose",
        "hvdtune.launch.start:assign_ranks",
        "hvdtune.launch.remote.checks:check_hosts",
    ],
)
def test_before_the_job_begins(tmp_path, number, place):
    words = ["run", "-np", "2", "-H", "localhost:1,192.0.2.1:1", "touch", "started"]
    ended = run(tmp_path, AT_A_CALL + COMMAND, int(number), place, *words)
    assert ended.returncode == 128 + number, ended
    assert ended.stderr == f"hvdtune run: {SAYS[number]}\n"
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("hvdtune.bench.runner:run", ["bench", "--np", "2"]),
        ("hvdtune.cli.tune:_tune", ["tune", "-np", "2", "--", "true"]),
        ("hvdtune.cli.top:run", ["top"]),
        ("hvdtune.cli.doctor:run", ["doctor"]),
    ],
)
def test_other_commands(tmp_path, number, place, words):
    ended = run(tmp_path, AT_A_CALL + COMMAND, int(number), place, *words)
    assert ended.returncode == 128 + number, ended
    assert ended.stderr == f"hvdtune {words[0]}: {SAYS[number]}\n"


@pytest.mark.parametrize("number", NUMBERS)
def test_a_second_one_does_not_wait_for_what_the_first_began(tmp_path, number):
    twice = "    os.kill(os.getpid(), number)\n"
    script = AT_A_CALL.replace(twice, f"    try:\n    {twice}    finally:\n    {twice}")
    ended = run(tmp_path, script + COMMAND, int(number), "hvdtune.cli.run:run", "run", "true")
    assert ended.returncode == -number
    assert ended.stderr == ""


@pytest.mark.parametrize("number", NUMBERS)
def test_a_resolver_that_does_not_answer(tmp_path, number):
    """No handler of Python's runs as long as the C library waits: the signal's own effect it is."""
    patch = """
import os, signal, socket, sys, ctypes
number = int(sys.argv.pop(1))
def wait(*_words, **_options):
    os.kill(os.getpid(), number)
    ctypes.CDLL(None).sleep(60)
socket.getaddrinfo = wait
"""
    ended = run(tmp_path, patch + COMMAND, int(number), "run", "-np", "1", "-H", "host-x:1", "true")
    assert ended.returncode == -number
    assert ended.stderr == ""


@pytest.mark.parametrize("name", ["hvdtune", "horovodrun"])
@pytest.mark.parametrize("module", ["hvdtune.core", "json", "argparse", "hvdtune.cli.main"])
def test_ctrl_c_while_the_command_is_imported(tmp_path, name, module):
    """The command's file is what pip makes of `hvdtune.cli.main:main`."""
    hook = f"""
import os, signal, sys
class Hook:
    def find_spec(self, found, path=None, target=None):
        if found == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Hook())
sys.modules.pop("json", None)
"""
    (tmp_path / name).write_text(hook + COMMAND)
    ended = subprocess.run(
        [sys.executable, str(tmp_path / name), "run", "-np", "1", "true"],
        env=clean_environment(), cwd=tmp_path, capture_output=True, text=True, timeout=120,
        preexec_fn=hear_signals,
    )  # fmt: skip
    assert ended.returncode == -signal.SIGINT, ended
    assert ended.stderr == ""


WHILE_STARTING = """
import os, sys
from hvdtune.launch import workers
number, at, begin = int(sys.argv.pop(1)), int(sys.argv.pop(1)), workers.start_worker
started = []

def start(*words):
    if len(started) == at:
        os.kill(os.getpid(), number)
    started.append(begin(*words))
    print("pid", started[-1].pid, flush=True)
    return started[-1]

workers.start_worker = start
"""


@pytest.mark.parametrize("number", [*NUMBERS, signal.SIGHUP])
@pytest.mark.parametrize("at", [0, 3, 9])
def test_while_ranks_are_started(tmp_path, number, at):
    words = ["run", "-np", "10", "sleep", "600"]
    ended = run(tmp_path, WHILE_STARTING + COMMAND, int(number), at, *words)
    assert ended.returncode == 128 + number, ended
    name = signal.Signals(number).name
    assert ended.stderr == f"hvdtune run: ending the job after {name}\n"
    # The one that was being started, and none after it.
    assert ended.stdout.count("pid") == at + 1
    assert not [
        line for line in ended.stdout.splitlines() if Path("/proc", line.split()[1]).exists()
    ]


# A rank's recording as far as the launcher looks at it: it says which job it is of.
RECORDS = """echo '[{"name":"hvdtune_identity","args":{"job":"'$HVDTUNE_JOB_ID'/1"}}]' >t.json"""
WHILE_JOINING = """
import os, subprocess, sys
number = int(sys.argv.pop(1))

slow = f"import os, time; os.kill(os.getppid(), {number}); time.sleep(60)"

def run(_command, **options):
    return begin([sys.executable, "-c", slow], **options)

begin, subprocess.run = subprocess.run, run
"""


@pytest.mark.parametrize("number", [*NUMBERS, signal.SIGHUP])
def test_while_timelines_are_joined(tmp_path, number):
    ends = f"{RECORDS}; exit 3"
    words = ["run", "-np", "1", "--timeline-filename", "t.json", "sh", "-c", ends]
    ended = run(tmp_path, WHILE_JOINING + COMMAND, int(number), *words)
    assert ended.returncode == 3, ended
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("hvdtune run: the ranks' files of the timeline "), ended.stderr
    assert last.endswith("does it later."), ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("number", [*NUMBERS, signal.SIGHUP])
def test_an_interrupted_job_gives_joining_little_time(tmp_path, number):
    """Nobody sends a second signal."""
    slow = WHILE_JOINING.replace("os.kill(os.getppid(), {number}); ", "")
    ends = f"{RECORDS}; kill -{int(number)} $(ps -o ppid= -p $PPID); sleep 600"
    words = ["run", "-np", "1", "--timeline-filename", "t.json", "sh", "-c", ends]
    ended = run(tmp_path, slow + COMMAND, int(number), *words)
    assert ended.returncode == 128 + number, ended
    first, last = ended.stderr.splitlines()
    assert first == f"hvdtune run: ending the job after {signal.Signals(number).name}"
    assert last.endswith("does it later."), ended.stderr


def test_what_the_user_ignores_stays_ignored(tmp_path):
    script = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n" + COMMAND
    script = script.replace("import signal\n", "import signal, os, sys\n", 1)
    script = script.replace(COMMAND, "os.kill(os.getpid(), signal.SIGINT)\n" + COMMAND)
    ended = run(tmp_path, script, "run", "-np", "1", "true")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_an_ordinary_end_says_nothing_of_signals(tmp_path):
    ended = launch(tmp_path, ["run", "-np", "2", "true"])
    assert (ended.status, ended.stderr) == (0, "")
