"""The cost of recording: the same steps with and without it, in turns, in the same processes.

  resnet50   ResNet-50's 161 gradients, submitted one by one and then waited for
  tiny       1000 tensors of 256 numbers each, in the same way

A round is `--seconds` without and as long with recording, in changing order, each after a fraction
of a second that does not count. Prints the medians of the rounds' median step times of rank 0, the
median of the rounds' own ratios with its standard error, these ratios, and the bytes of a step's
tensor in the compressed files of all ranks. Goals: at most 1.02 times the step, and at most 120
bytes. With more ranks than CPUs, steps differ for tens of seconds at a time, and single ratios by a
tenth: measuring a hundredth takes hundreds of rounds in several jobs.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import ranks

WORKLOADS = ("resnet50", "tiny")
#: Seconds of steps in each turn that do not count: until a recording has been written to once.
SETTLING = 0.6
GOAL_RATIO = 1.02
GOAL_BYTES = 120


def main() -> int:
    """Compare; with `--worker`, be a rank that measures."""
    parser = ranks.parser(__doc__, ranks=2)
    parser.add_argument("--workload", choices=WORKLOADS, default="tiny")
    parser.add_argument("--rounds", type=int, default=21, help="(default: 21)")
    parser.add_argument(
        "--jobs", type=int, default=1, help="jobs of --rounds rounds each (default: 1)"
    )
    parser.add_argument("--seconds", type=float, default=0.7, help="of each turn (default: 0.7)")
    parser.add_argument("--folder", default="", help="for the recordings (default: a new one)")
    args = parser.parse_args()
    if args.worker:
        worker(args)
        return 0
    os.environ.update(HOROVOD_TIMELINE="DYNAMIC", OMP_NUM_THREADS="1")
    rounds: dict[str, list[float]] = {"off": [], "on": []}
    compressed = tensors = 0
    for number in range(args.jobs):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(args.folder or temporary) / str(number)
            folder.mkdir(parents=True, exist_ok=True)
            for name, values in measured(args, folder).items():
                rounds[name] += values
            its_bytes, its_tensors = sizes(folder)
        compressed += its_bytes
        tensors += its_tensors
    return report(args, rounds, compressed, tensors)


def measured(args: Any, folder: Path) -> dict[str, list[float]]:
    """The rounds of one job, which records to `folder`."""
    arguments = [*ranks.forwarded(args, "workload", "rounds", "seconds"), "--folder", str(folder)]
    return ranks.measure(__file__, args.np, arguments)


def report(args: Any, rounds: dict[str, list[float]], compressed: int, tensors: int) -> int:
    """Print the findings; 1 if a goal is missed."""
    off, on = (np.array(rounds[name]) for name in ("off", "on"))
    # Of the two turns of a round, so that changes of the machine from round to round cancel.
    ratios = on / off
    ratio = float(np.median(ratios))
    # Of the median of ratios that scatter normally.
    error = float(np.sqrt(np.pi / 2 / len(ratios)) * np.std(ratios))
    own = ", ".join(f"{value:.3f}" for value in ratios)
    each = compressed / max(tensors, 1)
    print(
        f"{args.workload}, np {args.np}: {np.median(off) * 1e3:.3f} ms off, "
        f"{np.median(on) * 1e3:.3f} ms on: {ratio:.3f} +- {error:.3f} (rounds: {own}); "
        f"{each:.1f} bytes a tensor, {tensors} tensors"
    )
    return 0 if ratio <= GOAL_RATIO and each <= GOAL_BYTES else 1


def sizes(folder: Path) -> tuple[int, int]:
    """(bytes of all recordings, compressed; tensors in them)."""
    compressed = tensors = 0
    for path in folder.glob("*.json"):
        data = path.read_bytes()
        compressed += len(gzip.compress(data, 6))
        for event in json.loads(data):
            args = event.get("args", {})
            if event.get("name") == "hvdtune_block" and args["stream"] == "tensors":
                tensors += args["count"]
    return compressed, tensors


def worker(args: Any) -> None:
    """Measure on this rank."""
    import hvdtune.torch as hvd

    hvd.init()
    step = make_step(hvd, args.workload)
    for _ in range(20):
        step()
    rounds: dict[str, list[float]] = {"off": [], "on": []}
    for number in range(args.rounds):
        for mode in ("off", "on") if number % 2 == 0 else ("on", "off"):
            if mode == "on":
                hvd.start_timeline(f"{args.folder}/{number}.json")
            turn(hvd, step, SETTLING)
            rounds[mode].append(turn(hvd, step, args.seconds))
            if mode == "on":
                hvd.stop_timeline()
    ranks.report(args.worker, hvd.rank(), rounds)
    hvd.shutdown()


def turn(hvd: Any, step: Callable[[], None], seconds: float) -> float:
    """Median seconds of a step."""
    import torch

    durations: list[float] = []
    stop = torch.zeros(1)
    hvd.barrier()
    for _ in range(5):
        step()
    begin = time.perf_counter()
    while not stop[0]:
        for _ in range(10):
            before = time.perf_counter()
            step()
            durations.append(time.perf_counter() - before)
        stop[0] = time.perf_counter() - begin > seconds
        hvd.allreduce_(stop, op=hvd.Max, name="stop")
    return float(np.median(durations))


def make_step(hvd: Any, workload: str) -> Callable[[], None]:
    """A training step's communication, and the mark after it."""
    import torch

    from hvdtune.bench.workloads.gradient_sets import WORKLOADS as known

    torch.set_num_threads(1)
    parameters = known[workload].backward_order()
    tensors = [torch.ones(shape) for _, shape in parameters]
    names = [name for name, _ in parameters]

    def step() -> None:
        handles = [
            hvd.allreduce_async_(tensor, name=name, op=hvd.Average)
            for tensor, name in zip(tensors, names, strict=True)
        ]
        # The last one first: waiting for it closes its batch.
        for handle in reversed(handles):
            hvd.synchronize(handle)
        hvd.mark_step()

    return step


if __name__ == "__main__":
    sys.exit(main())
