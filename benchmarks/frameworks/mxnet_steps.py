"""The cost of reducing in MXNet: a push, 4 floats, and a step's gradients, also with gloo.

A step makes the gradients of a model (ResNet-50 unless `--model` names another), each a weight
times a number, and reduces them; the time of the same without reducing is subtracted. In each
round, one after the other:

  hvdtune          an allreduce in place for each gradient, as DistributedTrainer makes them
  hvdtune, group   one group of them
  gloo             torch.distributed's all_reduce of tensors of the same sizes, all in flight

Then the times of single calls in the caller's thread: the push of an allreduce of 4 floats while
MXNet still computes them, as in a training loop, and after they are computed; a push whose result
is waited for; PyTorch's face for as many floats; and MXNet's own multiplication.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ranks

from hvdtune.bench.workloads.gradient_sets import WORKLOADS

PUSHES = 200
REDUCING = {"hvdtune": "making", "hvdtune, group": "making", "gloo": "making in torch"}
SMALL = (
    "push, not computed yet",
    "MXNet's, not computed yet",
    "push",
    "MXNet's push",
    "push and wait",
    "MXNet's push and wait",
    "PyTorch's allreduce",
)


def main() -> int:
    """Measure; with `--worker`, be one rank."""
    parser = ranks.parser(__doc__, ranks=2)
    parser.add_argument("--model", default="resnet50", help="gradient set (default: resnet50)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn (default: 1)")
    args = parser.parse_args()
    if args.worker:
        worker(args)
        return 0
    found = ranks.measure(__file__, args.np, ranks.forwarded(args, "model", "rounds", "seconds"))
    print(f"{args.model}, np {args.np}, {args.rounds} rounds; ms to reduce a step's gradients")
    costs = {
        name: (ranks.median(found[name]) - ranks.median(found[alone])) * 1e3
        for name, alone in REDUCING.items()
        if name in found
    }
    for name, cost in costs.items():
        step = ranks.median(found[name]) * 1e3
        print(
            f"  {name:<22} {cost:8.2f}  {cost / costs['hvdtune']:6.2f} x hvdtune; step {step:.2f}"
        )
    if "gloo" not in costs:
        print("  gloo: PyTorch cannot be imported here")
    print("4 floats, us a call")
    for name in filter(found.__contains__, SMALL):
        print(f"  {name:<22} {ranks.median(found[name]) * 1e6:8.1f}")
    return 0


def worker(args: Any) -> None:
    """Measure on this rank."""
    import mxnet as mx

    import hvdtune
    import hvdtune.mxnet as hvd

    hvd.init()
    shapes = [shape for _, shape in WORKLOADS[args.model].backward_order()]
    weights = [mx.nd.ones(shape) for shape in shapes]
    gradients = [mx.nd.empty(shape) for shape in shapes]
    few = [mx.nd.ones(4) for _ in range(PUSHES)]
    square = mx.nd.ones((2000, 2000))

    def step(reduce: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            for weight, gradient in zip(weights, gradients, strict=True):
                mx.nd.broadcast_mul(weight, half, out=gradient)
            reduce()
            mx.nd.waitall()

        half = mx.nd.full(1, 0.5)
        half.wait_to_read()
        return run

    def one_by_one() -> None:
        for place, gradient in enumerate(gradients):
            hvd.allreduce_(gradient, name=f"g{place}", priority=-place)

    def push(place: int) -> None:
        hvd.allreduce_(few[place], name=f"few{place}")

    def multiply(place: int) -> None:
        mx.nd.broadcast_mul(few[place], few[place], out=few[place])

    def keep_busy() -> None:
        late = mx.nd.dot(square, square)[0, :4] * 0
        for each in few:
            mx.nd.broadcast_add(each, late, out=each)

    def time_pushes(rounds: int, call: Callable[[int], None], before: Callable[[], None]) -> Any:
        times = []
        for _ in range(4 * rounds):
            mx.nd.waitall()
            hvdtune.barrier()
            before()
            for place in range(PUSHES):
                started = time.perf_counter()
                call(place)
                times.append(time.perf_counter() - started)
        return times

    calls: dict[str, Callable[[], Any]] = {
        "making": step(lambda: None),
        "hvdtune": step(one_by_one),
        "hvdtune, group": step(lambda: hvd.grouped_allreduce_(gradients, name="step")),
        "push and wait": lambda: hvd.allreduce_(few[0], name="one").wait_to_read(),
        "MXNet's push and wait": lambda: (few[0] * few[0]).wait_to_read(),
    }
    add_gloo(calls, shapes)
    found = ranks.time_in_turns(hvdtune, calls, args.rounds, 500, args.seconds)
    # Their results are not timed: nothing else happens meanwhile.
    pushes = {"push": push, "MXNet's push": multiply}
    for name, call in pushes.items():
        found[name] = time_pushes(args.rounds, call, lambda: None)
    pushes = {"push, not computed yet": push, "MXNet's, not computed yet": multiply}
    for name, call in pushes.items():
        found[name] = time_pushes(args.rounds, call, keep_busy)
    mx.nd.waitall()
    ranks.report(args.worker, hvd.rank(), found)
    hvd.shutdown()


def add_gloo(calls: dict[str, Callable[[], Any]], shapes: list[tuple[int, ...]]) -> None:
    """The same with torch.distributed, if PyTorch can be imported together with MXNet."""
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        return
    import hvdtune.torch as face

    tensor = torch.ones(4)
    calls["PyTorch's allreduce"] = lambda: face.allreduce_(tensor, name="one of PyTorch's")
    rank, size = int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])
    dist.init_process_group("gloo", rank=rank, world_size=size)
    torch.set_num_threads(1)
    weights = [torch.ones(shape) for shape in shapes]
    gradients = [torch.empty(shape) for shape in shapes]

    def run(reduces: bool) -> None:
        for weight, gradient in zip(weights, gradients, strict=True):
            torch.mul(weight, 0.5, out=gradient)
        if reduces:
            for work in [dist.all_reduce(gradient, async_op=True) for gradient in gradients]:
                work.wait()

    calls["making in torch"] = lambda: run(False)
    calls["gloo"] = lambda: run(True)


if __name__ == "__main__":
    sys.exit(main())
