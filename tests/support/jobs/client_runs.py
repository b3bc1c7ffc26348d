"""Runs public programs, in files of their own, that have hvdtune for Horovod."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from support.jobs.ranks import clean_environment


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
