"""Environments of frameworks: what is made again, and what is made of failures."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support import environments
from support.environments import ENVIRONMENTS, Environment

SMALL = Environment("small", ("one==1.*",), ("*/test_*.py",), but=("b/test_*.py",))
REQUIREMENT = r"[a-z0-9-]+(\[[a-z]+\])?([=<>][^;]*)?(; python_version (<|>=) '3\.\d+')?"


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """The commands that make an environment: none is run but for what `venv` would leave."""
    run: list[list[str]] = []

    def pretend(command: list[str]) -> None:
        run.append(command)
        if command[1:3] == ["-m", "venv"]:
            (Path(command[3]) / "lib" / "python3.0" / "site-packages").mkdir(parents=True)

    monkeypatch.setenv("HVDTUNE_TEST_ENVIRONMENTS", str(tmp_path))
    monkeypatch.setattr(environments, "_run", pretend)
    return run


def test_an_environment_is_made_once(commands, tmp_path):
    python = environments.python_of(SMALL)
    assert python == tmp_path / "small" / "bin" / "python"
    assert commands[0] == [sys.executable, "-m", "venv", str(tmp_path / "small")]
    [install] = commands[1:]
    assert (install[0], install[-1]) == (str(python), "one==1.*")
    assert environments.python_of(SMALL) == python
    assert len(commands) == 2


def test_what_has_requirements_of_its_own_is_installed_last(commands):
    environments.python_of(replace(SMALL, without_dependencies=("two",)))
    assert "--no-deps" not in commands[1]
    assert commands[2][-2:] == ["--no-deps", "two"]


@pytest.mark.parametrize(
    "changed", [{"requirements": ("one==2.*",)}, {"without_dependencies": ("two",)}]
)
def test_other_requirements_make_it_anew(commands, tmp_path, changed):
    environments.python_of(SMALL)
    (tmp_path / "small" / "old").touch()
    environments.python_of(replace(SMALL, **changed))
    assert [command[1:3] for command in commands].count(["-m", "venv"]) == 2
    assert not (tmp_path / "small" / "old").exists()


def test_other_tests_do_not_make_it_anew(commands):
    environments.python_of(SMALL)
    environments.python_of(replace(SMALL, tests=("other",)))
    assert len(commands) == 2


def test_an_unfinished_environment_is_made_anew(commands, tmp_path, monkeypatch):
    made = environments._run

    def fail_to_install(command: list[str]) -> None:
        made(command)
        if "install" in command:
            raise RuntimeError("no network")

    monkeypatch.setattr(environments, "_run", fail_to_install)
    with pytest.raises(RuntimeError, match="no network"):
        environments.python_of(SMALL)
    assert not environments.is_finished(tmp_path / "small", SMALL)
    monkeypatch.setattr(environments, "_run", made)
    environments.python_of(SMALL)
    assert environments.is_finished(tmp_path / "small", SMALL)


def test_a_python_that_is_too_new_skips(commands):
    with pytest.raises(pytest.skip.Exception, match=r"small needs Python 3\.9 or older"):
        environments.python_of(replace(SMALL, newest_python=(3, 9)))
    assert commands == []


def test_a_failed_command_skips_and_in_ci_fails(monkeypatch):
    command = [sys.executable, "-c", "raise SystemExit('no such package')"]
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no such package"):
        environments._run(command)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(RuntimeError, match="no such package"):
        environments._run(command)


def test_a_command_has_a_limit(monkeypatch):
    monkeypatch.setattr(environments, "SECONDS", 0.1)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(RuntimeError, match=r"has not ended after 0\.1 s"):
        environments._run([sys.executable, "-c", "import time; time.sleep(60)"])


def test_packages_of_the_environment_come_first_then_those_outside(tmp_path):
    """In a real environment, without packages of pip's."""
    folder, outside = tmp_path / "made", tmp_path / "outside"
    command = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    [library] = folder.glob("lib/python3*/site-packages")
    (tmp_path / "named").mkdir()
    outside.mkdir()
    (outside / "more.pth").write_text(str(tmp_path / "named"))
    for place, module in (
        (library, "both"),
        (outside, "both"),
        (outside, "outer"),
        (tmp_path / "named", "named"),
    ):
        (place / f"hvdtune_{module}.py").touch()
    environments._show_packages(folder, [str(outside)])
    code = (
        "import hvdtune_both, hvdtune_outer, hvdtune_named; "
        "print(*(m.__file__ for m in (hvdtune_both, hvdtune_outer, hvdtune_named)))"
    )
    found = subprocess.check_output([folder / "bin" / "python", "-c", code], text=True).split()
    places = [os.path.dirname(os.path.realpath(file)) for file in found]
    assert places == [os.path.realpath(one) for one in (library, outside, tmp_path / "named")]


def test_files_of_tests(tmp_path):
    for name in ("a/test_x.py", "a/help.py", "b/test_y.py", "c/test_z.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert SMALL.files(tmp_path) == [tmp_path / "a/test_x.py", tmp_path / "c/test_z.py"]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_table(name):
    environment = ENVIRONMENTS[name]
    assert environment.name == name
    for requirement in (*environment.requirements, *environment.without_dependencies):
        assert re.fullmatch(REQUIREMENT, requirement), requirement
    for pattern in environment.tests:
        assert (environments.ROOT / "tests" / pattern).parent.is_dir(), pattern


def test_no_environment_runs_the_test_of_environments():
    own = environments.ROOT / "tests" / "frameworks" / "test_in_environments.py"
    assert own.exists()
    assert all(own not in one.files(own.parents[1]) for one in ENVIRONMENTS.values())
