"""Runs one peer's ranks once and reads their clocks."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from peers import environments
from peers.systems import Start
from peers.works import Work

#: How long a job may take after it was asked to end.
_GRACE = 5.0


class JobFailed(Exception):
    """Why a job brought no figures, in one line."""


def measure(
    start: Start, ranks: int, works: Sequence[Work], seconds: float, most: int, limit: float
) -> list[np.ndarray]:
    """Seconds of every call, one array a work: what `pace` says. Raises JobFailed.

    A work is timed for about `seconds` and at most `most` calls; the job is ended after `limit`
    seconds. No process is left behind, however this ends.
    """
    with tempfile.TemporaryDirectory(prefix="hvdtune-compare-") as name:
        folder = Path(name)
        arguments = [name, f"{seconds:g}", str(most), *(work.argument(folder) for work in works)]
        run(start, ranks, arguments, folder, limit)
        try:
            clocks = [np.fromfile(folder / f"rank-{rank}") for rank in range(ranks)]
        except FileNotFoundError:
            raise JobFailed(
                "not every rank wrote results; does the launcher start single processes?"
            ) from None
        return pace(clocks, len(works))


def pace(clocks: Sequence[np.ndarray], works: int) -> list[np.ndarray]:
    """Seconds of every call of every work, from what the ranks wrote (see harness.h).

    A call takes from the moment when the last rank finished the call before it to the moment when
    the last rank finished it, on the clock that all processes of a machine share. So nothing is
    counted twice or left out: the calls' times add up to the time of all of them. JobFailed if
    the ranks' files are not of equal form.
    """
    found = []
    at = 0
    for _ in range(works):
        if any(at >= len(clock) for clock in clocks):
            raise JobFailed("a rank wrote fewer results than the others")
        calls = int(clocks[0][at])
        ends = [clock[at + 1 : at + 2 + calls] for clock in clocks]
        if any(clock[at] != calls for clock in clocks) or any(len(e) != calls + 1 for e in ends):
            raise JobFailed("the ranks made different numbers of calls")
        found.append(np.diff(np.max(ends, axis=0)))
        at += calls + 2
    return found


def run(start: Start, ranks: int, arguments: Sequence[str], folder: Path, limit: float) -> None:
    """Run a job to its end, its output in `folder`; raises JobFailed, leaves no process."""
    output = folder / "output"
    environ = {**os.environ, **start.environ}
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with output.open("wb") as stream:
            for rank in range(ranks if start.per_rank else 1):
                processes.append(
                    subprocess.Popen(
                        [*start.command, *arguments],
                        env={**environ, "RANK": str(rank)} if start.per_rank else environ,
                        stdin=subprocess.DEVNULL,
                        stdout=stream,
                        stderr=stream,
                        start_new_session=True,
                    )
                )
        _wait(processes, limit, output)
    except OSError as error:
        raise JobFailed(f"cannot be started: {error}") from None
    finally:
        _end(processes, str(folder))


def _wait(processes: Sequence[subprocess.Popen[bytes]], limit: float, output: Path) -> None:
    deadline = time.monotonic() + limit
    pending = list(processes)
    while pending:
        for process in list(pending):
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(0.02)
                pending.remove(process)
                if status != 0:
                    said = environments.reason(output.read_text(errors="replace"))
                    raise JobFailed(f"status {status}: {said or 'no message'}")
        if time.monotonic() > deadline:
            raise JobFailed(f"took longer than {limit:g} s")


def _end(processes: Sequence[subprocess.Popen[bytes]], token: str) -> None:
    """End what still runs: the launchers first, then any rank that outlived its launcher."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for pid in _mentioning(token):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _mentioning(token: str) -> list[int]:
    """Processes with `token`, the results' folder of this job alone, on their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(path.name) != os.getpid() and token.encode() in (path / "cmdline").read_bytes():
                found.append(int(path.name))
    return found
