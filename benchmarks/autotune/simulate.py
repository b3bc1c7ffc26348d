"""How good the tuners are, on measured response surfaces with noise, drift and outliers.

  python benchmarks/autotune/simulate.py            about an hour on one core; results.md, .json
  python benchmarks/autotune/simulate.py --quick    a few runs of each, about a minute

Every method tunes every surface (surfaces/) at every level of noise, with `--seeds` seeds each
(scikit-optimize and Horovod's procedure, which take seconds a run, with `--peer-seeds`), beginning
with the shipped defaults. hvdtune's tuner is run from bad settings, too. Time is simulated; the
whole is reproducible. What is counted of a run:

  worse     it ends more than 0.5 % slower than it began
  regret    how much slower it ends than the best grid point within the tuner's ranges
  slowdown  how much longer the steps of the search took than with the settings it began with
  steps     training steps until it is over
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import methods
import numpy as np
from job import Job
from surfaces import DEFAULTS, Surface, load_all
from threadpoolctl import ThreadpoolController

_THREADS = ThreadpoolController()
HERE = Path(__file__).resolve().parent
NOISES = (0.01, 0.02, 0.04, 0.08)
WORSE = 0.005
SLOW_METHODS = ("scikit-optimize", "Horovod")
STARTS: dict[str, dict[str, float]] = {
    "the defaults": DEFAULTS,
    "no fusion": {**DEFAULTS, "fusion_threshold": 0},
    "cycle 100 ms": {**DEFAULTS, "cycle_time": 100.0},
    "both": {**DEFAULTS, "fusion_threshold": 0, "cycle_time": 100.0},
}
GOALS = (
    "goals: worse 0 % at up to 4 % noise, 1 % at 8 %; regret: median 1 %, 95th percentile 3 %; "
    "slowdown 1.5 %; 1500 steps"
)


@dataclass(frozen=True)
class Run:
    """One run and how it ended (see the module); shares, not per cent."""

    method: str
    surface: str
    start: str
    noise: float
    seed: int
    change: float
    regret: float
    slowdown: float
    steps: int
    verdict: str


def main() -> int:
    """Simulate, print the tables and write them."""
    args = parse()
    surfaces = load_all(args.only)
    runs: list[Run] = []
    for method in args.methods:
        for start in STARTS:
            if start != "the defaults" and method != "hvdtune":
                continue
            began = time.process_time()
            few = method in SLOW_METHODS or start != "the defaults"
            seeds = range(args.peer_seeds if few else args.seeds)
            found = [
                run(method, surface, start, noise, seed)
                for surface, noise, seed in itertools.product(surfaces, args.noise, seeds)
            ]
            runs += found
            seconds = (time.process_time() - began) / len(found)
            print(f"{method} from {start}: {len(found)} runs of {seconds:.2f} s", file=sys.stderr)
    text = page(runs, surfaces, args.noise)
    print(text)
    if not args.quick:
        args.output.with_suffix(".md").write_text(text)
        args.output.with_suffix(".json").write_text(json.dumps(summary(runs), indent=1) + "\n")
    if args.runs:
        args.runs.write_text("".join(json.dumps(asdict(one)) + "\n" for one in runs))
    return 0


def parse() -> argparse.Namespace:
    """The command line."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--quick", action="store_true", help="a few runs; nothing is written")
    made.add_argument("--seeds", type=int, default=50)
    made.add_argument("--peer-seeds", type=int, default=10, help="where a run takes long")
    made.add_argument("--only", default="", help="surfaces whose name contains this")
    made.add_argument("--noise", type=float, nargs="+", default=NOISES, help="of a step's log time")
    made.add_argument(
        "--methods", nargs="+", choices=list(methods.METHODS), default=list(methods.METHODS)
    )
    made.add_argument("--output", type=Path, default=HERE / "results", help="without suffix")
    made.add_argument("--runs", type=Path, default=None, help="write every run to this file")
    args = made.parse_args()
    if args.quick:
        args.seeds, args.peer_seeds, args.noise = 2, 1, (0.02, 0.08)
    return args


def run(method: str, surface: Surface, start: str, noise: float, seed: int) -> Run:
    """Let a method tune a job."""
    settings = STARTS[start]
    job = Job(surface, settings, noise, seed)
    with _THREADS.limit(limits=1):  # the matrices are small
        result = methods.METHODS[method](job, dict(settings), seed)
    final = surface(result.values)
    return Run(
        method,
        surface.name,
        start,
        noise,
        seed,
        change=math.expm1(final - surface(settings)),
        regret=math.expm1(final - surface.best()),
        slowdown=job.slowdown,
        steps=job.steps,
        verdict=result.verdict,
    )


def page(runs: Sequence[Run], surfaces: Sequence[Surface], noises: Sequence[float]) -> str:
    """The results as a page of tables."""
    lines = ["# Simulated tuning", "", "Made by `python benchmarks/autotune/simulate.py`.", ""]
    lines.append(
        f"{len(surfaces)} surfaces; {GOALS}. The median and the 95th percentile are over all "
        "surfaces and seeds; the slowdown and the steps are means, steps also the most."
    )
    lines += ["", "## From the shipped defaults", ""]
    ordinary = [one for one in runs if one.start == "the defaults"]
    named = sorted({one.method for one in runs}, key=list(methods.METHODS).index)
    lines += _table(
        ("method", "noise"),
        [
            ((method, f"{noise:.0%}"), _of(ordinary, method=method, noise=noise))
            for method in named
            for noise in noises
        ],
    )
    ours = [one for one in runs if one.method == "hvdtune"]
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
        lines += ["", "## hvdtune from the defaults, by surface", ""]
        lines += _table(
            ("surface", "could be gained"),
            [
                (
                    (surface.name, f"{-math.expm1(surface.best() - surface(DEFAULTS)):.1%}"),
                    _of(ours, start="the defaults", surface=surface.name),
                )
                for surface in surfaces
            ],
        )
    return "\n".join([*lines, ""])


def _of(runs: Iterable[Run], **wanted: Any) -> list[Run]:
    return [one for one in runs if all(getattr(one, key) == at for key, at in wanted.items())]


def _table(heads: Sequence[str], rows: Sequence[tuple[Sequence[str], list[Run]]]) -> list[str]:
    columns = [*heads, "runs", "worse", "regret, median", "95th", "slowdown", "steps", "most"]
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
            f"{figures['steps_most']:.0f}",
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
        "steps": float(np.mean(over(lambda one: one.steps))),
        "steps_most": float(np.max(over(lambda one: one.steps))),
    }


def summary(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The figures of every method, start, surface and level of noise."""
    keys = list(dict.fromkeys((one.method, one.start, one.surface, one.noise) for one in runs))
    rows = []
    for method, start, surface, noise in keys:
        group = _of(runs, method=method, start=start, surface=surface, noise=noise)
        figures = {key: round(value, 5) for key, value in figures_of(group).items()}
        rows.append(
            {"method": method, "start": start, "surface": surface, "noise": noise, **figures}
        )
    return rows


if __name__ == "__main__":
    sys.exit(main())
