"""Public programs as clients of hvdtune: each in an environment with the packages it needs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


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
