"""hvdtune's own processes import nothing from the working directory, nor from beside the script."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.jobs.launcher import launch
from support.jobs.ranks import clean_environment, hvdtune_command

from hvdtune.bootstrap import own_path, python_command

# Of the standard library, of hvdtune's dependencies, and of what is looked for but need not be.
NAMES = (
    *("argparse", "asyncio", "bisect", "calendar", "cloudpickle", "code", "copy", "csv", "ctypes"),
    *("dataclasses", "datetime", "errno", "fcntl", "getpass", "glob", "gzip", "hashlib", "heapq"),
    *("html", "inspect", "json", "logging", "math", "mpi4py", "numpy", "pandas", "pathlib"),
    *("pickle", "platform", "plotly", "psutil", "pynvml", "queue", "random", "resource", "rich"),
    *("scipy", "secrets", "select", "selectors", "shlex", "shutil", "signal", "sklearn", "skopt"),
    *("socket", "statistics", "string", "struct", "subprocess", "tempfile", "textwrap"),
    *("threading", "token", "torch", "types", "typing", "uuid", "yaml", "zlib"),
)
# It says who executed it, and takes the process down.
HOSTILE = """
import os, sys
with open(os.environ["EXECUTED"], "a") as file:
    file.write(f"{__name__} by {sys.orig_argv}\\n")
raise ImportError(f"{__file__} was imported")
"""
TRAIN = """
import sys
sys.path.pop(0)  # what is beside it
import numpy, hvdtune as hvd
hvd.init()
for step in range(20):
    hvd.allreduce(numpy.ones(4, numpy.float32), name="x")
"""
RECORDED = """
import sys
sys.path.pop(0)
import numpy, hvdtune as hvd
hvd.init()
hvd.start_timeline(sys.argv[1])
hvd.allreduce(numpy.ones(4, numpy.float32), name="x")
hvd.shutdown()
"""


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory full of files that nobody may execute; checked at the end."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(HOSTILE)
    executed = tmp_path / "executed"
    monkeypatch.setenv("EXECUTED", str(executed))
    yield folder
    assert not executed.exists(), executed.read_text()


def run(folder: Path, *words: str, **environ: str) -> str:
    """Run a command in the folder; what it printed."""
    ended = subprocess.run(
        words,
        cwd=folder,
        env=clean_environment(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


def by_module(*words: str) -> list[str]:
    """`python -m hvdtune`; Python itself loads some modules before hvdtune is asked."""
    return [sys.executable, "-m", "hvdtune", *words]


START = pytest.mark.parametrize("start", [hvdtune_command, by_module], ids=["hvdtune", "python -m"])
VERBS = [
    ("run", "-np", "2", "true"),
    ("run", "-np", "2", "-H", "localhost:2", "--verbose", "true"),
    ("run", "--check-build"),
    ("doctor",),
    ("config",),
    ("alias", "status"),
    ("autotune", "list"),
    ("bench", "--np", "2", "-b", "4", "-e", "4", "--workload", "none"),
]


def spare_what_python_needs(folder: Path) -> None:
    """For `python -m`, and for the command as pip writes it if PYTHONPATH means the working
    directory: they load these before anything of hvdtune's."""
    loaded = run(folder.parent, sys.executable, "-c", "import re, runpy, sys; print(*sys.modules)")
    for name in {*loaded.split()} & {*NAMES}:
        (folder / f"{name}.py").unlink()


@START
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: " ".join(verb[:2]))
def test_every_command(hostile, start, verb):
    if start is by_module:
        spare_what_python_needs(hostile)
    run(hostile, *start(*verb), HVDTUNE_AUTOTUNE_STORE="store.json")


@pytest.mark.parametrize("path", ["", ":", ".", "hostile/../.", "..:.", "{here}", "{here}:."])
def test_a_pythonpath_that_means_the_working_directory(hostile, path):
    spare_what_python_needs(hostile)
    path = path.format(here=hostile) or os.pathsep
    inherited = os.environ.get("PYTHONPATH", "")
    run(hostile, *hvdtune_command("doctor"), PYTHONPATH=os.pathsep.join([inherited, path]))


def test_ranks_keep_pythons_rules(hostile):
    spare_what_python_needs(hostile)
    (hostile / "rank.py").write_text("import mine; print(mine.__file__)")
    (hostile / "mine.py").write_text("")
    for command in (hvdtune_command("run", "-np", "1", sys.executable), by_module()):
        assert str(hostile / "mine.py") in run(hostile, *command, "rank.py")
        there = run(hostile, *command, "-c", "import mine; print(mine.__file__)")
        assert "mine.py" in there


def test_timelines_are_joined_and_read(hostile):
    (hostile / "train.py").write_text(TRAIN)
    words = ("run", "-np", "2", "--timeline-filename", "t.json", sys.executable, "train.py")
    assert "not joined" not in run(hostile, *hvdtune_command(*words))
    assert [path.name for path in hostile.glob("*.json")] == ["t.json"]
    for words in (
        ("timeline", "check", "t.json"),
        ("report", "t.json", "-o", "page.html"),
        ("diff", "t.json", "t.json"),
    ):
        run(hostile, *hvdtune_command(*words))
    spare_what_python_needs(hostile)
    run(hostile, *by_module("report", "t.json"))


def test_a_failed_jobs_timelines_are_joined_by_the_launcher(hostile):
    (hostile / "train.py").write_text(TRAIN + "sys.stdout.flush(); import os; os._exit(3)\n")
    words = ["run", "-np", "2", "--timeline-filename", "t.json", sys.executable, "train.py"]
    ended = launch(hostile, words)
    assert ended.status == 3
    assert "not joined" not in ended.stderr
    assert [path.name for path in hostile.glob("*.json")] == ["t.json"]


def test_a_recording_of_a_rank_is_joined_by_a_process_of_hvdtunes_own(hostile):
    (hostile / "train.py").write_text(RECORDED)
    words = ("run", "-np", "2", sys.executable, "train.py", str(hostile / "t.json"))
    assert "not joined" not in run(hostile, *hvdtune_command(*words), HOROVOD_TIMELINE="DYNAMIC")
    assert [path.name for path in hostile.glob("*.json")] == ["t.json"]


def test_the_optimiser_and_functions(hostile):
    code = """
import sys
sys.path[:] = [entry for entry in sys.path if entry]
import hvdtune
from hvdtune.autotune.session.client import ServiceClient
from hvdtune.autotune.search.space import Dimension, Space
client = ServiceClient(Space((Dimension("cycle_time", "log", 0.1, 25.0),)))
print(client._process.stdout.readline())
client.close()
print(hvdtune.run(max, args=(1, 2), num_proc=2))
"""
    printed = run(hostile, sys.executable, "-c", code)
    assert '{"ready": true}' in printed
    assert "[2, 2]" in printed


def test_an_agent(hostile):
    module = "hvdtune.launch.remote.agent"
    code = f"import sys, {module} as agent; print(sys.path)"
    words = python_command(module)
    words[2] = words[2].partition(f"from {module}")[0] + code
    path = eval(run(hostile, *words))
    assert "" not in path
    assert str(hostile) not in path


# ---- the rule ----

LIBRARY = str(Path(os.__file__).parent)


@pytest.mark.parametrize(
    ("entries", "stated", "kept"),
    [
        (["/a", LIBRARY, "/site"], "/a", [LIBRARY, "/a", "/site"]),
        (["/a", "{here}", LIBRARY, "/site"], "/a:{here}", [LIBRARY, "/a", "/site", "{here}"]),
        (["{here}", LIBRARY, "/site"], ".", [LIBRARY, "/site"]),
        (["{here}/lib", "{here}", LIBRARY], "lib::/x", [LIBRARY]),
        ([LIBRARY, "/site", "{here}"], "", [LIBRARY, "/site", "{here}"]),
        ([f"{LIBRARY}/lib-dynload", LIBRARY], "/b", [f"{LIBRARY}/lib-dynload", LIBRARY]),
    ],
)
def test_what_is_left_of_the_path(tmp_path, monkeypatch, entries, stated, kept):
    monkeypatch.chdir(tmp_path)
    here = str(tmp_path)
    entries, kept = ([entry.format(here=here) for entry in some] for some in (entries, kept))
    assert own_path(entries, stated.format(here=here)) == kept


def test_a_working_directory_that_is_gone(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    words = hvdtune_command("doctor")
    run(tmp_path, "sh", "-c", f'cd {gone} && rmdir {gone} && exec "$@"', "sh", *words)
