"""hvdtune's own processes: the commands that start them, and where they import from.

A user's program finds modules as Python always does: first beside the script, or in the working
directory. hvdtune's own processes (the launcher, its agents, the optimiser, the joining of
timelines, every `hvdtune VERB`) import nothing from there, so that a user's `random.py` does not
disturb them.
"""

from __future__ import annotations

import os
import sys

#: sys.argv[0] of a process that `python_command` has started.
_OWN = "-hvdtune"
_COMMANDS = ("hvdtune", "horovodrun")
PACKAGE = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(PACKAGE)
_given: list[str] = []  # sys.path as Python made it, if `isolate` has changed it


def python_command(module: str, *arguments: str, executable: str | None = None) -> list[str]:
    """A command that runs `main(arguments)` of a module and exits with what that returns.

    The new Python imports this very package; `own_path` says where it imports the rest from.
    """
    start = (
        f"import sys; sys.argv[0] = {_OWN!r}; "
        f"sys.path[:] = [{_ROOT!r}, *filter(None, sys.path)]; "
        f"from {module} import main; sys.exit(main(sys.argv[1:]))"
    )
    return [executable or sys.executable, "-c", start, *arguments]


def isolate() -> None:
    """Set sys.path if this is one of hvdtune's own processes; otherwise do nothing.

    hvdtune calls this before it imports anything else.
    """
    first = _programs_folder()
    if first is None:
        return
    _given[:] = sys.path
    entries = sys.path[1:] if sys.path and _real(sys.path[0]) == _real(first) else sys.path
    stated = "" if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "")
    sys.path[:] = own_path(entries, stated)


def given_path() -> list[str]:
    """sys.path as Python made it: for a user's program that runs in this process."""
    return [*(_given or sys.path)]


def own_path(entries: list[str], stated: str) -> list[str]:
    """The `entries` of sys.path that hvdtune's own processes use, in their order.

    Python's standard library comes first, and the working directory last, if its full path was
    given. `stated` is PYTHONPATH: its relative folders, which depend on the working directory, are
    left out unless this package is in them.
    """
    here = _real("")
    relative = {_real(entry) for entry in stated.split(os.pathsep) if not os.path.isabs(entry)}
    left_out = relative - {_real(_ROOT)} if stated else set()
    library = os.path.dirname(os.path.abspath(os.__file__))
    libraries = (library, os.path.join(library, "lib-dynload"))

    def place(entry: str) -> int:
        return 0 if entry in libraries else 2 if _real(entry) == here else 1

    kept = (entry for entry in entries if entry in libraries or _real(entry) not in left_out)
    return sorted(kept, key=place)


def _programs_folder() -> str | None:
    """What Python, or `python_command`, put first on sys.path; None in a user's program."""
    argv = getattr(sys, "argv", None) or [""]
    if argv[0] == _OWN:
        return _ROOT
    if argv[0] == "-m":  # while the module is looked for
        word = sys.orig_argv[-len(argv)]
        is_ours = word == "hvdtune" or (word[:1] == "-" and word.endswith("mhvdtune"))
        return "" if is_ours or word.startswith("hvdtune.") else None
    if os.path.basename(argv[0]) in _COMMANDS:
        return os.path.dirname(_real(argv[0]))
    return None


def _real(entry: str) -> str:
    try:
        return os.path.realpath(entry)
    except OSError:  # the working directory has been removed
        return entry
