"""Runs one peer's ranks once and reads their clocks."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from peers import environments
from peers.shared_memory import SharedMemory
from peers.systems import Start
from peers.works import Work

#: Seconds that a job may take to end after it was asked to.
_GRACE = 5.0


class JobFailed(Exception):
    """Why a job returned no figures, in one line."""


def measure(
    start: Start, ranks: int, works: Sequence[Work], seconds: float, most: int, limit: float
) -> list[np.ndarray]:
    """Seconds of every call, one array per work, from `pace`. Raises JobFailed.

    A work is timed for about `seconds` and at most `most` calls; the job is ended after `limit`
    seconds. No process and no shared memory is left behind, however this ends.
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

    A call lasts from the moment when the last rank finished the previous call to the moment when
    the last rank finished it, by the clock that all processes of a machine share. So nothing is
    counted twice or left out: the calls' times add up to the time of all of them. Raises JobFailed
    if the ranks' files differ in form.
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
    """Run a job to its end, with its output in `folder`, which its command line must mention.

    Raises JobFailed. Leaves none of its processes, and none of their files in shared memory.
    """
    output = folder / "output"
    environ = {**os.environ, **start.environ}
    processes: list[subprocess.Popen[bytes]] = []
    memory = SharedMemory()
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
        _wait(processes, limit, output, lambda: memory.look(lambda: _mentioning(str(folder))))
    except OSError as error:
        raise JobFailed(f"cannot be started: {error}") from None
    finally:
        with _undisturbed():
            _end(processes, str(folder), memory)


def _wait(
    processes: Sequence[subprocess.Popen[bytes]],
    limit: float,
    output: Path,
    meanwhile: Callable[[], None],
) -> None:
    deadline = time.monotonic() + limit
    pending = list(processes)
    while pending:
        meanwhile()
        for process in list(pending):
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(0.02)
                pending.remove(process)
                if status != 0:
                    said = environments.reason(output.read_text(errors="replace"))
                    raise JobFailed(f"status {status}: {said or 'no message'}")
        if time.monotonic() > deadline:
            raise JobFailed(f"took longer than {limit:g} s")


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """A second Ctrl-C must wait, or it would leave half of the job behind."""
    # A signal mask would not do: it belongs to a thread, and another thread would take the signal.
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, frame: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in dict.fromkeys(came):
            signal.raise_signal(number)


def _end(processes: Sequence[subprocess.Popen[bytes]], token: str, memory: SharedMemory) -> None:
    """End all that still run: ranks, their launchers, any rank that outlived its launcher."""
    launchers = {process.pid for process in processes if process.poll() is None}
    if launchers:
        _end_ranks(token, memory, launchers)
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    _end_ranks(token, memory, set())
    memory.remove()


def _end_ranks(token: str, memory: SharedMemory, spared: set[int]) -> None:
    """Kill all processes of the job but the spared ones, after listing the files that they hold.

    They are stopped first: a file that a rank made after the listing would stay for ever.
    """
    ranks: list[int] = []
    while new := [pid for pid in _mentioning(token) if pid not in spared and pid not in ranks]:
        _signal_all(new, signal.SIGSTOP)
        _await_stop(new)
        ranks += new
    if ranks:
        memory.look(lambda: ranks, last=True)
        _signal_all(ranks, signal.SIGKILL)


def _await_stop(pids: Sequence[int]) -> None:
    """Return when none of the processes runs any more, or soon if one hangs in the kernel."""
    deadline = time.monotonic() + 1.0
    for pid in pids:
        with contextlib.suppress(OSError):
            # The state follows the name, which may contain anything.
            while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "RSD":
                if time.monotonic() > deadline:
                    return
                time.sleep(0.001)


def _signal_all(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def _mentioning(token: str) -> list[int]:
    """Processes with `token`, this job's own folder of results, on their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(path.name) != os.getpid() and token.encode() in (path / "cmdline").read_bytes():
                found.append(int(path.name))
    return found
