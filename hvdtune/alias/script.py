"""Runs a Python program in this process as its interpreter would, with the alias in place.

The program becomes `__main__`, with its own sys.argv and sys.path[0]. PYTHONPATH gives the alias to
processes that it starts.
"""

from __future__ import annotations

import builtins
import os
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import BuiltinImporter, SourceFileLoader
from types import ModuleType

from hvdtune.bootstrap import given_path
from hvdtune.launch.local.environment import alias_folder, with_alias


def is_program(path: str) -> bool:
    """Whether `python PATH` would find something to run: a file, or a folder with __main__.py."""
    return bool(path) and any(map(os.path.isfile, (path, os.path.join(path, "__main__.py"))))


def run_file(path: str, arguments: Sequence[str]) -> None:
    """`python PATH ARGUMENTS`. All exceptions of the program pass through, also SystemExit."""
    sys.argv[:] = [path, *arguments]
    path = os.path.abspath(path)
    if not os.path.isfile(path) or not _is_source(path):
        # A folder or archive with __main__.py, or compiled code, is itself put on the path.
        _lead_to_alias(None)
        runpy.run_path(path, run_name="__main__")
        return
    # If a script is a link, it finds the modules next to the link's target.
    _lead_to_alias(os.path.dirname(os.path.realpath(path)))
    with open(path, "rb") as file:
        source = file.read()
    _run_as_main(source, path, SourceFileLoader("__main__", path))


def run_module(name: str, arguments: Sequence[str]) -> None:
    """`python -m NAME ARGUMENTS`."""
    sys.argv[:] = [name, *arguments]
    _lead_to_alias(os.getcwd())
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def run_code(code: str, arguments: Sequence[str]) -> None:
    """`python -c CODE ARGUMENTS`."""
    sys.argv[:] = ["-c", *arguments]
    _lead_to_alias("")
    _run_as_main(code, "<string>", BuiltinImporter)


def _lead_to_alias(folder: str | None) -> None:
    """Set sys.path[0] (`python -m hvdtune` made it the working directory), and add the alias."""
    sys.path[:] = given_path()
    if not getattr(sys.flags, "safe_path", False):  # python -P has no such entry
        sys.path[:1] = []
        if folder is not None:
            sys.path.insert(0, folder)
    alias = alias_folder(os.environ)
    rest = [entry for entry in sys.path if entry not in alias]
    first = 0 if folder is None or getattr(sys.flags, "safe_path", False) else 1
    sys.path[:] = [*rest[:first], *alias, *rest[first:]]
    os.environ.update(with_alias(os.environ))


def _is_source(path: str) -> bool:
    """Whether a file is Python source: archives and compiled modules contain zero bytes."""
    with open(path, "rb") as file:
        return b"\0" not in file.read(4096)


def _run_as_main(source: bytes | str, path: str, loader: object) -> None:
    """Execute a program's source in a new module `__main__`, which stays when the program ends.

    `runpy` would remove it before exit handlers that pickle the program's classes run.
    """
    module = ModuleType("__main__")
    module.__dict__.update(__builtins__=builtins, __loader__=loader)
    if isinstance(loader, SourceFileLoader):
        module.__dict__.update(__file__=path, __cached__=None)
    sys.modules["__main__"] = module
    try:
        exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
    except Exception as error:
        # Reported here, so that the traceback begins with the program's own frame.
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        error = error.with_traceback(trace)
        # The interpreter sets them, too: exit handlers ask whether the program has failed.
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        if sys.version_info >= (3, 12):
            sys.last_exc = error
        sys.excepthook(type(error), error, trace)
        sys.exit(1)
