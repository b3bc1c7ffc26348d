"""Rank programs about the process that a rank is: how it begins, and the ways in which it ends."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

# Before anything else is imported here.
AT_FIRST = {name.partition(".")[0] for name in sys.modules} & {"hvdtune", "torch"}
DESCRIPTORS_AT_FIRST = sorted(os.listdir("/proc/self/fd"), key=int)

LEFT_TO_THE_END: list[object] = []


class TellsItsEnd:
    """Prints when it is destroyed: a module's objects are, in an interpreter's normal end."""

    def __del__(self) -> None:
        os.write(1, b"destroyed\n")


def describe() -> dict[str, Any]:
    """What a program can find out about its process."""
    handlers = {
        number: str(signal.getsignal(number)) for number in signal.valid_signals() if number < 32
    }
    files = [os.readlink(f"/proc/self/fd/{number}") for number in range(3)]
    return {
        "environment": dict(os.environ),
        "environment of children": sorted(subprocess.check_output(["env", "-0"]).split(b"\0")),
        "modules": AT_FIRST,
        # The one that lists them is the last.
        "descriptors": DESCRIPTORS_AT_FIRST[:-1],
        "files": [os.path.relpath(name, os.getcwd()) for name in files[1:]] + files[:1],
        "leads its session": os.getsid(0) == os.getpgrp() == os.getpid(),
        "handlers": handlers,
        "blocked": str(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "umask": subprocess.check_output(["sh", "-c", "umask"]),
        "argv": [sys.argv[0], os.path.relpath(sys.argv[1])],
        "orig_argv": sys.orig_argv[:2],
        "path": sys.path,
        "flags": str(sys.flags),
        "main": list(vars(sys.modules["__main__"]).get("__file__", "")[-3:]),
        "stdout": (sys.stdout.write_through, sys.stdout.line_buffering, sys.stdout.encoding),
        "stderr": (sys.stderr.write_through, sys.stderr.line_buffering, sys.stderr.encoding),
        "collects": (gc.isenabled(), gc.get_threshold()),
        "for temporary files": tempfile.gettempdir(),
        "time zone": time.tzname,
        "threads": len(os.listdir("/proc/self/task")),
    }


def parent() -> int:
    """The process id of whoever started this rank."""
    return os.getppid()


def end(how: str) -> int:
    """End in the given way; what is then still done is told on stdout."""
    atexit.register(print, "exit handler")
    LEFT_TO_THE_END.append(TellsItsEnd())
    print("begun", end="")
    if how == "fail":
        raise ValueError("what is wrong")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "terminate":
        signal.raise_signal(signal.SIGTERM)
    if how == "interrupt":
        signal.raise_signal(signal.SIGINT)
    if how == "at once":
        os._exit(5)
    if how == "with a number":
        sys.exit(3)
    if how == "with a text":
        sys.exit("what is wrong")
    return 1


def wait_for_end() -> None:
    """Say that it runs, and wait to be killed."""
    print("waiting", end="")
    time.sleep(600)


def leave_a_process() -> None:
    """Start a process that is out of reach for who kills this rank's group."""
    code = "import time; time.sleep(600)"
    subprocess.run(["setsid", "--fork", sys.executable, "-c", code], check=True)
