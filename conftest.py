"""Decides which hvdtune the tests run: an installed one, or one built in place in this checkout.

`python -m pytest` puts the checkout on `sys.path`. Unless hvdtune was built in place there, its
folder `hvdtune/` has no native module, and would hide the installed package.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent


def _is_checkout(entry: str) -> bool:
    return Path(entry or os.curdir).resolve() == ROOT


def _built_in_place() -> bool:
    return any((ROOT / "hvdtune" / f"_native{suffix}").exists() for suffix in EXTENSION_SUFFIXES)


def _installed() -> bool:
    elsewhere = [entry for entry in sys.path if not _is_checkout(entry)]
    if PathFinder.find_spec("hvdtune", elsewhere) is not None:
        return True
    # scikit-build-core's editable installs have a finder of their own instead of a folder.
    editable = [f for f in sys.meta_path if type(f).__name__.startswith("ScikitBuild")]
    return any(finder.find_spec("hvdtune", None) for finder in editable)


def pytest_configure(config: pytest.Config) -> None:
    """Make this process and everything it starts import the same hvdtune."""
    if _built_in_place():
        sys.path.insert(0, str(ROOT))
        inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *inherited])
    elif _installed():
        sys.path[:] = [entry for entry in sys.path if not _is_checkout(entry)]
    else:
        raise pytest.UsageError("hvdtune is not installed here; run: pip install '.[test]'")
    # A shell's background job ignores these signals; all that the tests start would inherit that.
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGQUIT, signal.SIG_DFL),
    ):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_report_header() -> str:
    """Say which hvdtune is tested."""
    return "hvdtune: " + (f"built in place in {ROOT}" if _built_in_place() else "the installed one")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave the checkout: `python -m` and `python -c` put the working directory on their path.

    Not earlier: paths on pytest's command line are relative to its starting directory.
    """
    directory = tempfile.TemporaryDirectory(prefix="hvdtune-tests-")

    def return_and_remove() -> None:
        os.chdir(session.config.invocation_params.dir)
        directory.cleanup()

    os.chdir(directory.name)
    session.config.add_cleanup(return_and_remove)
