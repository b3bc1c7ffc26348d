"""Training end to end: hvdtune's DistributedOptimizer and PyTorch's DDP (gloo), in one run.

  alone      no communication: every rank trains for itself. The others are shown as shares of this
  hvdtune    DistributedOptimizer around the same optimizer
  DDP        torch.nn.parallel.DistributedDataParallel around the same model

and two controls, which show how much time the bookkeeping of hundreds of gradients takes; their
ranks also train for themselves:

  waiting    an empty hook on every parameter, and a blocking allreduce of 4 bytes in every step:
             the cost of any hooks in torch, and of waiting for the slowest rank
  one tensor the same with as many bytes as the gradients have, in one tensor: adds moving the data

Each is a copy of the model with an optimizer of its own, in the same processes; they take turns.
Synthetic data, the same batch in every step. A rank computes with one thread (OMP_NUM_THREADS=1,
torch.set_num_threads(1)). Prints the samples that all ranks together train on in a second: the
median of the turns, its share of alone, and hvdtune's as a multiple of DDP's. Shares and multiples
are medians over the rounds, each of which compares turns that follow one another. A round in which
other processes of the machine took more than a twentieth of its CPUs is repeated, up to twice the
requested number of rounds; then the quietest rounds count.

The last lines say how fast any allreduce of the gradients could be: a step takes at least as long
as one that waits for the other ranks, plus the time for which the gradients' bytes keep the machine
busy (docs/performance.md, "The bound"; measured in the same run). One line uses the rates of arrays
as long as the gradients, which a cache may hold, the other those of main memory, where a backward
pass of several ranks leaves them. If every CPU computes, neither time can overlap with computing.
Context switches are those of all ranks in one of hvdtune's steps.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ranks

from hvdtune.bench import memory, metrics

# Samples of a batch on one rank.
BATCHES = {"mlp": 32, "cnn": 32, "small": 32}
TITLES = {"mlp": "MLP", "cnn": "CNN", "small": "100 small layers"}
METHODS = ("alone", "hvdtune", "DDP", "waiting", "one tensor")
MEMORY = 64 << 20  # bytes of an array that no cache holds
QUIET = 0.05  # of the CPUs' time, taken by other processes


def main() -> int:
    """Compare; with `--worker`, be one rank of the comparison."""
    parser = ranks.parser(__doc__, ranks=2)
    parser.add_argument("--model", choices=list(TITLES), default=None, help="(default: all)")
    parser.add_argument("--batch", type=int, default=0, help="samples of a batch on one rank")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each (default: 7)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a turn (default: 1)")
    parser.add_argument("--json", type=Path, default=None, help="write every turn to this file")
    args = parser.parse_args()
    if args.worker:
        worker(args)
        return 0
    os.environ["OMP_NUM_THREADS"] = "1"
    everything = {}
    for model in [args.model] if args.model else list(TITLES):
        args.model = model
        arguments = ranks.forwarded(args, "model", "batch", "rounds", "seconds")
        everything[model] = ranks.measure(__file__, args.np, arguments)
        print_results(everything[model], args.np)
    if args.json:
        args.json.write_text(json.dumps({"np": args.np, "models": everything}, indent=1))
    return 0


def print_results(found: dict[str, Any], count: int) -> None:
    """A table of one model's results."""
    speeds = found["samples per second"]
    print(
        f"{TITLES[found['model']]}, {found['parameters'] / 1e6:.2f} M parameters in "
        f"{found['tensors']} tensors, batch {found['batch']} a rank, np {count}, "
        f"1 thread a rank (OMP_NUM_THREADS=1)"
    )
    for name, values in speeds.items():
        share = ratio_of(values, speeds["alone"])
        print(f"  {name:<12}{ranks.median(values):9.0f} samples/s, {share:7.1%} of alone")
    for place, bound in found["bounds"].items():
        reach = f"{reach_of(found, bound, count):.1%} of alone"
        print(
            f"  {'at most':<12}{reach:>37}: waiting, and {bound * 1e6:.0f} us for bytes in {place}"
        )
    hvdtune, waiting = (found["context switches"][name] for name in ("hvdtune", "waiting"))
    print(f"  context switches in a step: {hvdtune:.1f}, waiting {waiting:.1f}")
    ratio = ratio_of(speeds["hvdtune"], speeds["DDP"])
    print(f"  hvdtune is {ratio:.2f} x as fast as DDP")
    loudest = max(found["taken by others"])
    print(f"  {len(speeds['DDP'])} rounds, other processes took at most {loudest:.0%}", flush=True)


def ratio_of(ones: list[float], others: list[float]) -> float:
    """The median over the rounds of one's speed as a multiple of the other's."""
    return ranks.median([one / other for one, other in zip(ones, others, strict=True)])


def reach_of(found: dict[str, Any], bound: float, count: int) -> float:
    """The speed, as a share of alone's, of steps that wait and take `bound` seconds more.

    The median over the rounds.
    """
    speeds = found["samples per second"]
    samples = found["batch"] * count
    return ranks.median(
        [
            samples / (samples / waiting + bound) / alone
            for alone, waiting in zip(speeds["alone"], speeds["waiting"], strict=True)
        ]
    )


def worker(args: Any) -> None:
    """Measure on this rank."""
    hvd, torch = ranks.start_both()
    import hvdtune.torch

    batch = args.batch or BATCHES[args.model]
    inputs, targets = make_data(torch, args.model, batch, hvd.rank())
    trained = {}
    for method in METHODS:
        torch.manual_seed(0)
        trained[method] = make_model(torch, args.model)
    steps = {
        method: make_step(hvdtune.torch, torch, method, trained[method], inputs, targets)
        for method in METHODS
    }
    check(hvd, torch, steps, trained)
    speeds, switches, others = take_turns(hvd, steps, args.rounds, args.seconds)
    parameters = list(trained["alone"].parameters())
    gradients = 4 * sum(parameter.numel() for parameter in parameters)
    results = {
        "model": args.model,
        "batch": batch,
        "parameters": sum(parameter.numel() for parameter in parameters),
        "tensors": len(parameters),
        "samples per second": {
            method: [speed * batch for speed in values] for method, values in speeds.items()
        },
        "context switches": switches,
        "bounds": bounds(hvd, gradients),
        "taken by others": others,
    }
    ranks.report(args.worker, hvd.rank(), results)
    torch.distributed.destroy_process_group()
    hvd.shutdown()


def bounds(hvd: Any, size: int) -> dict[str, float]:
    """Least seconds of an allreduce of `size` bytes of float32, by the place of the bytes."""
    curve = memory.measure(
        hvd.rank(),
        min(hvd.size(), len(os.sched_getaffinity(0))),
        [size, MEMORY],
        hvd.barrier,
        lambda seconds: float(max(hvd.allgather_object(seconds))),
    )
    return {
        place: metrics.memory_bound_seconds("allreduce", size, hvd.size(), *curve.rates(of)) or 0.0
        for place, of in (("a cache", size), ("memory", MEMORY))
    }


def make_data(torch: Any, model: str, batch: int, rank: int) -> tuple[Any, Any]:
    """A batch of inputs and classes, another one on every rank."""
    shape = {"mlp": (1024,), "cnn": (3, 32, 32), "small": (128,)}[model]
    generator = torch.Generator().manual_seed(rank)
    inputs = torch.randn(batch, *shape, generator=generator)
    return inputs, torch.randint(10, (batch,), generator=generator)


def make_model(torch: Any, model: str) -> Any:
    """A classifier with 10 classes."""
    nn = torch.nn
    layers: list[Any] = []
    if model == "mlp":
        for _ in range(5):
            layers += [nn.Linear(1024, 1024), nn.ReLU()]
        layers.append(nn.Linear(1024, 10))
    elif model == "cnn":
        for inputs, outputs in ((3, 32), (32, 64), (64, 128)):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Conv2d(128, 128, 3, padding=1), nn.ReLU(), nn.Flatten()]
        layers += [nn.Linear(128 * 4 * 4, 32), nn.ReLU(), nn.Linear(32, 10)]
    else:
        for _ in range(99):
            layers += [nn.Linear(128, 128), nn.ReLU()]
        layers.append(nn.Linear(128, 10))
    return nn.Sequential(*layers)


def make_step(
    hvd: Any, torch: Any, method: str, model: Any, inputs: Any, targets: Any
) -> Callable[[], None]:
    """A function that trains one step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if method == "hvdtune":
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    elif method == "DDP":
        model = torch.nn.parallel.DistributedDataParallel(model)
    control = None
    if method in ("waiting", "one tensor"):
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(_nothing)
        count = sum(parameter.numel() for parameter in model.parameters())
        control = torch.zeros(1 if method == "waiting" else count)
    loss_of = torch.nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model(inputs), targets).backward()
        if control is not None:
            hvd.allreduce_(control, name=method)
        optimizer.step()

    return step


def _nothing(parameter: Any) -> None:
    """The hook of the controls."""


def check(hvd: Any, torch: Any, steps: dict[str, Callable[[], None]], trained: Any) -> None:
    """Fail unless hvdtune and DDP train the same model, unlike a rank alone; also warms up."""
    for step in steps.values():
        for _ in range(5):
            step()
    parameters = {
        method: torch.cat([p.detach().flatten() for p in model.parameters()])
        for method, model in trained.items()
    }
    close = torch.allclose(parameters["hvdtune"], parameters["DDP"], rtol=1e-3, atol=1e-5)
    alone = torch.equal(parameters["hvdtune"], parameters["alone"])
    sums = hvd.allgather_object(parameters["hvdtune"].double().sum().item())
    if not close or alone or len(set(sums)) != 1:
        raise SystemExit(f"rank {hvd.rank()}: hvdtune and DDP have not trained the same model")


def take_turns(
    hvd: Any, steps: dict[str, Callable[[], None]], rounds: int, seconds: float
) -> tuple[dict[str, list[float]], dict[str, float], list[float]]:
    """By method, of all ranks together: steps a second in every turn, context switches in a step.

    And the share of the CPUs that other processes took.

    Equal on every rank. In a round each method has a turn, and every round begins with a different
    one. After a few steps to warm up, ranks that communicate do as many steps as are expected to
    take `seconds`; ranks that do not communicate train for `seconds`, independent of the others.
    """
    names = list(steps)
    done: list[tuple[float, dict[str, float]]] = []
    switched: dict[str, list[float]] = {name: [] for name in names}
    while len(done) < 2 * rounds and sum(others <= QUIET for others, _ in done) < rounds:
        before = cpu_times(hvd)
        shift = len(done) % len(names)
        speeds = {}
        for name in names[shift:] + names[:shift]:
            own, switches = one_turn(hvd, steps[name], seconds, together=name != "alone")
            every = hvd.allgather_object((own, switches))
            speeds[name] = sum(speed for speed, _ in every)
            switched[name].append(sum(count for _, count in every))
        total, busy, own = (now - was for now, was in zip(cpu_times(hvd), before, strict=True))
        done.append((max(0.0, busy - own) / total, speeds))
    quietest = sorted(done, key=lambda one: one[0])[:rounds]
    return (
        {name: [speeds[name] for _, speeds in quietest] for name in names},
        {name: ranks.median(counts) for name, counts in switched.items()},
        [others for others, _ in quietest],
    )


def cpu_times(hvd: Any) -> tuple[float, float, float]:
    """CPU seconds so far: of all CPUs, of those in use, and of the ranks.

    As rank 0 sees it, on every rank.
    """
    own = sum(hvd.allgather_object(time.process_time()))
    fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    total, idle = sum(fields), fields[3] + fields[4]
    tick = os.sysconf("SC_CLK_TCK")
    found: tuple[float, float, float] = hvd.broadcast_object(
        (total / tick, (total - idle) / tick, own)
    )
    return found


def one_turn(
    hvd: Any, step: Callable[[], None], seconds: float, *, together: bool
) -> tuple[float, float]:
    """Steps a second of this rank in one turn, and context switches in a step."""
    hvd.barrier()
    started = time.perf_counter()
    for _ in range(3):
        step()
    estimate = (time.perf_counter() - started) / 3
    count = max(1, round(seconds / max(hvd.allgather_object(estimate)))) if together else 0
    hvd.barrier()
    before = ranks.context_switches()
    started = time.perf_counter()
    done = 0
    while done < count if together else time.perf_counter() - started < seconds:
        step()
        done += 1
    seconds = time.perf_counter() - started
    return done / seconds, (ranks.context_switches() - before) / done


if __name__ == "__main__":
    sys.exit(main())
