"""Public programs as clients of hvdtune: each in an environment with the packages it needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ranks import clean_environment

Client = Callable[..., Any]


@pytest.fixture(scope="session")
def client_packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Path]]:
    """Installs packages of PyPI, without what they depend on, into a folder beside the tests'."""
    made: dict[tuple[str, ...], Path] = {}

    def install(*packages: str) -> Path:
        if packages not in made:
            folder = tmp_path_factory.mktemp("packages")
            options = ["-q", "--disable-pip-version-check", "--no-deps", "--target", str(folder)]
            subprocess.run(
                [sys.executable, "-m", "pip", "install", *options, *packages], check=True
            )
            made[packages] = folder
        return made[packages]

    return install


def run_client(folder: Path, packages: Path, command: list[str]) -> Any:
    """Run a client in `folder` to its end; what it wrote into found.json."""
    inherited = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join(entry for entry in (inherited, str(packages)) if entry)
    ended = subprocess.run(
        command,
        cwd=folder,
        env=clean_environment({"PYTHONPATH": path}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    return json.loads((folder / "found.json").read_text(encoding="utf-8"))
