"""Intel MPI of PyPI, in an environment of its own: two MPIs have files of the same names."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

PACKAGE = "impi-rt==2021.18.1"
SECONDS = 200


@cache
def intel_mpi() -> Path:
    """The environment; made in the user's cache. Skips the test if it cannot be had."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = caches / "hvdtune-tests" / PACKAGE.replace("==", "-")
    if not (folder / "bin" / "mpiexec.hydra").exists():
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", PACKAGE]
        for command in ([sys.executable, "-m", "venv", str(folder)], pip):
            try:
                made = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
            except subprocess.TimeoutExpired:
                pytest.skip(f"{' '.join(command)} has not ended after {SECONDS} s")
            if made.returncode != 0:
                pytest.skip(f"{' '.join(command)}: {made.stderr.strip()[-500:]}")
    return folder


def environment(folder: Path, agent: Path) -> dict[str, str]:
    """For its mpiexec, which reaches hosts by `agent`."""
    return {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "I_MPI_ROOT": str(folder),
        "FI_PROVIDER": "tcp",
        "FI_PROVIDER_PATH": str(folder / "lib"),
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": str(agent),
    }
