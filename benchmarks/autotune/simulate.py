"""Compares the tuners on measured response surfaces with noise, drift and outliers.

  python benchmarks/autotune/simulate.py            about two hours on one core; results.md
  python benchmarks/autotune/simulate.py --quick    a few runs of each, about a minute
  python benchmarks/autotune/simulate.py --jobs 2 --runs runs.jsonl --seconds 200
                                                    in parts: the same command continues

Every method tunes every surface (surfaces/) at every level of noise, with `--seeds` seeds each. It
begins with the shipped defaults, while the machine drifts and single steps take long (`job`), or
with the step times of real jobs instead of these disturbances (wanders/, made by wander.py). Our
tuner also runs from bad settings, and with fewer disturbances (with `--few-seeds` each). The tuner
was developed on seeds below 1000; the seeds here begin at 1000 (`--first-seed`). Time is simulated;
results are reproducible, in any number of processes. The figures of a run:

  worse     it ends more than 0.5 % slower than it began
  regret    how much slower it ends than the best grid point within the tuner's ranges
  slowdown  how much longer the steps of the search took than with the settings that it began with
  steps     training steps until it is over
  samples   hvdtune's: rows of its log, warm-up included

`--json FILE` also writes the figures of every surface. `--remark` is printed at the head of the
page.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import itertools
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Any

import horovod_procedure
import job
import methods
import numpy as np
from surfaces import DEFAULTS, Surface, load_all
from threadpoolctl import ThreadpoolController

from hvdtune.autotune.search import model, observations, optimiser, space, tuner
from hvdtune.autotune.statistics import comparison, harm, inference, score

_THREADS = ThreadpoolController()
HERE = Path(__file__).resolve().parent
NOISES = (0.01, 0.02, 0.04, 0.08)
WORSE = 0.005
FIRST_SEED = 1000
CHUNK = 4  # runs a process takes at a time
STARTS: dict[str, dict[str, float]] = {
    "the defaults": DEFAULTS,
    "no fusion": {**DEFAULTS, "fusion_threshold": 0},
    "cycle 100 ms": {**DEFAULTS, "cycle_time": 100.0},
    "both": {**DEFAULTS, "fusion_threshold": 0, "cycle_time": 100.0},
}
BAD_STARTS = tuple(STARTS)[1:]
WANDERED_STARTS = ("the defaults", "both")
# The disturbances of a job besides noise: drift of its log time, share of long steps.
USUAL = "drift and outliers"
DISTURBANCES: dict[str, tuple[float, float]] = {
    USUAL: (job.DRIFT, job.OUTLIERS),
    "drift": (job.DRIFT, 0.0),
    "outliers": (0.0, job.OUTLIERS),
    "neither": (0.0, 0.0),
}
# Or the step times of real jobs, by name.
WANDERS = job.Wander.load_all()
GOALS = (
    "goals: worse 0 % at up to 4 % noise, 1 % at 8 %; regret: median 1 %, 95th percentile 3 %; "
    "slowdown 1.5 %; 1500 steps and 25 samples in the median, 2000 and 35 at the 95th percentile"
)


@dataclass(frozen=True)
class Run:
    """One run and how it ended (see the module); shares, not per cent."""

    method: str
    surface: str
    start: str
    disturbed: str
    noise: float
    seed: int
    change: float
    regret: float
    slowdown: float
    steps: int
    verdict: str
    samples: int = 0


@dataclass(frozen=True)
class Task:
    """A run that is still to do; `Run` has the same fields and the results."""

    method: str
    surface: str
    start: str
    disturbed: str
    noise: float
    seed: int


def main() -> int:
    """Simulate, print the tables and write them."""
    args = parse()
    try:
        surfaces = load_all(args.only)
    except ValueError as error:
        sys.exit(f"simulate.py: {error}")
    tasks = tasks_of(args, surfaces)
    done = Done(args.runs, {surface.name: fingerprint(surface) for surface in surfaces})
    missing = [task for task in tasks if task not in done.runs]
    simulate(missing, surfaces, args.jobs, args.seconds, done)
    runs = [done.runs[task] for task in tasks if task in done.runs]
    if len(runs) < len(tasks):
        again = "the same command goes on" if args.runs else "give --runs FILE to go on later"
        print(f"{len(runs)} of {len(tasks)} runs are done; {again}", file=sys.stderr)
        return 3
    text = page(runs, surfaces, args.noise, args.remark)
    print(text)
    if not args.quick:
        args.output.write_text(text)
    if args.json:
        args.json.write_text(json.dumps(summary(runs), indent=1) + "\n")
    return 0


def parse() -> argparse.Namespace:
    """The command line."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--quick", action="store_true", help="a few runs; nothing is written")
    made.add_argument("--seeds", type=int, default=50)
    made.add_argument("--few-seeds", type=int, default=10, help="of bad starts and disturbances")
    made.add_argument("--first-seed", type=int, default=FIRST_SEED)
    made.add_argument("--only", default="", help="surfaces whose name contains this")
    made.add_argument("--noise", type=float, nargs="+", default=NOISES, help="of a step's log time")
    made.add_argument(
        "--methods", nargs="+", choices=list(methods.METHODS), default=list(methods.METHODS)
    )
    made.add_argument("--output", type=Path, default=HERE / "results.md", help="the page")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    made.add_argument("--remark", default="", help="for the head of the page")
    made.add_argument("--jobs", type=int, default=1, help="processes, at low priority")
    made.add_argument("--seconds", type=float, default=math.inf, help="stop after this time")
    made.add_argument("--runs", type=Path, help="keep every run in this file, and continue from it")
    args = made.parse_args()
    if args.quick:
        args.seeds, args.few_seeds, args.noise = 2, 1, (0.02, 0.08)
    return args


def tasks_of(args: argparse.Namespace, surfaces: Sequence[Surface]) -> list[Task]:
    """All runs; everything with the first seed comes first."""
    tasks = []
    for method, start, disturbed in itertools.product(args.methods, STARTS, DISTURBANCES):
        is_usual = (start, disturbed) == (next(iter(STARTS)), USUAL)
        if not is_usual and (method != "hvdtune" or (start in BAD_STARTS and disturbed != USUAL)):
            continue
        count = args.seeds if is_usual else args.few_seeds
        seeds = range(args.first_seed, args.first_seed + count)
        tasks += [
            Task(method, surface.name, start, disturbed, noise, seed)
            for seed, surface, noise in itertools.product(seeds, surfaces, args.noise)
        ]
    seeds = range(args.first_seed, args.first_seed + args.few_seeds)
    tasks += [
        Task(method, surface.name, start, wander, 0.0, seed)
        for method, start, wander in itertools.product(args.methods, WANDERED_STARTS, WANDERS)
        for seed, surface in itertools.product(seeds, surfaces)
        if method == "hvdtune" or start == WANDERED_STARTS[0]
    ]
    return sorted(tasks, key=lambda task: task.seed)


class Done:
    """The runs done so far, kept in a file of JSON lines if there is one.

    `made_with` holds the fingerprint of every surface. Runs in the file that were made with other
    surfaces or with another tuner are left out.
    """

    def __init__(self, path: Path | None, made_with: Mapping[str, str]) -> None:
        self.runs: dict[Task, Run] = {}
        self._path = path
        self._made_with = made_with
        for line in path.read_text().splitlines() if path and path.exists() else []:
            row = json.loads(line)
            if row.pop("made_with") == made_with.get(row["surface"]):
                self._take(Run(**row))

    def add(self, one: Run) -> None:
        """Store a run that is over."""
        self._take(one)
        if self._path is not None:
            row = {**asdict(one), "made_with": self._made_with[one.surface]}
            with self._path.open("a") as file:
                file.write(json.dumps(row) + "\n")

    def _take(self, one: Run) -> None:
        self.runs[Task(*(getattr(one, field.name) for field in fields(Task)))] = one


def fingerprint(surface: Surface) -> str:
    """A digest of a surface and of the code that tunes it."""
    digest = hashlib.sha256(surface.log_ratio.tobytes())
    parts = (comparison, harm, inference, model, optimiser, observations, score, space, tuner)
    parts += (horovod_procedure, job, methods)
    for module in parts:
        digest.update(inspect.getsource(module).encode())
    return digest.hexdigest()[:16]


def simulate(
    tasks: Sequence[Task], surfaces: Sequence[Surface], jobs: int, seconds: float, done: Done
) -> None:
    """Do the runs in several processes until all are done or the time is over."""
    by_name = {surface.name: surface for surface in surfaces}
    began = time.monotonic()
    with multiprocessing.get_context("fork").Pool(jobs, _low_priority, (by_name,)) as pool:
        for number, one in enumerate(pool.imap_unordered(_do, tasks, CHUNK), 1):
            done.add(one)
            if sys.stderr.isatty() or number % 200 == 0 or number == len(tasks):
                took = time.monotonic() - began
                end = "\n" if number == len(tasks) or not sys.stderr.isatty() else "\r"
                print(f"{number} of {len(tasks)} runs, {took:.0f} s, {one.method} ", end=end,
                      file=sys.stderr, flush=True)  # fmt: skip
            if time.monotonic() - began > seconds:
                return  # leaving the pool ends its processes


_SURFACES: dict[str, Surface] = {}


def _low_priority(surfaces: Mapping[str, Surface]) -> None:
    os.nice(19)
    _SURFACES.update(surfaces)


def _do(task: Task) -> Run:
    return run(task, _SURFACES[task.surface])


def run(task: Task, surface: Surface) -> Run:
    """Let a method tune a job."""
    settings = STARTS[task.start]
    training = job.Job(
        surface, settings, task.noise, task.seed, *DISTURBANCES.get(task.disturbed, ()),
        step_bytes=surface.step_bytes, wander=WANDERS.get(task.disturbed),
    )  # fmt: skip
    with _THREADS.limit(limits=1):  # the matrices are small
        result = methods.METHODS[task.method](training, dict(settings), task.seed)
    final = surface(result.values)
    return Run(
        *astuple(task),
        change=math.expm1(final - surface(settings)),
        regret=math.expm1(final - surface.best()),
        slowdown=training.slowdown,
        steps=training.steps,
        verdict=result.verdict,
        samples=result.samples,
    )


def page(
    runs: Sequence[Run], surfaces: Sequence[Surface], noises: Sequence[float], remark: str = ""
) -> str:
    """The results as a page of tables, below the remark if there is one."""
    lines = ["# Simulated tuning", "", "Made by `python benchmarks/autotune/simulate.py`.", ""]
    lines += [remark, ""] if remark else []
    lines.append(
        f"{len(surfaces)} surfaces, seeds from {min(one.seed for one in runs)}; {GOALS}. The "
        "medians and the 95th percentiles are over all surfaces and seeds; the slowdown is a mean. "
        "Bad starts and other disturbances have fewer seeds: "
        "see the runs."
    )
    lines += ["", "## From the shipped defaults", ""]
    ordinary = [one for one in runs if (one.start, one.disturbed) == ("the defaults", USUAL)]
    named = sorted({one.method for one in runs}, key=list(methods.METHODS).index)
    lines += _table(
        ("method", "noise"),
        [
            ((method, f"{noise:.0%}"), _of(ordinary, method=method, noise=noise))
            for method in named
            for noise in noises
        ],
    )
    wandered = [one for one in runs if one.disturbed in WANDERS]
    if wandered:
        lines += ["", "## With the step times of real jobs instead of noise", ""]
        lines += _table(
            ("method", "start", "step times of"),
            [
                (
                    (method, start, wander),
                    _of(wandered, method=method, start=start, disturbed=wander),
                )
                for method in named
                for start in WANDERED_STARTS
                for wander in WANDERS
            ],
        )
    ours = [one for one in runs if one.method == "hvdtune" and one.disturbed not in WANDERS]
    if ours:
        lines += ["", "## hvdtune from bad starts", ""]
        starts = [start for start in STARTS if start != "the defaults"]
        lines += _table(
            ("start", "noise"),
            [
                ((start, f"{noise:.0%}"), _of(ours, start=start, noise=noise))
                for start in starts
                for noise in noises
            ],
        )
        lines += ["", "## hvdtune from the defaults, by what disturbs the job", ""]
        lines += _table(
            ("disturbed by", "noise"),
            [
                (
                    (disturbed, f"{noise:.0%}"),
                    _of(ours, start="the defaults", disturbed=disturbed, noise=noise),
                )
                for disturbed in DISTURBANCES
                for noise in noises
            ],
        )
        lines += ["", "## hvdtune from the defaults, by surface", ""]
        lines += _table(
            ("surface", "could be gained"),
            [
                (
                    (surface.name, f"{-math.expm1(surface.best() - surface(DEFAULTS)):.1%}"),
                    _of(ordinary, method="hvdtune", surface=surface.name),
                )
                for surface in surfaces
            ],
        )
    return "\n".join([*lines, ""])


def _of(runs: Iterable[Run], **wanted: Any) -> list[Run]:
    return [one for one in runs if all(getattr(one, key) == at for key, at in wanted.items())]


def _table(heads: Sequence[str], rows: Sequence[tuple[Sequence[str], list[Run]]]) -> list[str]:
    columns = [*heads, "runs", "worse", "regret, median", "95th", "slowdown", "steps", "95th"]
    columns += ["samples", "95th"]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for labels, runs in rows:
        if not runs:
            continue
        figures = figures_of(runs)
        cells = [
            *labels,
            str(len(runs)),
            f"{figures['worse']:.1%}",
            f"{figures['regret_median']:.2%}",
            f"{figures['regret_95']:.2%}",
            f"{figures['slowdown']:.2%}",
            f"{figures['steps']:.0f}",
            f"{figures['steps_95']:.0f}",
            f"{figures['samples']:.0f}" if figures["samples"] else "",
            f"{figures['samples_95']:.0f}" if figures["samples"] else "",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def figures_of(runs: Sequence[Run]) -> dict[str, float]:
    """The figures of some runs together."""

    def over(value: Callable[[Run], float]) -> Any:
        return np.array([value(one) for one in runs])

    regret = over(lambda one: one.regret)
    return {
        "runs": len(runs),
        "worse": float(np.mean(over(lambda one: one.change) > WORSE)),
        "regret_median": float(np.median(regret)),
        "regret_95": float(np.quantile(regret, 0.95)),
        "slowdown": float(np.mean(over(lambda one: one.slowdown))),
        "steps": float(np.median(over(lambda one: one.steps))),
        "steps_95": float(np.quantile(over(lambda one: one.steps), 0.95)),
        "samples": float(np.median(over(lambda one: one.samples))),
        "samples_95": float(np.quantile(over(lambda one: one.samples), 0.95)),
    }


def summary(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The figures of every method, start, surface and level of noise."""
    names = [field.name for field in fields(Task) if field.name != "seed"]
    keys = dict.fromkeys(tuple(getattr(one, name) for name in names) for one in runs)
    rows = []
    for key in keys:
        labels = dict(zip(names, key, strict=True))
        figures = {name: round(value, 5) for name, value in figures_of(_of(runs, **labels)).items()}
        rows.append({**labels, **figures})
    return rows


if __name__ == "__main__":
    sys.exit(main())
