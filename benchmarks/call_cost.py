"""CPU time of the calling thread for each known tensor: allreduce_async_, then synchronize.

All tensors are submitted and then waited for, as scripts do it; then all in one call, as
DistributedOptimizer does it if no CPU is left. The thread's time includes the engine's work in this
thread while it waits: the whole reduction of its share. With `--walk`, every rank walks through
that much memory before each round, as a training step does: the data that the engine keeps of the
tensors has then left the cache.
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
    parser.add_argument("--walk", type=float, default=0.0, help="MiB in between (default: 0)")
    args = parser.parse_args()
    if args.worker:
        worker(args)
        return 0
    arguments = ranks.forwarded(args, "tensors", "elements", "rounds", "walk")
    found = ranks.measure(__file__, args.np, arguments)
    print(
        f"{args.tensors} tensors of {args.elements} float32 elements, np {args.np}, "
        f"{args.walk:g} MiB in between"
    )
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
    from hvdtune.core import operations
    from hvdtune.torch.adapter import CODES

    hvd.init()
    tensors = [(f"layer.{i}.weight", torch.ones(args.elements)) for i in range(args.tensors)]
    walked = torch.zeros(int(args.walk * 2**18))
    names = tuple([name for name, _ in tensors])
    plan = operations.plan_allreduces(CODES, names, hvd.Sum, 1.0, 1.0, hvd.global_process_set)
    found: dict[str, list[float]] = {"submitting": [], "waiting": [], "both": [], "in one call": []}
    for _ in range(args.rounds):
        walked.add_(1)
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
        walked.add_(1)
        hvd.barrier()
        begun = time.thread_time()
        if not plan.reduce([tensor for _, tensor in tensors], []):
            raise SystemExit("not all tensors were reduced")
        found["in one call"].append(time.thread_time() - begun)
    every = hvd.allgather_object(found)
    merged = {name: [value for one in every for value in one[name]] for name in found}
    ranks.report(args.worker, hvd.rank(), merged)
    hvd.shutdown()


if __name__ == "__main__":
    sys.exit(main())
