"""What README shows runs as it is written there, also in a checkout."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.jobs.ranks import clean_environment, hvdtune_command, new_directory, run_under
from support.tiers import EVERY

import hvdtune

README = Path(__file__).resolve().parents[2] / "README.md"


def programs() -> list[str]:
    """README's Python programs, in order."""
    return re.findall(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.M | re.S)


def run_program(text: str, ranks: int) -> str:
    """Run a program under `hvdtune run`; returns what the job printed to stdout."""
    script = new_directory() / "train.py"
    script.write_text(text, encoding="utf-8")
    return run_under(hvdtune_command("run", "-np", str(ranks)), script)[0].stdout


def test_the_function_as_a_job() -> None:
    script = new_directory() / "job.py"
    script.write_text(programs()[1], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script],
        cwd=script.parent,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == ["[0, 10]"], done.stdout + done.stderr


def test_the_numpy_script() -> None:
    printed = run_program(programs()[2], 2)
    assert sorted(printed.splitlines()) == [
        "[0]<stdout>:0 [2. 2. 2.]",
        "[1]<stdout>:1 [2. 2. 2.]",
    ]


# ---- from its first line to its last code block ----

# A module of the user's that stands for the one of the same name, and says which process ran it.
OF_THE_USER = """
import os, sys
from importlib import _bootstrap
from importlib.machinery import PathFinder

with open(os.environ["EXECUTED"], "a") as file:
    file.write(f"{__name__} {sys.orig_argv}\\n")
folder = os.path.dirname(os.path.realpath(__file__))
rest = [entry for entry in sys.path if os.path.realpath(entry) != folder]
spec = PathFinder.find_spec(__name__, rest)
sys.modules[__name__] = module = _bootstrap.module_from_spec(spec)
spec.loader.exec_module(module)
"""
NAMES = (
    *("calendar", "csv", "json", "logging", "numpy", "pandas", "platform", "random", "select"),
    *("shutil", "socket", "statistics", "string", "subprocess", "tempfile", "uuid", "yaml"),
)
SLOW = ("pip install", "python3 -m venv", "hvdtune bench")
FILES = ("train.py", "job.py", "sums.py")  # README names the first; the others are as good


def blocks() -> list[tuple[str, str]]:
    """README's code blocks in order: language and text."""
    text = README.read_text(encoding="utf-8")
    return re.findall(r"^```(python|sh)\n(.*?)^```$", text, re.M | re.S)


def follow(folder: Path, environ: dict[str, str], left_out: tuple[str, ...]) -> str:
    """Do in the folder what README says, but commands beginning with `left_out`; the output."""
    files = iter(FILES)
    script = "set -e\n"
    for language, text in blocks():
        if language == "python":
            name = next(files)
            (folder / name).write_text(text, encoding="utf-8")
            # README starts the first one itself, after that.
            script += "" if name == "train.py" else f"python {name}\n"
        else:
            script += "".join(
                f"{line}\n" for line in text.splitlines() if not line.startswith(left_out)
            )
    ended = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


def check(folder: Path, printed: str) -> None:
    """Each of README's lines has done what README says."""
    losses = re.findall(r"loss ([0-9.]+) on 4 ranks$", printed, re.M)
    assert losses, printed
    # The target's weights are all 1 and the model's begin near 0: untrained, the loss is near 10.
    assert all(float(loss) < 1.0 for loss in losses), printed
    for expected in (
        "[0, 10]",
        "0 [1. 1. 1.]",
        "hvdtune autotune: ",
        "report.html: ",
    ):
        assert expected in printed, printed
    assert "not joined" not in printed
    assert "the optimiser " not in printed  # what is said of one that fails
    assert sorted(path.name for path in folder.glob("*.json")) in (
        ["t.json"],
        ["result.json", "t.json"],
    )
    assert (folder / "report.html").exists()


def with_commands(folder: Path) -> dict[str, str]:
    """An environment in which `python` and `hvdtune` are those that the tests run."""
    commands = folder / "commands"
    commands.mkdir()
    for name, words in (("python", [sys.executable]), ("hvdtune", hvdtune_command())):
        tool = commands / name
        tool.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        tool.chmod(0o755)
    return clean_environment({"PATH": f"{commands}:{os.environ['PATH']}"})


def in_a_checkout(folder: Path) -> None:
    ignored = shutil.ignore_patterns("_native*.so", "_gloo*.so", "__pycache__")
    shutil.copytree(Path(hvdtune.__file__).parent, folder / "hvdtune", ignore=ignored)


def among_modules_of_the_users(folder: Path) -> None:
    for name in NAMES:
        (folder / f"{name}.py").write_text(OF_THE_USER)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_all_of_it_as_written(tmp_path: Path) -> None:
    """In a checkout that also has modules of the user's."""
    folder = tmp_path / "here"
    folder.mkdir()
    in_a_checkout(folder)
    among_modules_of_the_users(folder)
    executed = tmp_path / "executed"
    executed.touch()
    environ = {**with_commands(tmp_path), "EXECUTED": str(executed)}
    check(folder, follow(folder, environ, (*SLOW, "source")))
    # Only the program of README itself may have imported what lies beside it.
    for line in executed.read_text().splitlines():
        assert re.search(r"'(train|job|sums)\.py'\]$|function\.worker", line), line


@pytest.mark.long
@pytest.mark.skipif(
    not EVERY, reason="builds and installs all again, as .ci/run has: HVDTUNE_TEST_LONG=1"
)
@pytest.mark.timeout(3600)
def test_all_of_it_in_a_fresh_clone_with_a_new_environment(tmp_path: Path) -> None:
    """All but the tests themselves (README's second command)."""
    root = README.parent
    clone = tmp_path / "clone"
    copied = subprocess.run(["git", "clone", "-q", root, clone], check=False)
    if copied.returncode != 0:
        pytest.skip("the tests do not lie in a clone")
    path = os.pathsep.join(
        entry
        for entry in os.environ["PATH"].split(os.pathsep)
        if entry != str(Path(sys.executable).parent)
    )
    environ = clean_environment({"HOME": str(tmp_path), "PYTHONPATH": None, "PATH": path})
    check(clone, follow(clone, environ, ("pip install '.[test]'",)))


def test_bench_in_a_checkout_uses_the_installed_package() -> None:
    # README's first command runs where `import hvdtune` would find the source, not yet compiled.
    checkout = new_directory()
    (checkout / "hvdtune").mkdir()
    (checkout / "hvdtune" / "__init__.py").write_text("raise ImportError('not compiled')\n")
    command = hvdtune_command("bench", "--np", "2", "-b", "4", "-e", "4", "--workload", "none")
    done = subprocess.run(
        command, cwd=checkout, env=clean_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "float32" in done.stdout
