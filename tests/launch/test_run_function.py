"""`hvdtune.run(function, …)`: a function as a job, called from scripts without a main guard."""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.jobs.launcher import wait_until_gone
from support.jobs.ranks import clean_environment

import hvdtune
from hvdtune.launch.errors import FAILED
from hvdtune.launch.function import call
from hvdtune.launch.function.call_site import run
from hvdtune.launch.local.environment import with_alias

# Horovod's parameters, of which the first four have other defaults than None.
PARAMETERS = """
func args kwargs num_proc min_num_proc max_num_proc slots reset_limit cooldown_range hosts hostfile
host_discovery_script start_timeout ssh_port ssh_identity_file disable_cache output_filename verbose
use_gloo use_mpi mpi_args network_interface network_interfaces executable np min_np max_np
"""


class Script:
    """A script in a folder of its own, whose temporary files go to a folder that can be looked at.

    `ended` runs it to its end; `started` returns the process.
    """

    def __init__(self, folder) -> None:
        self.folder = folder
        self.temporary = folder / "temporary"
        self.temporary.mkdir()

    def started(self, text: str, *words: str, **options) -> subprocess.Popen[str]:
        path = self.folder / "script.py"
        path.write_text(text, encoding="utf-8")
        return subprocess.Popen(
            [sys.executable, str(path), *words],
            # The alias is not installed beside a checkout that was built in place.
            env=clean_environment({"TMPDIR": str(self.temporary), **with_alias(os.environ)}),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def ended(self, text: str, *words: str) -> tuple[str, str]:
        with self.started(text, *words) as process:
            out, err = process.communicate(timeout=100)
        assert process.returncode == 0, err
        self.check_clean()
        return out, err

    def check_clean(self) -> None:
        assert os.listdir(self.temporary) == []


@pytest.fixture
def script(tmp_path) -> Script:
    return Script(tmp_path)


FAR = {"hosts": "far.example:1"}


def nothing() -> None:
    """Never called."""


def test_the_signature_is_horovods():
    parameters = inspect.signature(hvdtune.run).parameters
    assert list(parameters) == PARAMETERS.split()
    defaults = [parameter.default for parameter in parameters.values()]
    assert defaults == [inspect.Parameter.empty, (), None, 1, *[None] * 23]
    assert all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters.values())


@pytest.mark.parametrize(
    ("error", "words", "arguments"),
    [
        (ValueError, ["hosts", "hostfile"], {"hosts": "localhost:1", "hostfile": "hosts.txt"}),
        (ValueError, ["use_gloo", "use_mpi"], {"use_gloo": True, "use_mpi": True}),
        (ValueError, ["elastic", "use_mpi"], {"use_mpi": True, "min_num_proc": 1}),
        (ValueError, ["num_proc=0", "1 or more"], {"num_proc": 0}),
        (ValueError, ["num_proc='2'", "whole number"], {"num_proc": "2"}),
        (ValueError, ["num_proc=True", "whole number"], {"num_proc": True}),
        (ValueError, ["(2)", "slots (1)"], {"num_proc": 2, "hosts": "localhost:1"}),
        (ValueError, ["hosts: entry 'localhost'", "name:slots"], {"hosts": "localhost"}),
        (ValueError, ["hostfile nowhere.txt", "No such file"], {"hostfile": "nowhere.txt"}),
        (ValueError, ["ssh_identity_file", "no such file"], {**FAR, "ssh_identity_file": "none"}),
        (ValueError, ["start_timeout is -1", "0 or more"], {"start_timeout": -1}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_arguments_that_are_not_accepted(error, words, arguments):
    with pytest.raises(error) as raised:
        run(nothing, **arguments)
    for word in words:
        assert word in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"mpi_args": "--oversubscribe"}, "mpirun does not start the job"),
        ({"ssh_port": 22}, "the job runs on one host"),
        ({"ssh_identity_file": "key"}, "the job runs on one host"),
        ({"network_interfaces": ["lo"]}, "the job runs on one host"),
    ],
)
def test_arguments_that_have_nothing_to_do_here_are_taken(arguments, reason):
    [name] = arguments
    # The mistake that ends the call comes after all arguments have been looked at.
    with (
        pytest.warns(UserWarning, match=f"^{name} has no effect: {reason}$") as warned,
        pytest.raises(ValueError, match="slots"),
    ):
        run(nothing, num_proc=2, hosts="localhost:1", **arguments)
    assert [warning.filename for warning in warned] == [__file__]


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("np", "num_proc", ValueError),
        ("min_np", "min_num_proc", ValueError),
        ("max_np", "max_num_proc", ValueError),
    ],
)
def test_old_names_warn_and_mean_the_new_ones(old, new, error):
    with (
        pytest.warns(DeprecationWarning, match=f"^{old} is deprecated, use {new} ") as warned,
        pytest.raises(error, match=f"{new}=0"),
    ):
        run(nothing, **{old: 0})
    assert warned[0].filename == __file__


def test_an_old_name_and_its_new_one_must_agree():
    with (
        pytest.warns(DeprecationWarning, match="np is deprecated"),
        pytest.raises(ValueError, match="np=2 and num_proc=3"),
    ):
        run(nothing, num_proc=3, np=2)


def test_interfaces_have_no_effect_and_that_is_said():
    with (
        pytest.warns(DeprecationWarning, match="network_interface is deprecated"),
        pytest.warns(UserWarning, match="network_interfaces has no effect"),
        pytest.raises(ValueError, match="slots"),
    ):
        run(nothing, network_interface="lo", num_proc=2, hosts="localhost:1")


def test_what_cannot_be_called_or_sent():
    with pytest.raises(TypeError, match="a function to call, not 3"):
        run(3)
    with pytest.raises(TypeError, match="nothing or its arguments cannot be sent to the workers"):
        run(nothing, (sys._getframe(),))


def test_a_malformed_setting_is_the_callers_error(monkeypatch):
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "fast")
    with pytest.raises(ValueError, match="HOROVOD_CYCLE_TIME is 'fast'"):
        run(nothing)


# No main guard; functions and classes of the script itself, and of a module beside it.
RESULTS = """
import os, sys, time
import beside
import horovod, hvdtune
from horovod.runner import run
assert run is horovod.run is hvdtune.run

class Answer:
    def __init__(self, *facts):
        self.facts = facts

def train(base, *, plus):
    import numpy as np
    import horovod.common.util
    import hvdtune as hvd
    hvd.init()
    total = hvd.allreduce(np.full(1000, base + hvd.rank(), np.float64), op=hvd.Sum)
    time.sleep(0.2 * (hvd.size() - hvd.rank()))
    print("trained", hvd.rank(), flush=True)
    return Answer(hvd.rank(), hvd.size(), float(total[-1]) + plus, beside.twice(hvd.rank()))

answers = run(train, (1,), {"plus": 0.5}, num_proc=3, use_gloo=True, hosts="localhost:8")
assert all(type(answer) is Answer for answer in answers)
assert [answer.facts for answer in answers] == [(r, 3, 6.5, 2 * r) for r in range(3)]

# What comes next needs no engine: the function's place, a big result, several calls.
def place():
    return os.getcwd(), sys.argv, os.environ["HOROVOD_START_TIMEOUT"], b"x" * 5_000_000

cwd, words, timeout, big = run(place, start_timeout=7)[0]
assert (cwd, words, timeout, len(big)) == (os.getcwd(), sys.argv, "7.0", 5_000_000), words
assert "HOROVOD_RANK" not in os.environ
assert run(beside.twice, [4], num_proc=2, executable=sys.executable) == [8, 8]
assert run(lambda: None) == [None]
print("all is well")
"""


def test_results_come_back_in_rank_order(script):
    (script.folder / "beside.py").write_text("def twice(x):\n    return 2 * x\n")
    out, err = script.ended(RESULTS, "--flag", "word")
    assert sorted(out.splitlines()) == [
        *(f"[{rank}]<stdout>:trained {rank}" for rank in range(3)),
        "all is well",
    ]
    assert err == ""


@pytest.mark.long
def test_the_example_of_the_documentation(script):
    page = Path(__file__).resolve().parents[2] / "docs" / "horovod-alias.md"
    [program] = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.M | re.S)
    assert script.ended(program)[0] == "[0, 10]\n"


FAILURES = """
import os, sys, threading
from hvdtune import run

def fail():
    if os.environ["HOROVOD_RANK"] == "1":
        raise LookupError("no such batch")
    threading.Event().wait()

def leave(how):
    how()

class OnlyThere:
    def __reduce__(self):
        return int, ("not a number",)

def error(*arguments, **options):
    try:
        run(*arguments, **options)
    except RuntimeError as raised:
        print(str(raised), end="\\n====\\n", flush=True)

error(fail, num_proc=3)
error(leave, (lambda: os.kill(os.getpid(), 9),))
error(leave, (lambda: sys.exit(5),))
error(leave, (lambda: sys.exit(0),))
error(threading.Lock)
error(OnlyThere)
error(leave, executable="/no/such/python")
error(print, output_filename="/proc/nowhere")
"""


def test_failures_name_the_first_rank_and_its_exit_code(script):
    out, err = script.ended(FAILURES)
    raised = re.sub(r"^(Process|Terminating) .*\n", "", out, flags=re.M).split("\n====\n")
    beginnings = [
        rf"The job has failed: {FAILED}: rank 1 \(pid \d+ on localhost\) exited with code 1\. Its "
        "last",
        rf"The job has failed: {FAILED}: rank 0 \(pid \d+ on localhost\) was killed by SIGKILL",
        rf"The job has failed: {FAILED}: rank 0 \(pid \d+ on localhost\) exited with code 5\.",
        r"Rank 0 exited with code 0 before the function returned\.",
        rf"The job has failed: {FAILED}: rank 0 \(pid \d+ on localhost\) exited with code 1\. ",
        r"The result of rank 0 cannot be read here: .*not a number",
        r"The job has failed: cannot start '/no/such/python': No such file",
        r"The job has failed: output_filename: /proc/nowhere\S* cannot be written",
    ]
    assert len(raised) == len(beginnings) + 1
    for text, beginning in zip(raised, beginnings, strict=False):
        assert re.match(beginning, text), text
    assert "LookupError: no such batch" in raised[0]
    assert "a lock, cannot be sent to the caller: TypeError" in raised[4]
    # The worker's own traceback, without the frames that called the function.
    traceback = [line for line in err.splitlines() if line.startswith("[1]<stderr>:")]
    assert traceback[0] == "[1]<stderr>:Traceback (most recent call last):"
    assert re.search(r'File ".*script\.py", line \d+, in fail', traceback[1])
    assert traceback[-1] == "[1]<stderr>:LookupError: no such batch"


OUTPUT = """
import contextlib, io, sys
from hvdtune import run

def talk():
    print("to stdout")
    print("to stderr", file=sys.stderr)

out, err = io.StringIO(), io.StringIO()
with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    run(talk, num_proc=2, verbose=1, output_filename="logs")
assert sorted(out.getvalue().splitlines()) == ["[0]<stdout>:to stdout", "[1]<stdout>:to stdout"]
lines = err.getvalue().splitlines()
assert {"[0]<stderr>:to stderr", "[1]<stderr>:to stderr"} < set(lines)
assert any("started rank 1 on localhost" in line for line in lines)
assert open("logs/rank.1/stdout").read() == "[1]<stdout>:to stdout\\n"
sys.stdout = sys.stderr = None
run(talk)
"""


def test_output_goes_where_sys_stdout_and_stderr_lead(script):
    assert script.ended(OUTPUT) == ("", "")


class Notebook(io.StringIO):
    """Its descriptor leads to the terminal of the notebook's server, as with ipykernel."""

    def fileno(self) -> int:
        return 1


def test_output_goes_to_a_notebook_and_not_to_its_server():
    out, err = Notebook(), Notebook()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        call._streams() as files,
    ):
        for file, text in zip(files, (b"to stdout\n", b"to stderr\n"), strict=True):
            file.write(text)
    assert (out.getvalue(), err.getvalue()) == ("to stdout\n", "to stderr\n")


WAITING = """
import os, signal, sys, time
from hvdtune import run

def wait():
    def save(*_):
        print("saved", flush=True)
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    print("pid", os.getpid(), flush=True)
    time.sleep(600)

print("launcher", os.getpid(), flush=True)
try:
    run(wait, num_proc=2)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
"""


def wait_for_workers(process) -> tuple[list[int], str]:
    """The workers' pids, once they have told them, and what has been printed."""
    text, pids = "", []
    while len(pids) < 2:
        text += process.stdout.readline()
        pids = [int(pid) for pid in re.findall(r"<stdout>:pid (\d+)\n", text)]
    return pids, text


@pytest.mark.parametrize("whole_group", [False, True], ids=["caller", "terminal"])
def test_ctrl_c_ends_the_workers_who_may_save_their_state(script, whole_group):
    with script.started(WAITING, start_new_session=True) as process:
        pids, _ = wait_for_workers(process)
        send = os.killpg if whole_group else os.kill
        send(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    wait_until_gone(pids)
    assert process.returncode == -signal.SIGINT
    assert out.count("saved\n") == 2
    assert out.endswith("interrupted\n")
    assert err.rstrip().endswith("KeyboardInterrupt")
    script.check_clean()


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_when_the_caller_is_killed_nothing_is_left(script, name):
    with script.started(WAITING) as process:
        pids, _ = wait_for_workers(process)
        process.send_signal(signal.Signals[name])
        process.communicate(timeout=60)
    assert process.returncode == -signal.Signals[name]
    wait_until_gone(pids)
    script.check_clean()


def test_when_the_launcher_is_killed_the_caller_is_told(script):
    with script.started(WAITING) as process:
        pids, _ = wait_for_workers(process)
        [launcher] = psutil.Process(process.pid).children()
        launcher.kill()
        _, err = process.communicate(timeout=60)
    assert "RuntimeError: The job has failed: its launcher was killed by SIGKILL." in err
    wait_until_gone(pids)
    script.check_clean()


def test_a_job_in_a_thread_leaves_the_main_thread_free(script):
    out, _ = script.ended(
        "import threading, hvdtune, os\n"
        "results = []\n"
        "def rank(): return os.environ['HOROVOD_RANK']\n"
        "jobs = [threading.Thread(target=lambda: results.append(hvdtune.run(rank, num_proc=2)))\n"
        "        for _ in range(3)]\n"
        "[job.start() for job in jobs]\n"
        "[job.join() for job in jobs]\n"
        "print(results)\n"
    )
    assert out == f"{[['0', '1']] * 3}\n"


IGNORING = """
import os, signal, sys, time
from hvdtune import run

def wait():
    print("pid", os.getpid(), flush=True)
    time.sleep(600)

signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
run(wait, num_proc=2)
"""


def test_a_caller_that_ignores_ctrl_c_ends_its_workers(script):
    """A shell starts it so with `&`."""

    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    with script.started(IGNORING, preexec_fn=ignore) as process:
        pids, _ = wait_for_workers(process)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 3
    wait_until_gone(pids)


CARELESS = """
import signal, sys
from hvdtune import run

signal.signal(signal.SIGCHLD, signal.SIG_IGN)

def fail():
    raise LookupError("no such batch")

try:
    run(fail)
except RuntimeError as error:
    print(error, flush=True)

class Tee:
    def write(self, text):
        return len(text)

own, sys.stdout = sys.stdout, Tee()
seven = run(lambda: 7)
sys.stdout = own
print(seven)
"""


def test_a_caller_that_ignores_its_children_and_cannot_flush(script):
    out, _ = script.ended(CARELESS)
    assert f"The job has failed: {FAILED}: rank 0" in out
    assert "no such batch" in out
    assert out.endswith("[7]\n")
