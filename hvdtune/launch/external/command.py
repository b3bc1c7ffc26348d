"""Running another launcher, mpirun or jsrun, as the job.

It writes to our own stdout and stderr, and its exit status is ours. It runs guarded (see
`hvdtune.launch.local.guard`): processes that it leaves behind on this host are killed.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from hvdtune.launch.job import run_guarded
from hvdtune.launch.local import processes
from hvdtune.launch.local.endings import exit_status, signal_name
from hvdtune.launch.local.guard import ENDING_SIGNALS, FORWARDED_SIGNALS

# mpirun ends its processes within a few seconds of SIGTERM.
GRACE_SECONDS = 10.0


def run_external(
    command: Sequence[str], environment: Mapping[str, str], *, verbose: bool = False
) -> int:
    """Run a launcher to its end and return its exit status, 128 + N if signal N killed it.

    SIGINT and similar signals reach it as SIGTERM; the status is 128 + N for them as well. If it
    does not end in time, or the user interrupts again, it is killed. 126 or 127: it cannot be
    started.
    """
    if verbose:
        print(f"hvdtune run: {shlex.join(command)}", file=sys.stderr, flush=True)
    return run_guarded(lambda: _supervise(command, environment), environment)


def _supervise(command: Sequence[str], environment: Mapping[str, str]) -> int:
    watched = {n for n in (*ENDING_SIGNALS, *FORWARDED_SIGNALS) if _is_heard(n)}
    watched |= {signal.SIGTERM, signal.SIGCHLD}
    # Blocked signals wait for sigtimedwait: none is lost, and no handler runs.
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    parent = os.getpid()

    def in_child() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, watched)
        processes.die_with_parent(signal.SIGTERM, parent)

    try:
        process = subprocess.Popen(
            command, env=dict(environment), stdin=subprocess.DEVNULL, preexec_fn=in_child
        )
    except OSError as error:
        _say(f"cannot start {command[0]!r}: {error.strerror}.")
        return 127 if isinstance(error, FileNotFoundError) else 126
    stopped, deadline = 0, float("inf")
    while process.poll() is None:
        left = min(max(0.0, deadline - time.monotonic()), 3600.0)
        heard = signal.sigtimedwait(watched, left)
        number = heard.si_signo if heard else 0
        if number in FORWARDED_SIGNALS:
            _send(process, number)
        elif number in ENDING_SIGNALS and not stopped:
            _say(f"ending the job after {signal_name(number)}")
            stopped, deadline = 128 + number, time.monotonic() + GRACE_SECONDS
            _send(process, signal.SIGTERM)
        elif number in ENDING_SIGNALS or time.monotonic() >= deadline:
            process.kill()
            processes.kill_descendants()
            break
    return stopped or exit_status(process.wait())


def _is_heard(number: int) -> bool:
    return signal.getsignal(number) != signal.SIG_IGN


def _send(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


def _say(words: str) -> None:
    print(f"hvdtune run: {words}", file=sys.stderr, flush=True)
