"""A step's allreduces, alone and while another process computes on one of the CPUs.

    python benchmarks/experiments/beside_others.py [--np 4] [--mib 160] [--rounds 3] [--free]

Every rank is pinned to a CPU, several to one CPU if there are more ranks than CPUs; with --free the
kernel may move them. If the other process and the n ranks on its CPU get equal shares of it, a step
takes at least (n + 1) / n times as long.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ranks

TENSORS = 20
COMPUTES = "while True: pass"


def main() -> int:
    parser = ranks.parser(__doc__, 4)
    parser.add_argument("--mib", type=int, default=160, help="of a step, in all (default: 160)")
    parser.add_argument("--rounds", type=int, default=3, help="of both (default: 3)")
    parser.add_argument("--seconds", type=float, default=4, help="of a turn (default: 4)")
    parser.add_argument("--free", action="store_true", help="pin no rank to a CPU")
    args = parser.parse_args()
    if args.worker:
        work(args)
        return 0
    forwarded = ranks.forwarded(args, "mib", "seconds") + (["--free"] if args.free else [])
    times: dict[str, list[float]] = {"alone": [], "beside": []}
    for _ in range(args.rounds):
        times["alone"].append(ranks.measure(__file__, args.np, forwarded))
        other = subprocess.Popen([sys.executable, "-c", COMPUTES])
        try:
            times["beside"].append(ranks.measure(__file__, args.np, forwarded))
        finally:
            other.kill()
            other.wait()
    alone, beside = (ranks.median(times[name]) for name in ("alone", "beside"))
    print(f"{args.np} ranks, {args.mib} MiB a step, median of {args.rounds} rounds")
    print(f"alone                        {1000 * alone:8.1f} ms")
    print(f"beside one that computes     {1000 * beside:8.1f} ms   {beside / alone:.2f} x")
    return 0


def work(args: Any) -> None:
    """One rank: does steps for `seconds`; rank 0 returns their median to the parent."""
    import numpy as np

    import hvdtune as hvd

    if not args.free:
        cpus = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpus[int(os.environ["HOROVOD_LOCAL_RANK"]) % len(cpus)]})
    hvd.init()
    size = args.mib * (1 << 20) // TENSORS // 4
    tensors = [np.zeros(size, np.float32) for _ in range(TENSORS)]

    def step() -> None:
        handles = [
            hvd.allreduce_async(tensor, name=f"tensor.{index}", op=hvd.Sum)
            for index, tensor in enumerate(tensors)
        ]
        for handle in handles:
            hvd.synchronize(handle)

    step()
    durations = []
    until = time.monotonic() + args.seconds
    while True:
        begin = time.monotonic()
        step()
        durations.append(time.monotonic() - begin)
        if hvd.broadcast_object(time.monotonic() >= until, 0, name="over"):
            break
    ranks.report(Path(args.worker), hvd.rank(), ranks.median(durations))
    hvd.shutdown()


if __name__ == "__main__":
    sys.exit(main())
