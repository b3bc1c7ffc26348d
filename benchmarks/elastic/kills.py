"""How long a job stands still when it loses a process, beside torchrun and torchft.

kill -9 of one of the processes of the same small training, several times, the systems in turn. It
prints the time from the kill until every process that continues has finished its next step:

    hvdtune    survivors continue in their own processes (hvdtune run --min-np --replace-failed)
    torchrun   all processes restart from a checkpoint of the last step (--max-restarts)
    torchft    survivors continue in their own processes (its lighthouse, a quorum per step)

torchft is measured if it is installed (`pip install torchft`). --alone measures hvdtune only, with
many kills in one job: also the time until the job has its full size again, with a new process and
with a waiting spare (--spares 1), and the time that a newcomer costs the training processes.
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import functools
import importlib.util
import itertools
import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ranks

RANK = str(Path(__file__).with_name("rank.py"))
PATIENCE = 60.0  # s until a job counts as stuck


class Stuck(Exception):
    """A job has ended, or makes no progress; the text contains its output."""


class Step(NamedTuple):
    """A step that a process has finished, as rank.py notes it."""

    pid: int
    time: float
    world: str  # the processes that train together without an interruption
    size: int


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--np", type=int, default=4, help="processes (default: 4)")
    parser.add_argument("--rounds", type=int, default=5, help="kills of each (default: 5)")
    parser.add_argument("--alone", action="store_true", help="hvdtune only, in one job")
    args = parser.parse_args()
    if args.alone:
        return measure_alone(args.np, args.rounds)
    return compare(args.np, args.rounds)


def compare(count: int, rounds: int) -> int:
    """The systems in turn, one job for each kill."""
    systems: dict[str, Callable[[int, Path], Any]] = {"hvdtune": hvdtune, "torchrun": torchrun}
    if importlib.util.find_spec("torchft"):
        systems["torchft"] = torchft
    else:
        print("torchft is not installed, and left out")
    found: dict[str, list[float]] = {name: [] for name in systems}
    for number in range(rounds):
        for name in rotated(list(systems), number):
            with job(systems[name], count) as steps:
                try:
                    found[name].append(next_step_after_kill(steps, count))
                except Stuck as why:
                    print(f"{name}, round {number + 1}: {why}", file=sys.stderr)
                    found[name].append(math.inf)
    print(f"kill -9 of one of {count} processes, {rounds} times: until all have finished a step")
    for name, seconds in found.items():
        ratio = ranks.median(seconds) / ranks.median(found["hvdtune"])
        print(f"  {name:9} {summary(seconds)}   {ratio:6.1f} x hvdtune")
    return 0


def measure_alone(count: int, rounds: int) -> int:
    """Kills in one job of hvdtune's: times until the next step and until the job is whole again."""
    for spares in (0, 1):
        goes_on, whole, pauses = [], [], []
        with job(functools.partial(hvdtune, spares=spares), count) as steps:
            for _ in range(rounds):
                # As long as a new spare needs to be ready.
                time.sleep((1.0, count)[spares] + random.random() / 10)
                killed = kill_one(steps)
                goes_on.append(first_steps(steps, killed) - killed.time)
                whole.append(await_size(steps, count, killed) - killed.time)
                pauses.append(longest_gap(steps, killed.time + goes_on[-1], whole[-1]))
        how = "with a waiting spare" if spares else "with a new process"
        print(f"kill -9 of one of {count} processes, {rounds} times in one job; {how}")
        print(f"  until the next finished step      {summary(goes_on)}")
        print(f"  until the job has its full size   {summary(whole)}")
        print(f"  survivors' longest step meanwhile {summary(pauses)}")
    return 0


def summary(seconds: Sequence[float]) -> str:
    """Median, 95th percentile and largest; inf is a job that did not continue within PATIENCE."""
    middle, high = ranks.median(seconds), ranks.nearest_rank(seconds, 0.95)
    return f"median {middle:7.3f} s   p95 {high:7.3f} s   longest {max(seconds):7.3f} s"


def rotated(names: list[str], number: int) -> list[str]:
    """An order for each round; each system begins equally often."""
    return names[number % len(names) :] + names[: number % len(names)]


# ---- jobs ----


def hvdtune(count: int, folder: Path, spares: int = 0) -> list[subprocess.Popen[bytes]]:
    """One elastic job that replaces dead processes."""
    # More slots than processes: hvdtune leaves out a slot on which three die within seconds.
    flags = ["--min-np", "1", "--max-np", str(count), "-H", f"localhost:{3 * count + spares}"]
    flags += ["--replace-failed", *(["--spares", str(spares)] if spares else [])]
    command = [*ranks.launcher(count), *flags, sys.executable, RANK, "hvdtune", str(folder)]
    return [started(command, {}, folder)]


def torchrun(count: int, folder: Path) -> list[subprocess.Popen[bytes]]:
    """One agent that restarts all processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={count}", "--max-restarts=1000", RANK, "torchrun", str(folder)]
    # PyTorch 2.13 keeps its store over restarts if this is not set: the new processes then find
    # the addresses of the dead ones in it, and no restart succeeds.
    own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return [started(command, own_store, folder)]


def torchft(count: int, folder: Path) -> list[subprocess.Popen[bytes]]:
    """A lighthouse, and as many groups of one process."""
    port = free_port()
    # torchft's lighthouse reads the arguments of the program that runs it.
    lighthouse = [sys.executable, RANK, "--min_replicas", "1", "--bind", f"[::]:{port}"]
    lighthouse += ["--join_timeout_ms", "1000"]
    processes = [started(lighthouse, {}, folder)]
    for number in range(count):
        place = {
            "TORCHFT_LIGHTHOUSE": f"http://localhost:{port}",
            "REPLICA_GROUP_ID": str(number),
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(free_port()),
        }
        place |= {"RANK": "0", "WORLD_SIZE": "1"}
        command = [sys.executable, RANK, "torchft", str(folder)]
        processes.append(started(command, place, folder))
    return processes


def started(
    command: Sequence[str], variables: Mapping[str, str], folder: Path
) -> subprocess.Popen[bytes]:
    """A process in a session of its own; its output is kept in case of a failure."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **variables}
    with (folder / "output").open("ab") as output:
        return subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )


class Steps:
    """The steps that the processes of a job have noted so far."""

    def __init__(self, folder: Path, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self._folder = folder
        self._processes = processes
        self._ends: dict[Path, int] = {}  # how much of each file has been read
        self._found: list[Step] = []  # by time

    def read(self, since: float = 0.0) -> list[Step]:
        """The steps after a time, by time. Raises Stuck if the job has ended."""
        for path in self._folder.glob("*.steps"):
            with path.open("rb") as file:
                file.seek(self._ends.get(path, 0))
                whole = file.read().rpartition(b"\n")[0]
            if whole:
                self._ends[path] = self._ends.get(path, 0) + len(whole) + 1
                pid = int(path.stem)
                self._found += [Step(pid, *json.loads(line)) for line in whole.splitlines()]
        self._found.sort(key=lambda step: step.time)
        if self._processes[0].poll() is not None:
            raise self.stuck("the job has ended")
        return self._found[bisect.bisect_right(self._found, since, key=lambda step: step.time) :]

    def stuck(self, why: str) -> Stuck:
        """An error with what the job printed."""
        output = (self._folder / "output").read_text(errors="replace")
        return Stuck(f"{why}:\n{output[-4000:]}")


@contextlib.contextmanager
def job(start: Callable[..., list[subprocess.Popen[bytes]]], count: int) -> Iterator[Steps]:
    """A job that trains with all its processes; ended at the end of the block."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processes = start(count, folder)
        try:
            steps = Steps(folder, processes)
            await_size(steps, count)
            yield steps
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                for process in processes:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, number)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(8.0)


# ---- kills ----


class Killed(NamedTuple):
    """A process that was killed while it trained in a world."""

    pid: int
    time: float
    world: str


def next_step_after_kill(steps: Steps, count: int) -> float:
    """Kill a process of a training job; seconds until all that continue have finished a step."""
    time.sleep(1.0 + random.random() / 10)
    killed = kill_one(steps)
    return first_steps(steps, killed) - killed.time


def kill_one(steps: Steps) -> Killed:
    """kill -9 of a training process, somewhere in a step."""
    late = steps.read(time.monotonic() - 1.0)
    pids = {step.pid for step in late if step.world == late[-1].world}
    pid = random.choice(sorted(pids))
    now = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return Killed(pid, now, late[-1].world)


def first_steps(steps: Steps, killed: Killed) -> float:
    """When all of the next world have finished their first step in it."""

    def found() -> float | None:
        later = steps.read(killed.time)
        world = next((step.world for step in later if step.world != killed.world), None)
        first: dict[int, float] = {}
        for step in later:
            if step.world == world:
                first.setdefault(step.pid, step.time)
                if len(first) == step.size:
                    return max(first.values())
        return None

    return awaited(steps, found)


def await_size(steps: Steps, count: int, killed: Killed | None = None) -> float:
    """When all of a world of `count`, later than the one of `killed`, have finished a step."""

    def found() -> float | None:
        later = steps.read(killed.time if killed else 0.0)
        world = later[-1].world if later else ""
        first: dict[int, float] = {}
        for step in later:
            if (step.world, step.size) == (world, count):
                first.setdefault(step.pid, step.time)
        is_whole = len(first) == count and not (killed and world == killed.world)
        return max(first.values()) if is_whole else None

    return awaited(steps, found)


def awaited(steps: Steps, found: Callable[[], float | None]) -> float:
    """The first result that is found. Raises Stuck if there is none."""
    deadline = time.monotonic() + PATIENCE
    while True:
        result = found()
        if result is not None:
            return result
        if time.monotonic() > deadline:
            raise steps.stuck(f"nothing has happened for {PATIENCE:g} s")
        time.sleep(0.05)


def longest_gap(steps: Steps, begin: float, seconds: float) -> float:
    """The longest time between two steps of a process, from `begin` until the job was whole."""
    longest = 0.0
    by_process: dict[int, list[float]] = {}
    for step in steps.read(begin):
        by_process.setdefault(step.pid, []).append(step.time)
    for times in by_process.values():
        for before, after in itertools.pairwise(times):
            if before <= begin + seconds:
                longest = max(longest, after - before)
    return longest


def free_port() -> int:
    """A port on which no process listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    raise SystemExit(main())
