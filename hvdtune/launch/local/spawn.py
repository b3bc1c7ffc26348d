"""Starting one worker process, by the launcher or by its agent on another host."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
from collections.abc import Mapping, Sequence

from hvdtune.launch.local import processes
from hvdtune.launch.local.program import not_started

# Resources that the machine, or this user, may have run out of.
_SHORTAGES = {
    errno.EAGAIN: "no more processes may be started (ulimit -u, or pids.max of the container)",
    errno.ENOMEM: "there is no memory left for another process",
    errno.EMFILE: "the launcher may not open more files (ulimit -n)",
    errno.ENFILE: "this machine may not open more files (fs.file-max)",
}


class StartError(Exception):
    """The command cannot be executed; `status` is what a shell would return."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        super().__init__(text)

    @classmethod
    def of(cls, program: str, error: OSError) -> StartError:
        """The error for a program that the kernel did not start."""
        return cls(127 if error.errno == errno.ENOENT else 126, not_started(program, error))

    @classmethod
    def of_rank(cls, rank: int | str, size: int | str, error: OSError) -> StartError:
        """The error for a rank that the machine has no room for; the ranks before it are ended."""
        why = _SHORTAGES.get(error.errno or 0, error.strerror or str(error))
        return cls(126, f"rank {rank} of {size} cannot be started: {why}. The job has been ended.")


def start_worker(
    command: Sequence[str],
    environment: Mapping[str, str],
    descriptors: Sequence[int] = (),
    open_files: tuple[int, int] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a worker in a process group of its own; it reads nothing and writes to two pipes.

    It inherits the open files `descriptors`, and is killed when the calling thread ends.
    `open_files` is its RLIMIT_NOFILE, if not the caller's. Raises `StartError`.
    """
    parent = os.getpid()
    # Until init() handles it, the signal that starts a recording would kill the rank.
    record_signal = getattr(signal, environment.get("HVDTUNE_TIMELINE_SIGNAL", ""), None)

    def in_child() -> None:
        os.setpgid(0, 0)
        if isinstance(record_signal, signal.Signals):
            signal.signal(record_signal, signal.SIG_IGN)
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        if open_files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, open_files)
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
    except subprocess.SubprocessError:  # in_child failed for lack of resources
        shortage = OSError(errno.ENOMEM, "")
    except OSError as error:
        if error.errno not in _SHORTAGES:
            raise StartError.of(command[0], error) from None
        shortage = error
    rank, size = (environment.get(f"HOROVOD_{name}", "?") for name in ("RANK", "SIZE"))
    raise StartError.of_rank(rank, size, shortage)
