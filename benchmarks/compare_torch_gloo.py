"""One step of a model's gradients: hvdtune beside torch.distributed's gloo, in one run.

  hvdtune         every tensor submitted asynchronously in backward order, then all waited for
  gloo, buckets   packed by hand into buckets of 25 MB as DDP does: a bucket is reduced
                  asynchronously when it is full, unpacked at the end
  gloo, one by one   every tensor reduced asynchronously, then all waited for

Prints medians over all ranks and steps, and gloo's time as a multiple of hvdtune's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import ranks

from hvdtune.bench.workloads import WORKLOADS


def main() -> int:
    """Compare; with `--worker`, be one rank of the comparison."""
    parser = ranks.parser(__doc__, ranks=2)
    parser.add_argument("--workload", choices=list(WORKLOADS), default="resnet50")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each method (default: 5)")
    parser.add_argument("--seconds", type=float, default=1.5, help="length of a turn")
    args = parser.parse_args()
    if args.worker:
        worker(args)
        return 0
    arguments = ranks.forwarded(args, "workload", "rounds", "seconds")
    found = ranks.measure(__file__, args.np, arguments)
    workload = WORKLOADS[args.workload]
    print(f"{workload.title}: {workload.elements() * 4 / 1e6:.1f} MB, np {args.np}")
    own = ranks.median(found["hvdtune"])
    for name, values in found.items():
        middle = ranks.median(values)
        print(
            f"  {name:<18}{middle * 1e3:10.2f} ms a step, p99 "
            f"{ranks.nearest_rank(values, 0.99) * 1e3:10.2f} ms, {middle / own:7.2f} x hvdtune, "
            f"{len(values) // args.np} steps"
        )
    return 0


def worker(args: Any) -> None:
    """Measure on this rank."""
    hvd, torch = ranks.start_both()
    from peers import gloo_steps

    shapes = [shape for _, shape in WORKLOADS[args.workload].backward_order()]
    # Gradients of a real model are arrays of their own, not parts of one.
    arrays = [np.zeros(shape, np.float32) for shape in shapes]
    tensors = [torch.from_numpy(array) for array in arrays]
    calls = {
        "hvdtune": hvdtune_step(hvd, arrays),
        "gloo, buckets": gloo_steps.bucket_step(tensors),
        "gloo, one by one": gloo_steps.single_step(tensors),
    }
    check(hvd, calls, arrays)
    found = ranks.time_in_turns(hvd, calls, args.rounds, 50, args.seconds)
    ranks.report(args.worker, hvd.rank(), found)
    torch.distributed.destroy_process_group()
    hvd.shutdown()


def hvdtune_step(hvd: Any, arrays: list[Any]) -> Callable[[], None]:
    """A step through hvdtune's NumPy face."""

    def step() -> None:
        handles = [
            hvd.allreduce_async_(array, op=hvd.Sum, name=str(number))
            for number, array in enumerate(arrays)
        ]
        for handle in reversed(handles):
            hvd.synchronize(handle)

    return step


def check(hvd: Any, calls: dict[str, Callable[[], None]], arrays: list[Any]) -> None:
    """Fail unless every method sums; leaves zeros, of which any number of sums are zeros."""
    for name, step in calls.items():
        for array in arrays:
            array.fill(hvd.rank() + 1)
        step()
        expected = hvd.size() * (hvd.size() + 1) / 2
        if not all((array == expected).all() for array in arrays):
            raise SystemExit(f"{name}: wrong sums")
    for array in arrays:
        array.fill(0)


if __name__ == "__main__":
    sys.exit(main())
