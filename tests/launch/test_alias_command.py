"""`hvdtune alias install|remove|status` on virtual environments made for the purpose."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import psutil
import pytest
from support.jobs.ranks import clean_environment

import hvdtune.launch
from hvdtune.alias import installation

ROOT = Path(hvdtune.launch.__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    not list((ROOT / "hvdtune").glob("_native*.so")),
    reason="an editable install cannot be used from another environment",
)


class Environment:
    """A virtual environment that finds hvdtune by PYTHONPATH, or not at all."""

    def __init__(self, folder: Path) -> None:
        venv.EnvBuilder(symlinks=True).create(folder)
        self.folder = folder
        self.commands = folder / "bin"
        self.python = self.commands / "python"
        [self.packages] = folder.glob("lib/python3*/site-packages")

    def call(self, *words: object, status: int = 0, path: object = ROOT) -> str:
        """Run a command; returns both its streams. `path` is the PYTHONPATH."""
        ended = subprocess.run(
            [*map(str, words)],
            env=clean_environment(
                {"PYTHONPATH": str(path), "PATH": f"{self.commands}:{os.environ['PATH']}"}
            ),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert ended.returncode == status, ended.stdout
        return ended.stdout

    def alias(self, *words: str, status: int = 0) -> str:
        return self.call(self.python, "-m", "hvdtune", "alias", *words, status=status)

    def files(self) -> set[Path]:
        return set(self.folder.rglob("*"))


@pytest.fixture
def environment(tmp_path) -> Environment:
    return Environment(tmp_path / "environment")


LOOK = """
import horovod, importlib.metadata, sys
import horovod.common.util
import horovod.runner.common.util.hosts
from horovod import run
import hvdtune
assert run is hvdtune.run
print(horovod.__version__, importlib.metadata.version("horovod"), hvdtune.__file__)
try:
    import horovod.nope
except ImportError as error:
    print(error)
"""


def test_from_install_to_remove(tmp_path):
    # A blank in its path: no first line of a script can name that interpreter.
    environment = Environment(tmp_path / "an environment")
    before = environment.files()
    assert "now mean hvdtune" in environment.alias("install")
    for _ in range(2):
        seen = environment.call(environment.python, "-c", LOOK, path="").splitlines()
        assert seen[0] == f"0.28.1 0.28.1 {ROOT / 'hvdtune' / '__init__.py'}"
        assert "horovod.nope is not part of this version" in seen[1]
        # horovodrun by name and as a script for Python, without hvdtune on the path.
        for command in (["horovodrun"], [environment.python, environment.commands / "horovodrun"]):
            printed = environment.call(
                *command, "-np", "2", environment.python, "-c", "import horovod; print('up')",
                path="",
            )  # fmt: skip
            assert sorted(printed.splitlines()) == ["[0]<stdout>:up", "[1]<stdout>:up"]
        status = environment.alias("status")
        assert f"hvdtune, through hvdtune alias install in {environment.packages}\n" in status
        assert f"hvdtune run, through {environment.commands / 'horovodrun'}\n" in status
        assert "horovod 0.28.1, hvdtune's" in status
        environment.alias("install")  # again, over the first
    assert "removed" in environment.alias("remove")
    assert environment.files() == before
    assert "nothing to remove" in environment.alias("remove")


def test_pip_sees_and_uninstalls_it(environment):
    pytest.importorskip("pip")
    before = environment.files()
    environment.alias("install")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python"]
    shown = environment.call(*pip, environment.python, "show", "-f", "horovod", path="")
    assert "Version: 0.28.1\n" in shown
    assert "bin/horovodrun\n" in shown
    environment.call(*pip, environment.python, "uninstall", "-y", "horovod", path="")
    assert environment.files() == before


def real_package(environment: Environment) -> Path:
    package = environment.packages / "horovod" / "__init__.py"
    package.parent.mkdir()
    package.write_text("__version__ = '0.27.0'\n")
    return package


def real_metadata(environment: Environment) -> Path:
    metadata = environment.packages / "horovod-0.27.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.27.0\n")
    return environment.packages


def real_command(environment: Environment) -> Path:
    command = environment.commands / "horovodrun"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    return command


@pytest.mark.parametrize(
    ("real", "shown"),
    [
        (real_package, "import horovod                        not hvdtune: "),
        (real_metadata, "horovod 0.27.0, not hvdtune's"),
        (real_command, "horovodrun                            not hvdtune: "),
    ],
)
def test_the_real_horovod_is_left_alone(environment, real, shown):
    where = real(environment)
    before = environment.files()
    refused = environment.alias("install", status=1)
    assert refused.startswith("hvdtune alias: ")
    assert str(where) in refused
    assert "uninstall it first" in refused
    assert refused.count("\n") == 1
    assert "nothing to remove" in environment.alias("remove")
    assert shown in environment.alias("status")
    assert environment.files() == before


def test_a_failed_installation_leaves_nothing(environment):
    no_folder = environment.folder / "file"
    no_folder.write_text("")
    before = environment.files()
    with pytest.raises(installation.AliasError, match=f"^{no_folder} cannot be written: .*; use"):
        installation.install(installation.Place(environment.packages, no_folder))
    assert environment.files() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_folders_that_cannot_be_written(environment):
    environment.packages.chmod(0o555)
    try:
        refused = environment.alias("install", status=1)
    finally:
        environment.packages.chmod(0o755)
    assert "horovod cannot be written: Permission denied; use" in refused
    assert refused.count("\n") == 1


def test_status_says_by_what_horovod_is_found(environment):
    alias = ROOT / "hvdtune" / "_alias"
    status = (environment.python, "-m", "hvdtune", "alias", "status")
    assert "import horovod                        nothing: " in environment.call(*status)
    by_path = environment.call(*status, path=f"{ROOT}:{alias}")
    assert f"hvdtune, through PYTHONPATH ({alias})\n" in by_path
    # As the wheel of hvdtune has it; no obstacle to an installation.
    (environment.packages / "hvdtune-horovod-alias.pth").write_text(f"{alias}\n")
    assert "hvdtune, through hvdtune-horovod-alias.pth, last" in environment.call(*status)
    environment.alias("install")
    by_install = environment.call(*status)
    assert f"hvdtune, through hvdtune alias install in {environment.packages}\n" in by_install
    preferred = environment.call("env", "HVDTUNE_PREFER_HOROVOD=1", *status)
    assert "python -m hvdtune  as above: HVDTUNE_PREFER_HOROVOD=1 is set\n" in preferred


def test_what_was_changed_since_stays(environment):
    environment.alias("install")
    command = environment.commands / "horovodrun"
    command.write_text("#!/bin/sh\necho mine\n")
    refused = environment.alias("remove", status=1)
    assert f"{command} has been changed since it was installed; it stays." in refused
    assert command.read_text().endswith("mine\n")
    assert not list(environment.packages.glob("horovod*"))


def test_without_hvdtune_it_says_what_is_missing(environment, tmp_path, monkeypatch):
    monkeypatch.setattr(installation, "root", lambda: tmp_path / "nowhere")
    installation.install(installation.Place(environment.packages, environment.commands))
    python, run = environment.python, environment.commands / "horovodrun"
    for command in ([python, "-c", "import horovod.torch"], [python, run, "-np", "1", "true"]):
        said = environment.call(*command, status=1, path="")
        assert f"hvdtune is not installed for {python}" in said


def test_a_users_own_folders(environment, tmp_path):
    """With the Python that the tests' environment is made from: it looks into them."""
    python = psutil.Process().exe()
    base = tmp_path / "base"
    call = ["env", f"PYTHONUSERBASE={base}", python, "-m", "hvdtune", "alias"]
    enabled = environment.call(
        *call[:3], "-c", "import site, sys; print(site.ENABLE_USER_SITE, sys.prefix)"
    )
    if not enabled.startswith("True"):
        pytest.skip("this Python has no user site")
    assert f"{base}/bin/horovodrun now mean hvdtune" in environment.call(*call, "install", "--user")
    look = environment.call(*call[:3], "-c", LOOK, path="")
    assert look.startswith("0.28.1 0.28.1 ")
    environment.call(*call, "remove", "--user")
    assert not [path for path in base.rglob("*") if path.is_file()]
    refused = environment.alias("install", "--user", status=1)
    assert "does not look into a user's own folders" in refused


def test_where_hvdtune_is_the_users_so_is_the_alias(monkeypatch):
    monkeypatch.setattr(installation.site, "ENABLE_USER_SITE", True)
    user = installation.user_place()
    assert installation.default_place() == installation.environment_place() != user
    monkeypatch.setattr(installation, "root", lambda: user.packages)
    assert installation.default_place() == user
