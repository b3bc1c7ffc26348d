"""Measure how long a training step takes over a grid of settings, with the real engine.

  python benchmarks/autotune/measure_surfaces.py              all missing ones, 20 minutes a round
  python benchmarks/autotune/measure_surfaces.py --only tiny  the surfaces whose name has "tiny"

A surface is one workload on one number of ranks: the gradients of a model (`hvdtune bench` has
them), submitted in the order in which a backward pass finishes them. If `compute` is not 0, every
rank computes that many milliseconds in a step, spread over the tensors by their sizes, before it
submits each: tensors get ready one after another, as they do in training.

A round is one job that changes its settings while it runs and visits every point of the grid once,
in a different order in each round. After every few points it measures the reference (the shipped
defaults) again. It stores the logarithm of the point's time over the reference's around it, so a
machine that gets slower changes nothing. Rounds are appended to the surface's JSON file and are
kept if the program is interrupted: start it again to continue.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ranks

KIB, MIB = 1024, 1024**2
FOLDER = Path(__file__).resolve().parent / "surfaces"
REFERENCE = {
    "fusion_threshold": 128 * MIB,
    "cycle_time": 1.0,
    "chunk_size": 0,
    "one_shot_limit": 0,
}
REFERENCE_EVERY = 6  # points
REFERENCES = 4  # visits of the reference, two before and two after, that a point is compared with
VISIT_S = 0.06  # duration of a visit, which has at least LEAST_STEPS
LEAST_STEPS = 4
FAR_OFF = 4.0  # a point that takes this many times the reference's step is measured once only

Values = dict[str, float]

_LARGE: dict[str, list[float]] = {
    "fusion_threshold": [0, 2 * MIB, 16 * MIB, 128 * MIB],
    "cycle_time": [0.1, 1, 5, 25, 100],
    "chunk_size": [0, 64 * KIB, 256 * KIB, 2 * MIB],
}
_SMALL: dict[str, list[float]] = {
    "fusion_threshold": [0, 256 * KIB, 2 * MIB, 128 * MIB],
    "cycle_time": [0.1, 1, 5, 25, 100],
    "chunk_size": [0, 1 * MIB],
    "one_shot_limit": [0, 1 * KIB, 1 * MIB],
}


@dataclass(frozen=True)
class Surface:
    """A surface to measure: a workload, the ranks, milliseconds of computing a step, the grid."""

    workload: str
    ranks: int
    compute_ms: float
    axes: dict[str, list[float]] = field(hash=False)

    @property
    def name(self) -> str:
        compute = f"-compute{self.compute_ms:g}" if self.compute_ms else ""
        return f"{self.workload}-np{self.ranks}{compute}"

    @property
    def points(self) -> list[Values]:
        """All points of the grid; settings without an axis have the reference's values."""
        return [
            {**REFERENCE, **dict(zip(self.axes, at, strict=True))}
            for at in itertools.product(*self.axes.values())
        ]


SURFACES = (
    Surface("resnet50", 2, 0, _LARGE),
    Surface("resnet50", 4, 0, _LARGE),
    Surface("resnet50", 8, 0, _LARGE),
    Surface("resnet50", 2, 40, _LARGE),
    Surface("inception3", 2, 20, _LARGE),
    Surface("inception3", 4, 20, _LARGE),
    Surface("inception3", 8, 0, _LARGE),
    Surface("bert-base", 2, 0, _LARGE),
    Surface("bert-base", 4, 0, _LARGE),
    Surface("vgg16", 2, 50, _LARGE),
    Surface("tiny", 2, 0, _SMALL),
    Surface("tiny", 4, 0, _SMALL),
    Surface("tiny", 8, 0, _SMALL),
    Surface("tiny", 2, 10, _SMALL),
    Surface("tiny", 4, 5, _SMALL),
)


def main() -> int:
    """Measure what is missing; with `--worker`, be one rank of a round."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--only", default="", help="surfaces whose name contains this")
    made.add_argument("--rounds", type=int, default=5, help="rounds of each (default: 5)")
    made.add_argument("--seconds", type=float, default=math.inf, help="stop after this time")
    made.add_argument("--list", action="store_true", help="show what is stored and end")
    made.add_argument(
        "--points", type=int, default=1000, help="limit of a job, which stores what it has found"
    )
    made.add_argument("--skip", type=int, default=0, help=argparse.SUPPRESS)
    made.add_argument("--round", type=int, default=0, help=argparse.SUPPRESS)
    made.add_argument("--worker", type=Path, default=None, help=argparse.SUPPRESS)
    args = made.parse_args()
    chosen = [surface for surface in SURFACES if args.only in surface.name]
    if args.worker:
        surface = next(one for one in chosen if one.name == args.only)
        order = order_of(surface, args.round)[args.skip : args.skip + args.points]
        worker(surface, order, args.worker)
        return 0
    if not chosen:
        made.error(f"no surface has {args.only!r} in its name")
    FOLDER.mkdir(exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    until = time.monotonic() + args.seconds
    # Round by round over all surfaces: after an interruption all of them are about equally known.
    for number in range(args.rounds):
        for surface in chosen:
            stored = load(surface)
            if args.list and number == 0:
                print(f"{surface.name:<26}{len(surface.points):5d} points, "
                      f"{len(stored['rounds'])} rounds")  # fmt: skip
            while not args.list and len(stored["rounds"]) <= number:
                if time.monotonic() > until:
                    return 0
                measure_part(surface, stored, number, args.points)
    return 0


def measure_part(surface: Surface, stored: dict[str, Any], number: int, points: int) -> None:
    """Measure the next points of a round and store them."""
    began = time.monotonic()
    arguments = ["--only", surface.name, "--round", str(number)]
    arguments += ["--points", str(points), "--skip", str(len(stored["part"]))]
    part = ranks.measure(__file__, surface.ranks, arguments)
    stored["part"] += part["log_ratio"]
    stored["reference_ms"].append(part["reference_ms"])
    order = order_of(surface, number)
    if len(stored["part"]) == len(order):
        logs = dict(zip(order, stored["part"], strict=True))
        stored["rounds"].append([logs[at] for at in range(len(order))])
        stored["part"] = []
    save(surface, stored)
    left = f", {len(stored['part'])} points of it" if stored["part"] else ""
    took = time.monotonic() - began
    print(f"{surface.name}: round {number + 1}{left} in {took:.0f} s", flush=True)


def order_of(surface: Surface, number: int) -> list[int]:
    """The order in which a round visits the points."""
    order = list(range(len(surface.points)))
    random.Random(number).shuffle(order)
    return order


def load(surface: Surface) -> dict[str, Any]:
    """The stored data of a surface; empty if the stored grid differs."""
    empty = {
        "workload": surface.workload,
        "ranks": surface.ranks,
        "compute_ms": surface.compute_ms,
        "axes": surface.axes,
        "reference_ms": [],
        "part": [],
        "rounds": [],
    }
    path = FOLDER / f"{surface.name}.json"
    if not path.exists():
        return empty
    stored: dict[str, Any] = json.loads(path.read_text())
    return {**empty, **stored} if stored["axes"] == surface.axes else empty


def save(surface: Surface, stored: dict[str, Any]) -> None:
    """Write a surface's file; an interruption leaves the old one or the new one."""
    path = FOLDER / f"{surface.name}.json"
    text = json.dumps({key: value for key, value in stored.items() if key != "rounds"})
    rows = ",\n  ".join(json.dumps(row) for row in stored["rounds"])
    made = path.with_suffix(".new")
    made.write_text(f'{text[:-1]},\n "rounds": [\n  {rows}\n ]}}\n')
    made.replace(path)


def worker(surface: Surface, order: list[int], results: Path) -> None:
    """One rank of a job that visits the points of `order`; rank 0 writes what was found."""
    import numpy as np

    import hvdtune as hvd
    from hvdtune.core import tuning

    hvd.init()
    step = make_step(surface, hvd, np)
    visits: list[tuple[int, float]] = []  # index of the point (-1: the reference), ms

    def visit(index: int) -> None:
        values = surface.points[index] if index >= 0 else REFERENCE
        if hvd.rank() == 0:
            tuning.apply(values)
        hvd.barrier()
        estimate = np.array([max(time_of(step), time_of(step))])
        slowest = float(hvd.allreduce(estimate, op=hvd.Max, name="estimate")[0])
        count = max(LEAST_STEPS, math.ceil(VISIT_S / slowest))
        if index >= 0 and slowest > FAR_OFF * usual_s:
            count = 1  # its exact time does not matter
        times = [time_of(step) for _ in range(count)]
        # A disturbance only makes a step longer: the lower quartile is the least disturbed figure
        # that a single lucky step does not decide.
        visits.append((index, 1e3 * float(np.quantile(times, 0.25))))

    usual_s = math.inf
    for _ in range(3):
        visit(-1)
    usual_s = visits[-1][1] / 1e3
    # Ranks that disagree would do different numbers of steps.
    usual_s = float(hvd.allreduce(np.array([usual_s]), op=hvd.Max, name="usual")[0])
    for at, index in enumerate(order):
        if at % REFERENCE_EVERY == 0:
            visit(-1)
        visit(index)
    visit(-1)
    ranks.report(results, hvd.rank(), summary(visits[2:], order))
    hvd.shutdown()


def summary(visits: list[tuple[int, float]], order: list[int]) -> dict[str, Any]:
    """The reference's median time, and the points' log times over the reference's, in order."""
    references = [(at, math.log(ms)) for at, (index, ms) in enumerate(visits) if index < 0]
    logs: dict[int, float] = {}
    for at, (index, ms) in enumerate(visits):
        if index >= 0:
            after = next(i for i, (place, _) in enumerate(references) if place > at)
            first = min(max(0, after - REFERENCES // 2), len(references) - REFERENCES)
            near = [level for _, level in references[first : first + REFERENCES]]
            logs[index] = round(math.log(ms) - ranks.median(near), 4)
    levels = [level for _, level in references]
    return {
        "reference_ms": round(math.exp(ranks.median(levels)), 4),
        "log_ratio": [logs[index] for index in order],
    }


def make_step(surface: Surface, hvd: Any, np: Any) -> Any:
    """A function that does one step of the workload."""
    from hvdtune.bench.workloads.gradient_sets import WORKLOADS

    parameters = WORKLOADS[surface.workload].backward_order()
    sizes = [math.prod(shape) for _, shape in parameters]
    flat = np.zeros(sum(sizes), np.float32)
    tensors, at = [], 0
    for (name, shape), size in zip(parameters, sizes, strict=True):
        tensors.append((name, flat[at : at + size].reshape(shape)))
        at += size
    compute = make_compute(np) if surface.compute_ms else None
    shares = [surface.compute_ms / 1e3 * size / sum(sizes) for size in sizes]

    def step() -> None:
        handles, owed = [], 0.0
        for (name, tensor), share in zip(tensors, shares, strict=True):
            if compute is not None:
                owed += share
                while owed > 0:
                    owed -= compute()
            handles.append(hvd.allreduce_async_(tensor, op=hvd.Sum, name=name))
        for handle in reversed(handles):
            hvd.synchronize(handle)

    return step


def make_compute(np: Any) -> Any:
    """A piece of computing; returns the seconds it takes on a core of its own."""
    ones = np.ones((96, 96), np.float32)

    def multiply() -> None:
        for _ in range(4):
            np.dot(ones, ones)

    # The fastest of many: a rank that shares its core computes as much, and takes longer.
    seconds = min(time_of(multiply) for _ in range(200))

    def compute() -> float:
        multiply()
        return seconds

    return compute


def time_of(call: Any) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
