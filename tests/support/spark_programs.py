"""Programs of rank_programs that have a Spark session of their own, each run in a new process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hvdtune.launch.local.environment import alias_folder

TESTS = Path(__file__).resolve().parents[1]
SECONDS = 500.0  # on a machine with nothing else to do, a tenth of that


def run(name: str, folder: Path, **variables: str) -> dict[str, Any]:
    """What a program has found, which it prints as JSON in its last line; it works in `folder`."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Java is not installed")
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([*alias_folder({}), str(TESTS), *filter(None, sys.path)]),
        "OMP_NUM_THREADS": "1",
        **variables,
    }
    command = [sys.executable, "-m", f"rank_programs.{name}", json.dumps(settings(folder))]
    process = subprocess.Popen(
        command, env=environment, cwd=folder, text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        shown, errors = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, shown[-3000:] + errors[-3000:]
    found: dict[str, Any] = json.loads(shown.splitlines()[-1])
    return found


def settings(folder: Path) -> dict[str, str]:
    """What keeps a session to itself and quiet."""
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.memory": "512m",
    }
