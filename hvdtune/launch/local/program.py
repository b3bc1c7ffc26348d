"""The program of a job, as its command line has it: checks before it starts, and its errors."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence

from hvdtune.settings.spelling import nearest

_PYTHON = re.compile(r"(python|pypy)[\d.]*t?")
_SHELL = re.compile(r"(ba|da|k|z)?sh")
#: Programs that start another one, which is among the words after them.
_WRAPPERS = {"env", "nice", "nohup", "numactl", "setsid", "stdbuf", "taskset", "time"}


def without_script(command: Sequence[str]) -> str | None:
    """The interpreter, as `command` has it, that would read its program from standard input."""
    words = list(command)
    if os.path.basename(words[0]) in _WRAPPERS:
        at = (i for i, word in enumerate(words) if _is(_PYTHON, word) or _is(_SHELL, word))
        words = words[next(at, 0) :]
    program, *rest = words
    if _is(_PYTHON, program):
        found = _reads_input(rest, enough="cmhV?", valued="WX")
    elif _is(_SHELL, program):
        found = _reads_input(rest, enough="c", valued="oO")
    else:
        return None
    return program if found else None


def _is(pattern: re.Pattern[str], word: str) -> bool:
    return bool(pattern.fullmatch(os.path.basename(word)))


def _reads_input(words: Sequence[str], *, enough: str, valued: str) -> bool:
    """Whether an interpreter's words name no program.

    The letters `enough` are options with which no program is needed, `valued` those with a value.
    """
    rest = iter(words)
    for word in rest:
        if word == "-":
            return True
        if word in ("--help", "--version") or not word.startswith(("-", "+")):
            return False
        if word.startswith("--"):
            continue
        for at, letter in enumerate(word[1:], 2):
            if letter in enough:
                return False
            if letter in valued:
                if at == len(word):
                    next(rest, None)
                break
    return True


def not_started(program: str, error: OSError) -> str:
    """Why the kernel did not start a program, and which one the user may have meant."""
    hint = ""
    if error.errno in (errno.EACCES, errno.ENOEXEC) and program.endswith(".py"):
        hint = f" Did you mean: python {program}?"
    elif error.errno == errno.ENOENT and os.path.isfile(program):
        if program.endswith(".py"):
            hint = f" Did you mean: python {program}?"
        elif "/" in program:
            hint = " The file is there; the program that its first line names is not."
        else:
            hint = f" Did you mean: ./{program}?"
    elif error.errno == errno.ENOENT and (near := nearest(program, ("python", "python3"))):
        hint = f" Did you mean: {near}?"
    return f"cannot start {program!r}: {error.strerror}.{hint}"
