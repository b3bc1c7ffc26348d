"""HVDTUNE_OVERLAP: off, on and auto in turns, for ranks that wait and for ranks that compute.

  waiting    layers that sleep, like ranks that wait for a device
  computing  layers that multiply matrices, on all CPUs

Every turn is a job of its own (`init` to `shutdown`) in the same processes. hvdtune is told that
the host has no more CPUs than ranks, so that `auto` finds none left over. Prints for each setting
the median over the rounds of a job's time for all steps, and of the median step in the job's last
half, with the saving against `off` (the standard error is that of the rounds' differences), and the
message of `auto`. Run it with --np 2 and --np 4.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ranks

CHOICES = ("off", "on", "auto")


def main() -> int:
    """Compare; with `--worker`, be the rank that measures."""
    parser = ranks.parser(__doc__, ranks=4)
    parser.add_argument("--layers", type=int, default=6, help="(default: 6)")
    parser.add_argument("--width", type=int, default=512, help="of a layer (default: 512)")
    parser.add_argument("--batch", type=int, default=8, help="rows (default: 8)")
    parser.add_argument("--sleep", type=float, default=5.0, help="ms a layer (default: 5)")
    parser.add_argument("--steps", type=int, default=300, help="of a job (default: 300)")
    parser.add_argument("--rounds", type=int, default=10, help="(default: 10)")
    args = parser.parse_args()
    if args.worker:
        worker(args)
        return 0
    arguments = ranks.forwarded(args, "layers", "width", "batch", "sleep", "steps", "rounds")
    found = ranks.measure(__file__, args.np, arguments)
    for load, by_choice in found.items():
        print(f"{load}, np {args.np}, {args.layers} layers of {args.width}²")
        for choice in CHOICES:
            whole, late = zip(*by_choice[choice], strict=True)
            whole_off, late_off = zip(*by_choice["off"], strict=True)
            print(
                f"    {choice:<5} all steps {1e3 * ranks.median(whole) / args.steps:8.2f} ms"
                f"{saved(whole, whole_off)}   last half {1e3 * ranks.median(late):8.2f} ms"
                f"{saved(late, late_off)}"
            )
        for told in by_choice["told"]:
            print(f"    auto: {told}")
    return 0


def saved(values: tuple[float, ...], off: tuple[float, ...]) -> str:
    """The saving against off, with its standard error."""
    shares = [1 - value / other for value, other in zip(values, off, strict=True)]
    error = statistics.stdev(shares) / len(shares) ** 0.5 if len(shares) > 1 else float("nan")
    return f" ({100 * statistics.fmean(shares):+5.1f} ± {100 * error:.1f} %)"


def worker(args: Any) -> None:
    """Measure on this rank."""
    import torch

    import hvdtune.torch as hvd
    from hvdtune.core import world
    from hvdtune.torch.optimizer import overlap

    torch.set_num_threads(1)
    host_cpus = world.host_cpus
    world.host_cpus = lambda: min(hvd.local_size(), host_cpus())
    told: list[str] = []
    overlap._tell = told.append
    found: dict[str, dict[str, list[Any]]] = {}
    rank = 0
    for load in ("waiting", "computing"):
        found[load] = {"told": [], **{choice: [] for choice in CHOICES}}
        for number in range(args.rounds):
            first = number % len(CHOICES)
            for choice in CHOICES[first:] + CHOICES[:first]:
                os.environ["HVDTUNE_OVERLAP"] = choice
                hvd.init()
                rank = hvd.rank()
                found[load][choice].append(job(torch, hvd, args, load == "waiting"))
                hvd.shutdown()
                found[load]["told"] += told[-1:]
                told.clear()
    ranks.report(args.worker, rank, found)


def job(torch: Any, hvd: Any, args: Any, waits: bool) -> tuple[float, float]:
    """Seconds of all steps, and of the median step of the last half."""

    class Sleep(torch.autograd.Function):  # type: ignore[name-defined,misc]
        @staticmethod
        def forward(ctx: Any, rows: Any) -> Any:
            time.sleep(args.sleep / 1e3)
            return rows.view_as(rows)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            time.sleep(args.sleep / 1e3)
            return gradient

    layers = torch.nn.ModuleList(
        [torch.nn.Linear(args.width, args.width) for _ in range(args.layers)]
    )
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(layers.parameters(), lr=1e-6), layers.named_parameters()
    )
    begin = torch.randn(args.batch if waits else 32 * args.batch, args.width, requires_grad=True)
    durations = []
    hvd.barrier()
    for _ in range(args.steps):
        started = time.perf_counter()
        optimizer.zero_grad()
        values = begin
        for layer in layers:
            values = layer(Sleep.apply(values) if waits else values)
        values.square().mean().backward()
        optimizer.step()
        durations.append(time.perf_counter() - started)
    return sum(durations), ranks.median(durations[len(durations) // 2 :])


if __name__ == "__main__":
    sys.exit(main())
