"""Finds what a test left behind: processes and files in /dev/shm."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from support.jobs import ranks
from support.jobs.nursery import MARK

SHARED_MEMORY = Path("/dev/shm")
GRACE = 15.0  # seconds that killed processes and launchers' clean-up may take to disappear

# Python's own helper process, which serves the test process until that ends; Ray's, which wait for
# work and for clients as long as a file's session lasts; and Chromium's, which it starts of its own
# accord at any time, and ends with itself.
HELPERS = (
    *("multiprocessing.resource_tracker", "multiprocessing.forkserver"),
    *("ray::IDLE", "ray.util.client.server"),
    *("/chromium --type=", "/chrome --type="),
)


@dataclass(frozen=True)
class Before:
    """What was there when the test began."""

    mark: str
    children: frozenset[int]
    shared_memory: frozenset[str]


def look(mark: str) -> Before:
    """Note what is there before a test whose processes carry ``mark`` in their environment."""
    return Before(mark, frozenset(_children()), frozenset(_shared_memory()))


def left_by_test(before: Before, grace: float = GRACE) -> list[str]:
    """What the test left, one sentence each, after ``grace`` seconds to go away by itself.

    Processes found are killed, so that one test's fault is not reported for the next one too.
    """
    deadline = time.monotonic() + grace
    while True:
        processes = _processes_left(before)
        files = _files_left(before)
        if not (processes or files) or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return [f"process {pid} still runs: {line}" for pid, line in processes.items()] + [
        f"{SHARED_MEMORY / name} is still there" for name in files
    ]


def _processes_left(before: Before) -> dict[int, str]:
    marked = {pid for pid in psutil.pids() if pid != os.getpid() and _is_marked(pid, before.mark)}
    left = {}
    nurseries = ranks.nurseries.pids if ranks.nurseries else set()
    parents = {os.getpid(), *nurseries}
    for pid in marked | (set(_children()) - before.children - nurseries):
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            line = " ".join(process.cmdline()) or process.name()
            zombie = process.status() == psutil.STATUS_ZOMBIE
            # An orphaned zombie waits for init and holds nothing; our own is one nobody waited for.
            if not (zombie and process.ppid() not in parents) and not any(
                helper in line for helper in HELPERS
            ):
                left[pid] = line
    return left


def _is_marked(pid: int, mark: str) -> bool:
    try:
        return f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def _children() -> list[int]:
    return [child.pid for child in psutil.Process().children(recursive=True)]


def _shared_memory() -> list[str]:
    return os.listdir(SHARED_MEMORY)


def _files_left(before: Before) -> list[str]:
    new = sorted(set(_shared_memory()) - before.shared_memory)
    # Another program on this machine may make files meanwhile: those it still uses are its own.
    used = _files_in_use() if new else set()
    return [name for name in new if str(SHARED_MEMORY / name) not in used]


def _files_in_use() -> set[str]:
    used = set()
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                used.add(line.split(maxsplit=5)[-1])
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    used.add(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
    return used
