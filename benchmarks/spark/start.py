"""The time from a call of `hvdtune.spark.run` until the first allreduce of its ranks.

The session is warm: it has run one job before. The function imports a face and reduces a tensor;
the time until the last rank has the result includes starting Python in Spark's tasks and the
import. `run` returns a little later. There is one session, in this process and on this machine.
"""

from __future__ import annotations

import argparse
import statistics
import time

FACES = ("numpy", "torch")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--np", type=int, default=2, help="ranks (default: 2)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds (default: 7)")
    parser.add_argument("--connect", action="store_true", help="through Spark Connect")
    args = parser.parse_args()

    from pyspark.sql import SparkSession

    import hvdtune.spark

    builder = SparkSession.builder
    master = f"local[{args.np}]"
    builder = builder.remote(master) if args.connect else builder.master(master)
    session = builder.config("spark.ui.enabled", "false").getOrCreate()
    found: dict[str, list[tuple[float, float]]] = {face: [] for face in FACES}
    for turn in range(args.rounds + 1):
        for face in FACES:
            called = time.time()
            done = max(hvdtune.spark.run(reduce_once, args=(face,), num_proc=args.np, verbose=0))
            if turn > 0:
                found[face].append((done - called, time.time() - called))
    session.stop()
    way = "Spark Connect" if args.connect else "a classic session"
    print(f"{args.np} ranks, {way}, {args.rounds} rounds; s after the call: median, longest")
    for face, times in found.items():
        first, returned = zip(*times, strict=True)
        print(
            f"  {face:<6} first allreduce {statistics.median(first):5.2f} {max(first):5.2f};"
            f"  returned {statistics.median(returned):5.2f} {max(returned):5.2f}"
        )
    return 0


def reduce_once(face: str) -> float:
    """The time, by this machine's clock, at which this rank has its first allreduce's result."""
    if face == "torch":
        import torch

        import hvdtune.torch as hvd

        value = torch.ones(4)
    else:
        import numpy as np

        import hvdtune as hvd

        value = np.ones(4, np.float32)
    hvd.init()
    hvd.allreduce(value, name="first")
    return time.time()


if __name__ == "__main__":
    raise SystemExit(main())
