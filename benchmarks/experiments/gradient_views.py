"""The time that DistributedOptimizer(gradient_as_buffer_view=True) saves, for models' gradients.

A step is zero_grad(), a backward pass that only writes the gradients, and synchronize():

  copied       gradients where autograd puts them; the engine packs and unpacks them
  views        gradients in shared memory; gradients that autograd allocates anew are copied there
  copied, kept and
  views, kept  the same with zero_grad(set_to_none=False): autograd adds to the gradients that are
               there

They take turns. Prints the median time of a step, and the part of it that reducing takes: the same
gradients submitted at once, without a backward pass.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ranks

from hvdtune.bench.workloads.convnets import resnet50
from hvdtune.bench.workloads.transformers import bert_base

MODELS = {"resnet50": resnet50, "bert-base": bert_base}
KINDS = {
    "copied": (False, True),
    "views": (True, True),
    "copied, kept": (False, False),
    "views, kept": (True, False),
}
PARTS = ("step", "reducing")


def main() -> int:
    """Compare; with `--worker`, be the rank that measures."""
    parser = ranks.parser(__doc__, ranks=2)
    parser.add_argument("--model", choices=MODELS, default="resnet50", help="(default: resnet50)")
    parser.add_argument("--rounds", type=int, default=15, help="(default: 15)")
    args = parser.parse_args()
    if args.worker:
        worker(args)
        return 0
    found = ranks.measure(__file__, args.np, ranks.forwarded(args, "model", "rounds"))
    print(f"gradients of {args.model}, float32, np {args.np}, {args.rounds} rounds")
    for part in PARTS:
        base = ranks.median(found["copied"][part])
        for name, durations in found.items():
            own = ranks.median(durations[part])
            print(
                f"  {part:<10}{name:<14}{own * 1e3:9.2f} ms {base / own:6.2f} x as fast as copied"
            )
    return 0


def worker(args: Any) -> None:
    """Measure on this rank."""
    import torch

    import hvdtune.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    contenders = {
        name: contender(torch, hvd, args.model, views, to_none)
        for name, (views, to_none) in KINDS.items()
    }
    durations: dict[str, dict[str, list[float]]] = {
        name: {part: [] for part in PARTS} for name in contenders
    }
    names = list(contenders)
    for number in range(-3, args.rounds):  # the first few warm up
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            for part, call in zip(PARTS, contenders[name], strict=True):
                hvd.barrier()
                started = time.perf_counter()
                call()
                hvd.barrier()  # the slowest rank's time
                if number >= 0:
                    durations[name][part].append(time.perf_counter() - started)
    ranks.report(args.worker, hvd.rank(), durations)
    hvd.shutdown()


def contender(
    torch: Any, hvd: Any, model: str, views: bool, to_none: bool
) -> tuple[Callable[[], None], Callable[[], None]]:
    """The model's parameters and an optimizer; calls that do one of PARTS each."""
    named = [(name, torch.nn.Parameter(torch.zeros(shape))) for name, shape in MODELS[model]()]
    parameters = [parameter for _, parameter in named]
    source = torch.ones(max(parameter.numel() for parameter in parameters))
    gradients = [source[: p.numel()].view(p.shape) for p in parameters]

    class Backward(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            return torch.zeros(())

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return tuple(gradients)

    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(parameters, lr=0.1), named, gradient_as_buffer_view=views
    )

    def step() -> None:
        optimizer.zero_grad(set_to_none=to_none)
        Backward.apply(*parameters).backward()
        optimizer.synchronize()

    def reducing() -> None:
        handles = [
            hvd.allreduce_async_(parameter.grad, name="alone." + name)
            for name, parameter in reversed(named)
        ]
        for handle in reversed(handles):
            hvd.synchronize(handle)

    return step, reducing


if __name__ == "__main__":
    sys.exit(main())
