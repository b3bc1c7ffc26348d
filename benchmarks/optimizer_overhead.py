"""What DistributedOptimizer adds to a backward pass: hooks on 200 parameters, in one process.

  plain      torch's own optimizer
  wrapped    DistributedOptimizer; with one process it installs no hooks
  hooks      the same with HOROVOD_ELASTIC=1, with which it installs them, because more processes
             may join. With one process it reduces nothing, with --np 2 it reduces

The three take turns, one backward pass and one step() each. Prints medians, each also as a multiple
of plain's. Prints elapsed time, and the CPU time of the training thread alone, which does not
include other processes and the engine's thread.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import ranks

PARTS = ("backward", "backward, CPU", "step", "step, CPU")


def main() -> int:
    """Compare; with `--worker`, be the rank that measures."""
    parser = ranks.parser(__doc__, ranks=1)
    parser.add_argument("--layers", type=int, default=100, help="two parameters each")
    parser.add_argument("--width", type=int, default=256, help="of a layer (default: 256)")
    parser.add_argument("--batch", type=int, default=64, help="rows (default: 64)")
    parser.add_argument("--rounds", type=int, default=200, help="(default: 200)")
    args = parser.parse_args()
    if args.worker:
        worker(args)
        return 0
    arguments = ranks.forwarded(args, "layers", "width", "batch", "rounds")
    found = ranks.measure(__file__, args.np, arguments)
    print(
        f"{2 * args.layers} parameters, linear layers {args.width} x {args.width}, "
        f"batch {args.batch}, np {args.np}"
    )
    for part in PARTS:
        print(f"  {part}")
        plain = ranks.median(found["plain"][part])
        for name, durations in found.items():
            own = ranks.median(durations[part])
            added = (own - plain) / (2 * args.layers)
            print(
                f"    {name:<10}{own * 1e3:8.2f} ms, {own / plain:7.3f} x plain, "
                f"{added * 1e6:+7.2f} us a parameter"
            )
    return 0


def worker(args: Any) -> None:
    """Measure on this rank."""
    import torch

    import hvdtune.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    rows = torch.randn(args.batch, args.width)
    contenders = {
        "plain": contender(torch, args, rows, lambda inner, _: inner),
        "wrapped": contender(torch, args, rows, hvd.DistributedOptimizer),
    }
    os.environ["HOROVOD_ELASTIC"] = "1"
    contenders["hooks"] = contender(torch, args, rows, hvd.DistributedOptimizer)
    durations: dict[str, dict[str, list[float]]] = {
        name: {part: [] for part in PARTS} for name in contenders
    }
    names = list(contenders)
    for number in range(-5, args.rounds):  # the first few warm up
        for name in names[number % 3 :] + names[: number % 3]:
            for part, duration in zip(PARTS, contenders[name](), strict=True):
                if number >= 0:
                    durations[name][part].append(duration)
    ranks.report(args.worker, hvd.rank(), durations)
    hvd.shutdown()


def contender(
    torch: Any, args: Any, rows: Any, wrap: Callable[[Any, Any], Any]
) -> Callable[[], tuple[float, ...]]:
    """A model and an optimizer; a call trains one step, and returns seconds of its PARTS."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(args.width, args.width) for _ in range(args.layers)]
    model = torch.nn.Sequential(*layers)
    inner = torch.optim.SGD(model.parameters(), lr=1e-6)
    optimizer = wrap(inner, model.named_parameters())

    def train() -> tuple[float, ...]:
        optimizer.zero_grad()
        loss = model(rows).square().mean()
        clock, cpu = time.perf_counter(), time.thread_time()
        loss.backward()
        clock_between, cpu_between = time.perf_counter(), time.thread_time()
        optimizer.step()
        clock_after, cpu_after = time.perf_counter(), time.thread_time()
        return (
            clock_between - clock,
            cpu_between - cpu,
            clock_after - clock_between,
            cpu_after - cpu_between,
        )

    return train


if __name__ == "__main__":
    sys.exit(main())
