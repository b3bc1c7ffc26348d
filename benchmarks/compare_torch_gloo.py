"""One step of a model's gradients: hvdtune beside torch.distributed's gloo, in one run.

  hvdtune         every tensor submitted asynchronously in backward order, then all waited for
  gloo, buckets   packed by hand into buckets of 25 MB as DDP does: a bucket is reduced
                  asynchronously when it is full, unpacked at the end
  gloo, one by one   every tensor reduced asynchronously, then all waited for

Prints medians over all ranks and steps, and gloo's time as a multiple of hvdtune's.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import ranks

from hvdtune.bench.workloads import WORKLOADS

BUCKET_BYTES = 25 << 20


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
    shapes = [shape for _, shape in WORKLOADS[args.workload].backward_order()]
    # Gradients of a real model are arrays of their own, not parts of one.
    arrays = [np.zeros(shape, np.float32) for shape in shapes]
    tensors = [torch.from_numpy(array) for array in arrays]
    calls = {
        "hvdtune": hvdtune_step(hvd, arrays),
        "gloo, buckets": bucket_step(torch, tensors),
        "gloo, one by one": single_step(torch, tensors),
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


def bucket_step(torch: Any, tensors: list[Any]) -> Callable[[], None]:
    """A step through gloo with buckets, allocated once."""
    buckets: list[list[Any]] = [[]]
    filled = 0
    for tensor in tensors:
        if buckets[-1] and filled + tensor.nbytes > BUCKET_BYTES:
            buckets.append([])
            filled = 0
        buckets[-1].append(tensor)
        filled += tensor.nbytes
    planned = []
    for members in buckets:
        flat = torch.zeros(sum(math.prod(member.shape) for member in members))
        views = torch.split(flat, [math.prod(member.shape) for member in members])
        shaped = [view.view(member.shape) for view, member in zip(views, members, strict=True)]
        planned.append((members, flat, shaped))

    def step() -> None:
        works = []
        for members, flat, views in planned:
            torch._foreach_copy_(views, members)
            works.append(torch.distributed.all_reduce(flat, async_op=True))
        for work, (members, _, views) in zip(works, planned, strict=True):
            work.wait()
            torch._foreach_copy_(members, views)

    return step


def single_step(torch: Any, tensors: list[Any]) -> Callable[[], None]:
    """A step through gloo, one tensor at a time."""

    def step() -> None:
        works = [torch.distributed.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work in works:
            work.wait()

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
