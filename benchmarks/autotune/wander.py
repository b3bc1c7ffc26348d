"""How step times of a real job wander while nothing is changed.

    python benchmarks/autotune/wander.py                       ResNet-50's gradients on two ranks
    python benchmarks/autotune/wander.py --workload tiny --compute 10 --np 4 --output series.json

Prints how much the means of a number of steps in a row scatter, and how much two consecutive means
differ (divided by the root of 2: both figures are equal if steps do not depend on each other, and
then fall with the root of the number of steps). Means leave out the shortest and the longest tenth.

`--output` keeps the series for `simulate.py`, which replays those in wanders/: the step's median in
ms, and each step's ln(time / median) in thousandths.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ranks

BLOCKS = (1, 5, 10, 20, 40, 80, 160)
LEAST_BLOCKS = 8
TRIM = 0.1
WARMUP_STEPS = 20
CHECK_EVERY = 20  # steps between looks at the clock


def main() -> int:
    """Measure and print; with `--worker`, be one rank."""
    parser = ranks.parser(__doc__, ranks=2)
    parser.add_argument("--workload", default="resnet50", help="of `hvdtune bench`")
    parser.add_argument("--compute", type=float, default=0.0, help="ms of computing in a step")
    parser.add_argument("--seconds", type=float, default=30.0, help="(default: 30)")
    parser.add_argument(
        "--steps", type=int, default=2000, help="the most steps that --output keeps"
    )
    parser.add_argument("--output", type=Path, default=None)
    args = parser.parse_args()
    if args.worker:
        worker(args)
        return 0
    arguments = ranks.forwarded(args, "workload", "compute", "seconds")
    times_ms = np.array(ranks.measure(__file__, args.np, arguments)["times_ms"])
    middle = float(np.median(times_ms))
    logs = np.log(times_ms / middle)
    print(f"{args.workload}, np {args.np}: {len(logs)} steps, median {middle:.2f} ms")
    print("steps | means scatter by | neighbours differ by")
    for block in BLOCKS:
        if len(logs) // block >= LEAST_BLOCKS:
            means = means_of(logs, block)
            apart = float(np.std(np.diff(means))) / 2**0.5
            print(f"{block:5d} | {100 * float(np.std(means)):14.1f} % | {100 * apart:14.1f} %")
    if args.output:
        series = [round(1000 * float(one)) for one in logs[: args.steps]]
        args.output.write_text(json.dumps({"step_ms": round(middle, 3), "series": series}) + "\n")
    return 0


def means_of(logs: np.ndarray, block: int) -> np.ndarray:
    """The trimmed means of blocks of steps in a row."""
    cut = int(TRIM * block)
    rows = np.sort(logs[: len(logs) // block * block].reshape(-1, block), axis=1)
    return rows[:, cut : block - cut].mean(axis=1)


def worker(args: argparse.Namespace) -> None:
    """One rank: the same steps until the time is over."""
    import measure_surfaces

    import hvdtune as hvd

    hvd.init()
    surface = measure_surfaces.Surface(args.workload, hvd.size(), args.compute, {})
    step = measure_surfaces.make_step(surface, hvd, np)
    for _ in range(WARMUP_STEPS):
        step()
    times_ms: list[float] = []
    is_over, began = np.zeros(1, np.int32), time.monotonic()
    while not is_over[0]:
        before = time.perf_counter()
        step()
        times_ms.append(1e3 * (time.perf_counter() - before))
        if len(times_ms) % CHECK_EVERY == 0:
            late = np.array([time.monotonic() - began > args.seconds], np.int32)
            is_over = hvd.broadcast(late, root_rank=0, name="over")
    ranks.report(args.worker, hvd.rank(), {"times_ms": times_ms})
    hvd.shutdown()


if __name__ == "__main__":
    sys.exit(main())
