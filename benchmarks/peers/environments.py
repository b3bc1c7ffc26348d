"""Where the peers live: a virtual environment for each, and a folder for what is compiled.

All of it is in one cache folder outside the repository, and the next run uses it again; removing
the folder removes everything.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

SOURCES = Path(__file__).resolve().parent

#: Downloading and unpacking takes minutes on a slow network.
INSTALL_SECONDS = 900.0
COMPILE_SECONDS = 120.0


class Unavailable(Exception):
    """Why a peer cannot be measured, in one line."""


def default_folder() -> Path:
    """`hvdtune/compare` in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "hvdtune" / "compare"


def install(folder: Path, requirements: Sequence[str]) -> str:
    """Make `folder` a virtual environment with `requirements` from PyPI; the first one's version.

    An environment that was completed for the same requirements is used as it is. Raises Unavailable
    after removing an incomplete environment.
    """
    marker = folder / "installed.json"
    wanted = list(requirements)
    if marker.exists():
        known = json.loads(marker.read_text())
        if known["requirements"] == wanted:
            return str(known["version"])
    _check_this_python()
    shutil.rmtree(folder, ignore_errors=True)
    try:
        _run([sys.executable, "-m", "venv", str(folder)], INSTALL_SECONDS)
        pip = [str(folder / "bin" / "python"), "-m", "pip"]
        # Wheels only: building an MPI from source would take longer than the comparison.
        quiet = ["install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]
        _run([*pip, *quiet, *wanted], INSTALL_SECONDS)
        shown = _run([*pip, "--disable-pip-version-check", "show", wanted[0]], INSTALL_SECONDS)
    except Unavailable:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    version = next(line.split()[1] for line in shown.splitlines() if line.startswith("Version:"))
    marker.write_text(json.dumps({"requirements": wanted, "version": version}))
    return version


def _check_this_python() -> None:
    """Raises Unavailable, saying what to install, if this Python cannot make environments."""
    # Debian ships Python without these modules; `python -m venv` there prints ten lines.
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        debian = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
        raise Unavailable(
            f"{sys.executable} cannot make virtual environments: it has no module "
            f"{' and no module '.join(missing)}; install it (Debian: apt-get install {debian}), "
            "or start compare.py with a Python that has it"
        )


def compile_mpi(compiler: str, output: Path, environ: Mapping[str, str]) -> None:
    """Compile mpi.c with an MPI's compiler wrapper; raises Unavailable."""
    flags = ["-O2", "-std=c11", "-D_GNU_SOURCE"]
    _compile([compiler, *flags, str(SOURCES / "mpi.c"), "-lm"], output, environ)


def compile_oneccl(environment: Path, output: Path) -> None:
    """Compile oneccl.cpp against the oneCCL of `environment`; raises Unavailable."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise Unavailable("no C++ compiler (c++, g++ or clang++) on this machine")
    library = environment / "lib"
    command = [compiler, "-O2", "-std=c++17", "-isystem", str(environment / "include")]
    command += [str(SOURCES / "oneccl.cpp"), f"-L{library}", "-l:libccl.so.1"]
    # Its own dependencies (SYCL, only used on GPUs) are found when it is loaded.
    command += [f"-Wl,-rpath,{library}", "-Wl,--allow-shlib-undefined"]
    _compile(command, output, os.environ)


def _compile(command: Sequence[str], output: Path, environ: Mapping[str, str]) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    _run([*command, "-o", str(output)], COMPILE_SECONDS, environ)


def _run(command: Sequence[str], seconds: float, environ: Mapping[str, str] | None = None) -> str:
    name = Path(command[0]).name
    try:
        finished = subprocess.run(
            command,
            env=None if environ is None else dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"`{name}` took longer than {seconds:g} s") from None
    except OSError as error:
        raise Unavailable(f"`{name}` cannot be started: {error.strerror}") from None
    if finished.returncode != 0:
        said = reason(finished.stderr) or reason(finished.stdout)
        raise Unavailable(f"`{name}` failed: {said or f'status {finished.returncode}'}")
    return finished.stdout


def reason(output: str) -> str:
    """The most informative line of a program's output: the first error, else the last line.

    `error:` marks an error more reliably than the word `error`, which is also in pip's warnings
    about a network that is down.
    """
    lines = [line.strip() for line in output.splitlines() if any(map(str.isalnum, line))]
    for mark in ("error:", "error"):
        errors = [line for line in lines if mark in line.lower()]
        if errors:
            return errors[0][:300]
    return lines[-1][:300] if lines else ""
