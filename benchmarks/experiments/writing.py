"""Two ways to write data that other ranks read: into the shared cache, or past the caches.

    python benchmarks/experiments/writing.py --np 2

The distance between the ranks' CPUs can change from second to second (the host of a virtual machine
moves the machine's CPUs about on its own). So one job uses the ways in turn, separately for each
size: it starts the engine with HVDTUNE_WRITING=cached, streamed and auto, and measures allreduces
for a tenth of a second each. In a turn in which ordinary stores took more than 1.5 times as long as
streamed ones, the CPUs were far apart; if ordinary stores took less time, they were near; turns in
between count as mixed (the machine changed during the turn). The table has the medians of each kind
of turn, and the time of `auto` divided by that of the better way in the same turn.

A second table shows, by kind of turn and from 64 KiB on, what keeps `auto` from being faster:

  bound      the time that the memory needs (docs/performance.md, "The bound"), with the rates of
             arrays as long as the message, measured in the same turn, right after the calls, in
             whatever state the machine was then
  switches   context switches of all ranks in one allreduce, voluntary and involuntary ones
  least      the bound plus the switches' time on the CPUs. The time of one switch is measured
             first: two processes on one CPU that yield to each other

bound / time and least / time are shares of the time of an allreduce on the slowest rank: the time
of all of a turn's calls divided by their number, not the median call, because if ranks outnumber
CPUs, a rank's median may be a call in which it waited for no other rank. On a machine that does
other things at the same time, a rank also yields to those, and the switches say nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ranks

from hvdtune.bench import memory, metrics
from hvdtune.bench.sizes import format_size, parse_size

WAYS = ("cached", "streamed", "auto")
KINDS = ("near", "mixed", "far")
FAR, NEAR = 1.5, 1.0  # time of cached over that of streamed
WARM_UP_S, MEASURED_S = 0.1, 0.1
YIELDS = 20_000

#: For one size: way → median seconds, and for `auto` the figures of the second table.
Turn = dict[str, float]


def main() -> int:
    """Compare; with `--worker`, be one rank of the job."""
    parser = ranks.parser(__doc__, ranks=2)
    parser.add_argument("--rounds", type=int, default=20, help="turns of each size (default: 20)")
    parser.add_argument("--sizes", nargs="+", default=["4K", "64K", "1M", "16M", "64M"])
    args = parser.parse_args()
    sizes = [parse_size(text) for text in args.sizes]
    if args.worker:
        worker(args, sizes)
        return 0
    switch = switch_seconds()
    arguments = [*ranks.forwarded(args, "rounds"), "--sizes", *args.sizes]
    found = ranks.measure(__file__, args.np, arguments)
    print(f"allreduce, float32 sum in place, np {args.np}; medians in microseconds")
    heads = ("size", "CPUs", "turns", *WAYS, "auto / better", "(quartiles)")
    print("{:>10} {:>6} {:>6} {:>10} {:>10} {:>10} {:>14} {}".format(*heads))
    every = [
        (size, kind, [turn for turn in turns if kind_of(turn) == kind])
        for size, turns in zip(sizes, found, strict=True)
        for kind in KINDS
    ]
    for size, kind, turns in every:
        show(size, kind, turns)
    print(f"\nwhat `auto` needs at least; a context switch takes {switch * 1e6:.2f} us")
    heads = ("size", "CPUs", "bound us", "switches", "least us", "bound / time", "least / time")
    print("{:>10} {:>6} {:>10} {:>10} {:>10} {:>14} {:>14}".format(*heads))
    for size, kind, turns in every:
        show_least(size, kind, turns, switch / min(usable_cpus(), args.np))
    return 0


def kind_of(turn: Turn) -> str:
    """Whether the CPUs were near or far in this turn."""
    ratio = turn["cached"] / turn["streamed"]
    return "far" if ratio > FAR else "near" if ratio < NEAR else "mixed"


def show(size: int, kind: str, turns: list[Turn]) -> None:
    """One line of the first table."""
    if not turns:
        return
    medians = [ranks.median([turn[way] * 1e6 for turn in turns]) for way in WAYS]
    ratios = [turn["auto"] / min(turn["cached"], turn["streamed"]) for turn in turns]
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    times = " ".join(f"{value:10.1f}" for value in medians)
    print(
        f"{format_size(size):>10} {kind:>6} {len(turns):>6} {times} {middle:14.2f} "
        f"({low:.2f} to {high:.2f})"
    )


def show_least(size: int, kind: str, turns: list[Turn], switch: float) -> None:
    """One line of the second table; `switch`: seconds that one of them adds to the job's time."""
    if not turns or "bound" not in turns[0]:
        return
    least = [turn["bound"] + turn["switches"] * switch for turn in turns]
    shares = [
        ranks.median([part / turn["pace"] for part, turn in zip(parts, turns, strict=True)])
        for parts in ([turn["bound"] for turn in turns], least)
    ]
    print(
        f"{format_size(size):>10} {kind:>6} "
        f"{ranks.median([turn['bound'] for turn in turns]) * 1e6:10.1f} "
        f"{ranks.median([turn['switches'] for turn in turns]):10.1f} "
        f"{ranks.median(least) * 1e6:10.1f} {shares[0]:14.0%} {shares[1]:14.0%}"
    )


def usable_cpus() -> int:
    """CPUs that this job may use."""
    return len(os.sched_getaffinity(0))


def switch_seconds() -> float:
    """A switch between two processes that yield to each other on one CPU; the best of 5."""
    everywhere = os.sched_getaffinity(0)
    one = min(everywhere)
    loop = f"import os\nos.sched_setaffinity(0, {{{one}}})\nwhile True: os.sched_yield()"
    other = subprocess.Popen([sys.executable, "-c", loop])
    try:
        os.sched_setaffinity(0, {one})
        time.sleep(0.5)  # until it runs
        return min(_time_of_switch() for _ in range(5))
    finally:
        os.sched_setaffinity(0, everywhere)
        other.kill()
        other.wait()


def _time_of_switch() -> float:
    before, began = ranks.context_switches(), time.perf_counter()
    for _ in range(YIELDS):
        os.sched_yield()
    # Each switch to the other is followed by one back.
    return (time.perf_counter() - began) / 2 / max(1, ranks.context_switches() - before)


def worker(args: Any, sizes: list[int]) -> None:
    """Measure on this rank: for each size, its turns."""
    found: list[list[Turn]] = [[] for _ in sizes]
    for number in range(args.rounds):
        for at, size in enumerate(sizes):
            first = (number + at) % len(WAYS)
            turn: Turn = {}
            for way in WAYS[first:] + WAYS[:first]:
                turn.update(measure(way, size))
            found[at].append(turn)
    if os.environ["HOROVOD_RANK"] == "0":
        ranks.report(args.worker, 0, found)


def measure(way: str, size: int) -> Turn:
    """With an engine of its own: this rank's median; for `auto` also pace, switches and bound."""
    import hvdtune as hvd

    os.environ["HVDTUNE_WRITING"] = way
    hvd.init()
    array = np.zeros(size // 4, np.float32)

    def call() -> float:
        began = time.perf_counter()
        hvd.allreduce_(array, op=hvd.Sum, name="array")
        return time.perf_counter() - began

    def of_all(value: float, operation: Any) -> float:
        return float(hvd.allreduce(np.array([value]), op=operation, name="of all")[0])

    count = 1
    while True:
        began = time.perf_counter()
        for _ in range(count):
            call()
        # Agreed, so that all ranks stop after the same call.
        lasted = of_all(time.perf_counter() - began, hvd.Max)
        if lasted >= WARM_UP_S / 2:
            break
        count *= 2
    before = ranks.context_switches()
    times = [call() for _ in range(max(5, int(count * MEASURED_S / lasted)))]
    switches = ranks.context_switches() - before
    found = {way: ranks.median(times)}
    if way == "auto" and size >= memory.LEAST_SIZE:
        found["pace"] = of_all(float(np.mean(times)), hvd.Max)
        found["switches"] = of_all(switches / len(times), hvd.Sum)
        found["bound"] = bound_of(hvd, size, lambda seconds: of_all(seconds, hvd.Max))
    hvd.shutdown()
    return found


def bound_of(hvd: Any, size: int, slowest: Any) -> float:
    """Seconds that the memory, in its present state, needs for an allreduce of `size` bytes."""
    workers = min(usable_cpus(), hvd.size())
    rates = memory.measure(hvd.rank(), workers, [size], hvd.barrier, slowest).rates(size)
    return metrics.memory_bound_seconds("allreduce", size, hvd.size(), *rates) or 0.0


if __name__ == "__main__":
    sys.exit(main())
