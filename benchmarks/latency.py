"""Synchronous allreduce of a few bytes: hvdtune beside torch.distributed's gloo, in one run."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import ranks


def main() -> int:
    """Compare; with `--worker`, be one rank of the comparison."""
    parser = ranks.parser(__doc__, ranks=2)
    parser.add_argument("--elements", type=int, default=1, help="float32 elements (default: 1)")
    parser.add_argument("--rounds", type=int, default=10, help="turns of each side (default: 10)")
    args = parser.parse_args()
    if args.worker:
        worker(args)
        return 0
    arguments = ranks.forwarded(args, "elements", "rounds")
    found = ranks.measure(__file__, args.np, arguments)
    print(f"allreduce of {4 * args.elements} bytes, float32 sum in place, np {args.np}")
    own = ranks.median(found["hvdtune"])
    for name, values in found.items():
        middle = ranks.median(values)
        print(
            f"  {name:<12} median {middle * 1e6:9.1f} us, p99 "
            f"{ranks.nearest_rank(values, 0.99) * 1e6:9.1f} us, {middle / own:6.2f} x hvdtune, "
            f"{len(values) // args.np} calls"
        )
    return 0


def worker(args: Any) -> None:
    """Measure on this rank."""
    hvd, torch = ranks.start_both()
    array = np.zeros(args.elements, np.float32)
    tensor = torch.zeros(args.elements)
    calls = {
        "hvdtune": lambda: hvd.allreduce_(array, op=hvd.Sum, name="latency"),
        "torch gloo": lambda: torch.distributed.all_reduce(tensor),
    }
    found = ranks.time_in_turns(hvd, calls, args.rounds, most=1000, seconds=0.5)
    ranks.report(args.worker, hvd.rank(), found)
    torch.distributed.destroy_process_group()
    hvd.shutdown()


if __name__ == "__main__":
    sys.exit(main())
