"""The cost of a start: `hvdtune run` until the first allreduce, init and shutdown, the commands.

A job is compared with as many processes that only import the framework, started side by side
without a launcher: the difference is hvdtune's cost. Jobs and bare processes take turns, because
the machine is never quiet; a figure is the median of the rounds. In a round, the time of a step is
the time from the start of the command until the slowest process reaches it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import ranks

RANK = str(Path(__file__).with_name("startup_rank.py"))
STEPS = {
    "interpreter": "interpreter up",
    "framework": "framework imported",
    "hvdtune": "hvdtune imported",
    "init": "init returned",
    "allreduce": "first allreduce done",
    "shutdown": "shutdown returned",
    "end": "command ended",
    "cpu": "CPU time in all",
}
PARTS = {"init": "init", "allreduce": "first allreduce", "shutdown": "shutdown", "round": "in all"}


def main() -> int:
    args = _parser().parse_args()
    if "commands" in args.parts:
        commands(args.rounds)
    for framework in ("numpy", "torch"):
        if framework in args.parts:
            jobs(framework, args.np, args.rounds)
    if "again" in args.parts:
        for count in (1, 2, 4, 8):
            again(count, args.again)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--np", type=int, default=8, help="ranks of a job (default: 8)")
    parser.add_argument("--rounds", type=int, default=9, help="of every comparison (default: 9)")
    parser.add_argument("--again", type=int, default=500, help="inits and shutdowns (default: 500)")
    every = ["commands", "numpy", "torch", "again"]
    parser.add_argument(
        "--parts", nargs="+", choices=every, default=every, metavar="PART",
        help=f"what to measure, of {' '.join(every)} (default: all)",
    )  # fmt: skip
    return parser


# ---- commands ----


def commands(rounds: int) -> None:
    """Print the times of commands that do (next to) nothing."""
    hvdtune = ranks.launcher(1)[:3]
    python = [sys.executable, "-c"]
    cases = {
        "python": [*python, "pass"],
        "import hvdtune": [*python, "import hvdtune"],
        "import numpy": [*python, "import numpy"],
        "import numpy, hvdtune": [*python, "import numpy, hvdtune.arrays"],
        "hvdtune --help": [*hvdtune, "--help"],
        "hvdtune config": [*hvdtune, "config"],
        "hvdtune run -np 1 true": [*hvdtune, "run", "-np", "1", "true"],
        "hvdtune run -np 8 true": [*hvdtune, "run", "-np", "8", "true"],
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, command in cases.items():
            begun = time.monotonic()
            used = cpu_of([subprocess.Popen(command, stdout=subprocess.DEVNULL)])
            found[name].append((time.monotonic() - begun, used))
    print(f"commands, {rounds} rounds in turn    elapsed       CPU")
    for name, pairs in found.items():
        elapsed, used = (ranks.median(values) for values in zip(*pairs, strict=True))
        print(f"  {name:<28} {1e3 * elapsed:7.0f} ms {1e3 * used:6.0f} ms")


def cpu_of(processes: Sequence[subprocess.Popen[bytes]]) -> float:
    """Wait for all; CPU seconds of them and of their own children. Exits if one fails."""
    used = 0.0
    for process in processes:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        used += usage.ru_utime + usage.ru_stime
    if any(process.returncode for process in processes):
        sys.exit(1)
    return used


# ---- jobs ----


def jobs(framework: str, count: int, rounds: int) -> None:
    """Print when a job reaches each step, and the same for bare processes."""
    alone, job = [], []
    for _ in range(rounds):
        alone.append(start_alone(framework, count))
        job.append(start_job(framework, count))
    print(f"\n{count} processes with {framework}, {rounds} rounds in turn, ms since the command")
    print(f"  {'the slowest process':<24} {'no hvdtune':>10} {'job':>8} {'more':>8}")
    for step, title in STEPS.items():
        ours = 1e3 * ranks.median([one[step] for one in job])
        theirs = 1e3 * ranks.median([one[step] for one in alone]) if step in alone[0] else None
        columns = f"{theirs:10.0f}" if theirs is not None else f"{'':10}"
        more = f"{ours - theirs:8.0f}" if theirs is not None else ""
        print(f"  {title:<24} {columns} {ours:8.0f} {more}".rstrip())
    extra = [b["allreduce"] - a["framework"] for a, b in zip(alone, job, strict=True)]
    print(
        f"  first allreduce, beyond the bare imports: median {1e3 * ranks.median(extra):.0f} ms, "
        f"worst {1e3 * max(extra):.0f} ms"
    )


def start_alone(framework: str, count: int) -> dict[str, float]:
    """Start processes that import the framework and end; see `slowest`."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        processes = [
            subprocess.Popen(
                [sys.executable, RANK, "import_only", framework, folder, "0"],
                env={**os.environ, "HOROVOD_RANK": str(rank)},
            )
            for rank in range(count)
        ]
        return slowest(processes, folder, begun)


def start_job(framework: str, count: int) -> dict[str, float]:
    """Start a job that reduces one array; see `slowest`."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        worker = [sys.executable, RANK, "start", framework, folder, "0"]
        return slowest([subprocess.Popen([*ranks.launcher(count), *worker])], folder, begun)


def slowest(
    processes: Sequence[subprocess.Popen[bytes]], folder: str, begun: float
) -> dict[str, float]:
    """Wait for the processes; for every step, seconds until the last rank had reached it."""
    used = cpu_of(processes)
    ended = time.monotonic()
    stamps = [json.loads(path.read_text()) for path in Path(folder).iterdir()]
    found = {step: max(one[step] for one in stamps) - begun for step in stamps[0]}
    return {**found, "end": ended - begun, "cpu": used}


# ---- again and again ----


def again(count: int, rounds: int) -> None:
    """Print the cost of init and shutdown in processes that have done both before."""
    with tempfile.TemporaryDirectory() as folder:
        worker = [sys.executable, RANK, "again", "numpy", folder, str(rounds)]
        subprocess.run([*ranks.launcher(count), *worker], check=True)
        found = [json.loads(path.read_text()) for path in Path(folder).iterdir()]
    print(f"\nnp {count}, {rounds} times init, allreduce, shutdown in one process      ms")
    for part, title in PARTS.items():
        every = [1e3 * value for one in found for value in one[part]]
        print(
            f"  {title:<16} median {ranks.median(every):7.2f}, p95 "
            f"{ranks.nearest_rank(every, 0.95):7.2f}, longest {max(every):7.2f}"
        )
    before, after = ([one[when] for one in found] for when in ("before", "after"))
    changes = ", ".join(
        f"{what} {max(b[what] - a[what] for a, b in zip(before, after, strict=True)):+d}"
        for what in before[0]
    )
    print(f"  most change in one process over the last 90 %: {changes}")


if __name__ == "__main__":
    sys.exit(main())
