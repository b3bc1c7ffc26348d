"""Parents, children and orphans: the means of Linux to leave no process behind.

A *subreaper* inherits the orphans among its descendants. So all of a job's processes stay its
descendants, including those that started a session of their own. A *parent-death signal* reaches
a child when the thread that started it ends, however it ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """From now on, orphaned descendants of this process become its children."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: signal.Signals, parent: int) -> None:
    """Have the kernel send this process signal `number` when the thread that forked it ends.

    `parent` is the parent's pid as known before the fork: if the parent ended before this call,
    no signal comes any more, so this process ends at once.
    """
    _prctl(_PR_SET_PDEATHSIG, int(number))
    if os.getppid() != parent:
        os._exit(128 + number)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")


def descendants(root: int) -> list[int]:
    """The pids of all living descendants of `root`; zombies are left out."""
    children: dict[int, list[int]] = {}
    zombies = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as stat:
                # The command, in parentheses, may itself contain blanks and ")".
                state, parent = stat.read().rpartition(b")")[2].split()[:2]
        except OSError:
            continue  # the process has ended
        children.setdefault(int(parent), []).append(int(entry))
        if state in (b"Z", b"X"):
            zombies.add(int(entry))
    found: list[int] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return [pid for pid in found if pid not in zombies]


def kill_descendants(within_seconds: float = 2.0) -> None:
    """SIGKILL every descendant of this process and reap those that are or become its children.

    Must be a subreaper (`become_subreaper`). Repeats until none is left, because a process may
    have forked while it was being killed. Gives up after `within_seconds`: a process in
    uninterruptible sleep dies only when it wakes.
    """
    deadline = time.monotonic() + within_seconds
    while _has_children():
        remaining = descendants(os.getpid())
        for pid in remaining:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        reap_all()
        if not remaining or time.monotonic() > deadline:
            return
        time.sleep(0.005)


def _has_children() -> bool:
    """Whether there are any, even ended ones; if not, a subreaper has no descendants either."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def reap_all() -> list[tuple[int, int]]:
    """Collect every child that has ended, as (pid, exit code); -N means killed by signal N."""
    ended = []
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended.append((pid, os.waitstatus_to_exitcode(status)))
    return ended
