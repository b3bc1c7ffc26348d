"""Two ways of writing what other ranks read: into the shared cache, or past the caches.

    python benchmarks/writing.py --np 2

How far apart the ranks' CPUs are can change from second to second (a virtual machine's are moved
about on those of its host). So one job goes through the ways in turn, every size anew: it starts
the engine with HVDTUNE_WRITING=cached, streamed and auto, and measures allreduces for a tenth of a
second each. A turn in which ordinary stores took more than 1.5 times as long as streamed ones is
one of CPUs that are far apart; where they took less than the streamed ones, they are near; what is
in between is counted as mixed (the machine changed in the middle of it). The table has the medians
of each kind of turn, and the time of `auto` over that of the better way in the same turn.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np
import ranks

WAYS = ("cached", "streamed", "auto")
SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)  # bytes
FAR, NEAR = 1.5, 1.0  # time of cached over that of streamed
WARM_UP_S, MEASURED_S = 0.1, 0.1


def main() -> int:
    """Compare; with `--worker`, be one rank of the job."""
    parser = ranks.parser(__doc__, ranks=2)
    parser.add_argument("--rounds", type=int, default=20, help="turns of each size (default: 20)")
    args = parser.parse_args()
    if args.worker:
        worker(args)
        return 0
    found = ranks.measure(__file__, args.np, ranks.forwarded(args, "rounds"))
    print(f"allreduce, float32 sum in place, np {args.np}; medians in microseconds")
    heads = ("size", "CPUs", "turns", *WAYS, "auto / better", "(quartiles)")
    print("{:>10} {:>6} {:>6} {:>10} {:>10} {:>10} {:>14} {}".format(*heads))
    for size, turns in zip(SIZES, found, strict=True):
        for kind in ("near", "mixed", "far"):
            show(size, kind, [turn for turn in turns if kind_of(turn) == kind])
    return 0


def kind_of(turn: dict[str, float]) -> str:
    """Whether the CPUs were near or far in this turn."""
    ratio = turn["cached"] / turn["streamed"]
    return "far" if ratio > FAR else "near" if ratio < NEAR else "mixed"


def show(size: int, kind: str, turns: list[dict[str, float]]) -> None:
    """One line of the table."""
    if not turns:
        return
    medians = [ranks.median([turn[way] * 1e6 for turn in turns]) for way in WAYS]
    ratios = [turn["auto"] / min(turn["cached"], turn["streamed"]) for turn in turns]
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    times = " ".join(f"{value:10.1f}" for value in medians)
    print(
        f"{size >> 10:>6} KiB {kind:>6} {len(turns):>6} {times} {middle:14.2f} "
        f"({low:.2f} to {high:.2f})"
    )


def worker(args: Any) -> None:
    """Measure on this rank: for each size and turn, way → median seconds."""
    found: list[list[dict[str, float]]] = [[] for _ in SIZES]
    for number in range(args.rounds):
        for at, size in enumerate(SIZES):
            first = (number + at) % len(WAYS)
            found[at].append({way: measure(way, size) for way in WAYS[first:] + WAYS[:first]})
    if os.environ["HOROVOD_RANK"] == "0":
        ranks.report(args.worker, 0, found)


def measure(way: str, size: int) -> float:
    """An engine of its own, and the median time of an allreduce on this rank."""
    import hvdtune as hvd

    os.environ["HVDTUNE_WRITING"] = way
    hvd.init()
    array = np.zeros(size // 4, np.float32)

    def call() -> float:
        began = time.perf_counter()
        hvd.allreduce_(array, op=hvd.Sum, name="array")
        return time.perf_counter() - began

    count = 1
    while True:
        began = time.perf_counter()
        for _ in range(count):
            call()
        # Agreed, so that all ranks stop after the same call.
        mine = np.array([time.perf_counter() - began])
        lasted = float(hvd.allreduce(mine, op=hvd.Max, name="lasted")[0])
        if lasted >= WARM_UP_S / 2:
            break
        count *= 2
    times = [call() for _ in range(max(5, int(count * MEASURED_S / lasted)))]
    hvd.shutdown()
    return ranks.median(times)


if __name__ == "__main__":
    sys.exit(main())
