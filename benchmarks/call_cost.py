"""CPU time of the calling thread for each known tensor: allreduce_async_, then synchronize.

All tensors are submitted, then all waited for, as an optimizer does it. The thread's time includes
what the engine does in it while it waits: the whole reduction of its share.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import ranks


def main() -> int:
    """Measure; with `--worker`, be one rank."""
    parser = ranks.parser(__doc__, ranks=2)
    parser.add_argument("--tensors", type=int, default=1000, help="tensors (default: 1000)")
    parser.add_argument("--elements", type=int, default=256, help="float32 each (default: 256)")
    parser.add_argument("--rounds", type=int, default=100, help="rounds (default: 100)")
    args = parser.parse_args()
    if args.worker:
        worker(args)
        return 0
    arguments = ranks.forwarded(args, "tensors", "elements", "rounds")
    found = ranks.measure(__file__, args.np, arguments)
    print(f"{args.tensors} tensors of {args.elements} float32 elements, np {args.np}")
    for name, values in found.items():
        per_tensor = [value / args.tensors * 1e6 for value in values]
        print(
            f"  {name:<16} median {ranks.median(per_tensor):6.2f} us of CPU a tensor, p95 "
            f"{ranks.nearest_rank(per_tensor, 0.95):6.2f} us"
        )
    return 0


def worker(args: Any) -> None:
    """Measure on this rank."""
    import torch

    import hvdtune.torch as hvd

    hvd.init()
    tensors = [(f"layer.{i}.weight", torch.ones(args.elements)) for i in range(args.tensors)]
    found: dict[str, list[float]] = {"submitting": [], "waiting": [], "both": []}
    for _ in range(args.rounds):
        hvd.barrier()
        begun = time.thread_time()
        handles = [hvd.allreduce_async_(tensor, name=name, op=hvd.Sum) for name, tensor in tensors]
        submitted = time.thread_time()
        for handle in handles:
            hvd.synchronize(handle)
        ended = time.thread_time()
        found["submitting"].append(submitted - begun)
        found["waiting"].append(ended - submitted)
        found["both"].append(ended - begun)
    every = hvd.allgather_object(found)
    merged = {name: [value for one in every for value in one[name]] for name in found}
    ranks.report(args.worker, hvd.rank(), merged)
    hvd.shutdown()


if __name__ == "__main__":
    sys.exit(main())
