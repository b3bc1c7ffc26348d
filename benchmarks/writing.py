"""Two ways of writing what other ranks read: into the shared cache, or past the caches.

    python benchmarks/writing.py --np 2

Starts jobs of an allreduce each with HVDTUNE_WRITING=cached, streamed and auto, in alternating
rounds, and prints medians and the two ways' time over that of auto. How far apart the CPUs are can
change while it runs (a virtual machine's may be moved): so it prints the spread of the rounds, too.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import ranks

WAYS = ("cached", "streamed", "auto")
SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)  # bytes


def main() -> int:
    """Compare; with `--worker`, be one rank of one job."""
    parser = ranks.parser(__doc__, ranks=2)
    parser.add_argument("--rounds", type=int, default=7, help="jobs of each way (default: 7)")
    args = parser.parse_args()
    if args.worker:
        worker(args)
        return 0
    found: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    for number in range(args.rounds):
        for way in WAYS[number % len(WAYS) :] + WAYS[: number % len(WAYS)]:
            os.environ["HVDTUNE_WRITING"] = way
            found[way].append(ranks.measure(__file__, args.np, []))
    print(f"allreduce, float32 sum in place, np {args.np}, {args.rounds} rounds; microseconds")
    for at, size in enumerate(SIZES):
        columns = {way: [times[at] * 1e6 for times in rounds] for way, rounds in found.items()}
        auto = ranks.median(columns["auto"])
        texts = [
            f"{way} {ranks.median(values):9.1f} ({min(values):.1f} to {max(values):.1f}), "
            f"{ranks.median(values) / auto:.2f} x"
            for way, values in columns.items()
        ]
        print(f"  {size >> 10:>6} KiB  " + "   ".join(texts))
    return 0


def worker(args: Any) -> None:
    """Measure on this rank: the median of each size."""
    import hvdtune as hvd

    hvd.init()
    medians = []
    for size in SIZES:
        array = np.zeros(size // 4, np.float32)

        def call(array: np.ndarray = array) -> None:
            hvd.allreduce_(array, op=hvd.Sum, name=f"array of {array.size}")

        times = ranks.time_in_turns(hvd, {"": call}, rounds=1, most=500, seconds=0.3)
        medians.append(ranks.median(times[""]))
    ranks.report(args.worker, hvd.rank(), medians)
    hvd.shutdown()


if __name__ == "__main__":
    sys.exit(main())
