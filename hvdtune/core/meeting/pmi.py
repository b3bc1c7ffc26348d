"""PMI-1: the connection that MPICH's and Intel MPI's mpirun gives each process, PMI_FD.

Requests and answers are lines such as "cmd=get kvsname=job key=port". The MPI library uses the same
connection, from MPI_Init to MPI_Finalize, and may start after us. Our requests change nothing for
it, except under `srun --mpi=pmi2`, where this module sends requests only if there is no MPI. Once a
process has sent a request, its mpirun treats an end without "finalize" as a failure. MPI_Finalize
sends it; otherwise this module does when Python ends.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import stat
import sys
import time
from collections.abc import Mapping

from hvdtune.core.meeting import mpi
from hvdtune.core.meeting.seeker import Failed, Seeker, TooLate
from hvdtune.core.topology import slurm_step

_LONGEST = 4096  # of an answer
_LEAVE_SECONDS = 10.0
_opened: int | None = None  # the descriptor on which this process has sent a request


def absence(seeker: Seeker) -> str:
    """Why this process cannot ask its mpirun; "" if it can."""
    environ = seeker.environ
    if _descriptor(environ) < 0:
        return "the launcher gives no PMI_FD"
    if environ.get("PMI_RANK", "") != str(seeker.rank):
        return f"PMI_RANK={environ.get('PMI_RANK', '')} is not this process's rank, {seeker.rank}"
    try:
        mode = os.fstat(_descriptor(environ)).st_mode
    except OSError:
        return f"PMI_FD={environ['PMI_FD']} is closed in this process"
    if not (stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)):  # its number was reused
        return f"PMI_FD={environ['PMI_FD']} is no connection in this process"
    if slurm_step(environ) and not mpi.absence(seeker):
        return "Slurm lets a process start PMI only once, and MPI_Init must do that"
    return ""


def exchange(seeker: Seeker, text: str) -> str:
    """Rank 0's text, given as `text` on rank 0."""
    global _opened
    connection = Connection(_descriptor(seeker.environ), seeker.deadline)
    if _opened is None:
        connection.ask("init", "response_to_init", pmi_version="1", pmi_subversion="1")
        _opened = connection.descriptor
        atexit.register(_leave, os.getpid())
    space = connection.ask("get_my_kvsname", "my_kvsname")["kvsname"]
    key = f"hvdtune-{seeker.number}"
    if seeker.tells:
        connection.ask("put", "put_result", kvsname=space, key=key, value=text)
    connection.ask("barrier_in", "barrier_out")
    return connection.ask("get", "get_result", kvsname=space, key=key)["value"]


class Connection:
    """A connection to the mpirun. Raises `Failed` for every unexpected answer."""

    def __init__(self, descriptor: int, deadline: float) -> None:
        self.descriptor = descriptor
        self._deadline = deadline

    def ask(self, command: str, answer: str, **words: str) -> dict[str, str]:
        """The words of the answer to a command."""
        line = " ".join(f"{name}={text}" for name, text in {"cmd": command, **words}.items())
        try:
            os.write(self.descriptor, f"{line}\n".encode())
            said = dict(word.partition("=")[::2] for word in self._line(command).split())
        except OSError as error:
            raise Failed(f"{command}: {error.strerror}") from None
        if said.get("cmd") != answer or said.get("rc", "0") != "0":
            raise Failed(f"{command} was answered with {said.get('cmd')} rc={said.get('rc')}")
        return said

    def _line(self, command: str) -> str:
        line = b""
        while not line.endswith(b"\n") and len(line) < _LONGEST:
            ready, _, _ = select.select(
                [self.descriptor], [], [], max(0.0, self._deadline - time.monotonic())
            )
            if not ready:
                raise TooLate(f"no answer to {command}")
            # Byte by byte: the following bytes are for the next reader.
            byte = os.read(self.descriptor, 1)
            if not byte:
                raise Failed(f"{command}: the launcher has closed the connection")
            line += byte
        return line.decode(errors="replace")


def _descriptor(environ: Mapping[str, str]) -> int:
    number = environ.get("PMI_FD", "")
    return int(number) if number.isdecimal() else -1


def _leave(process: int) -> None:
    """Sign off, unless MPI does so, or the script has failed: its mpirun then ends the others."""
    failed = getattr(sys, "last_type", None) is not None
    if _opened is None or os.getpid() != process or failed or mpi.was_begun():
        return
    with contextlib.suppress(Failed):
        Connection(_opened, time.monotonic() + _LEAVE_SECONDS).ask("finalize", "finalize_ack")
