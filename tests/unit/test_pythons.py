"""scripts/pythons.sh: which Pythons it finds, and what it says about its use."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "pythons.sh"
BASE = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
THIS = f"{platform.python_version()} {BASE}"


def run(*words: str, path: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{path}:/usr/bin:/bin", "HOME": str(home)}
    return subprocess.run(
        [SCRIPT, *words], env=environment, capture_output=True, text=True, check=False
    )


def stand_in(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def test_help_says_what_it_takes(tmp_path: Path) -> None:
    shown = run("--help", path="", home=tmp_path)
    assert shown.returncode == 0
    for word in ("--list", "VERSION", "-- tests/unit -x"):
        assert word in shown.stdout


def test_a_python_is_found_once_under_all_its_names(tmp_path: Path) -> None:
    """On PATH, as the Python of an environment, and as one of pyenv's."""
    names = tmp_path / "bin"
    names.mkdir()
    for name in ("python3", f"python3.{sys.version_info.minor}"):
        (names / name).symlink_to(BASE)
    of_pyenv = tmp_path / ".pyenv" / "versions" / "mine" / "bin"
    of_pyenv.mkdir(parents=True)
    (of_pyenv / "python").symlink_to(BASE)
    lines = run("--list", path=str(names), home=tmp_path).stdout.splitlines()
    assert lines.count(THIS) == 1
    for wanted in (platform.python_version(), ".".join(platform.python_version_tuple()[:2])):
        chosen = run("--list", wanted, path=str(names), home=tmp_path).stdout.splitlines()
        assert THIS in chosen
        assert all(line.startswith(wanted) for line in chosen)


def test_what_is_no_such_python_is_left_out(tmp_path: Path) -> None:
    names = tmp_path / "bin"
    stand_in(names / "python3.10", "echo not for you >&2; exit 127")  # as a shim of pyenv
    stand_in(names / "python3.12", "cat >/dev/null")  # says nothing
    stand_in(tmp_path / ".pyenv" / "versions" / "3.9.1" / "bin" / "python", "exit 1")
    (names / "python3").symlink_to(BASE)
    listed = run("--list", path=str(names), home=tmp_path).stdout
    assert THIS in listed.splitlines()
    assert str(tmp_path) not in listed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--list", "3.9"], "there is no Python of 3.9 on PATH or in pyenv"),
        (["--lst"], "--lst is neither an option nor a version"),
        (["tests/unit"], "pytest's arguments come after --"),
    ],
)
def test_a_mistake_is_one_sentence(words: list[str], said: str, tmp_path: Path) -> None:
    ended = run(*words, path="", home=tmp_path)
    assert ended.returncode == 2
    assert ended.stdout == ""
    [line] = ended.stderr.splitlines()
    assert said in line


def test_a_python_that_cannot_be_used_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    """It answers as a Python does, but makes no environment."""
    names, folder = tmp_path / "bin", tmp_path / "folder"
    folder.mkdir()
    stand_in(
        names / "python3.77",
        f"[ $2 != - ] && {{ echo no module named venv; exit 1; }}; echo 3.77.1 {names}/python3.77",
    )
    environment = {**os.environ, "PATH": f"{names}:{os.environ['PATH']}", "TMPDIR": str(folder)}
    ended = subprocess.run(
        [SCRIPT, "3.77"], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout.startswith("3.77.1   no virtual environment: no module named venv, 0 min")
    assert list(folder.iterdir()) == []
