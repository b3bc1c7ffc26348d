"""Starting one worker process, by the launcher or by its agent on another host."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from hvdtune.launch import processes
from hvdtune.launch.program import not_started


class StartError(Exception):
    """The command cannot be executed; `status` is what a shell would return."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        super().__init__(text)

    @classmethod
    def of(cls, program: str, error: OSError) -> StartError:
        """The error for a program that the kernel did not start."""
        return cls(127 if error.errno == errno.ENOENT else 126, not_started(program, error))


def start_worker(
    command: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start a worker in a process group of its own; it reads nothing and writes to two pipes.

    It inherits the open files `descriptors`, and is killed when the calling thread ends. Raises
    `StartError`.
    """
    parent = os.getpid()
    # Until init() handles it, the signal that starts a recording would end the rank.
    record_signal = getattr(signal, environment.get("HVDTUNE_TIMELINE_SIGNAL", ""), None)

    def in_child() -> None:
        os.setpgid(0, 0)
        if isinstance(record_signal, signal.Signals):
            signal.signal(record_signal, signal.SIG_IGN)
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        processes.die_with_parent(signal.SIGKILL, parent)

    try:
        return subprocess.Popen(
            list(command),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            pass_fds=descriptors,
            preexec_fn=in_child,
        )
    except OSError as error:
        raise StartError.of(command[0], error) from None
