"""Two processes to run one job, so that either may be killed and nothing is left.

The process that the user started only waits and passes signals on; its child, in a process group
of its own, runs the job. If the first is killed, the kernel sends the second SIGTERM, which ends
the job. If the second is killed, the first adopts its orphans and kills them. If both are killed
at the same moment, the workers' own parent-death signal ends them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from hvdtune.launch.local import processes
from hvdtune.launch.local.endings import exit_status, signal_name

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# Passed on to the workers, as mpirun does: batch systems announce the end of a job with them.
FORWARDED_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)


def guarded(job: Callable[[], int]) -> int:
    """Run `job` in a child process and return its exit status.

    The caller must have a single thread and no other children. While this runs, SIGINT, SIGTERM,
    SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to the child, which is expected to end soon
    after one of the first four. Ignored signals stay ignored.
    """
    _open_standard_descriptors()
    _flush()
    processes.become_subreaper()
    # If SIGCHLD is ignored, children vanish without an exit status.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # A signal between the fork and the handlers' installation must not be lost.
    handled = (*ENDING_SIGNALS, *FORWARDED_SIGNALS)
    signals = [number for number in handled if signal.getsignal(number) != signal.SIG_IGN]
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _run_job(job, parent)
    previous = _forward(signals, child)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        processes.kill_descendants()
        for number, handler in previous.items():
            signal.signal(number, handler)
    if code < 0:
        print(
            f"hvdtune run: the process that ran the job was killed by {signal_name(-code)}; "
            "all workers have been killed.",
            file=sys.stderr,
        )
    return exit_status(code)


def _run_job(job: Callable[[], int], parent: int) -> None:
    """The child's whole life; does not return. Signals stay blocked until `job` unblocks them."""
    code = 1
    try:
        processes.die_with_parent(signal.SIGTERM, parent)
        processes.become_subreaper()
        # Out of the terminal's foreground group, so that Ctrl-C arrives once, from the parent; and
        # still allowed to write to the terminal.
        os.setpgid(0, 0)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        code = job()
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        processes.kill_descendants()
        _flush()
        os._exit(code)


def _open_standard_descriptors() -> None:
    """Open descriptors that the caller closed (`>&-`), so that no pipe of ours becomes stdout."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.flush()


def _forward(signals: list[signal.Signals], child: int) -> dict[signal.Signals, Any]:
    def pass_on(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    return {number: signal.signal(number, pass_on) for number in signals}
