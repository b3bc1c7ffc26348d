"""The cost of a timeline that is off: nothing measurable.

  python benchmarks/timeline/off.py       about five minutes; results-off.md, .json

Three jobs of one rank take the same steps: one that was never asked to record, one that has
recorded RECORDED steps and stopped, and one that records. A step is TENSORS allreduces that are
waited for together, which use the coordinator, BLOCKING small ones that are waited for one by one,
which bypass it, and the mark at its end. valgrind's callgrind counts the instructions and system
calls of STEPS steps, of all threads. Each job is counted several times, in turns. Time is not
measured: on a busy machine it cannot show so small a difference.

The recorder's instructions are counted separately: those of its functions and, if the module has
line numbers, those of its lines that the compiler has inlined into other functions:

  CXXFLAGS=-g pip install . --config-settings=install.strip=false
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import instructions
from instructions import BLOCKING, STEPS, TENSORS, Counted

HERE = Path(__file__).resolve().parent
WARM_STEPS = 100
RECORDED = 100
REPEATS = 3
KINDS = ("never recorded", "recorded and stopped", "recording")
OFF = KINDS[:2]
#: The code that would not exist if nothing could be recorded.
FUNCTIONS = re.compile(r"hvdtune::(Recorder|RecordingControl|Timeline|capture)::")
FILES = re.compile(r"/native/(engine/record(er|ing)|observe/(capture|trace)/)")
#: A line of a header that was compiled into a function of another file.
INLINED = "its lines in other functions"


def main() -> int:
    """Measure and write the page; with `--worker`, be the rank."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--worker", choices=KINDS, help=argparse.SUPPRESS)
    made.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    made.add_argument("--output", type=Path, default=HERE / "results-off", help="without suffix")
    args = made.parse_args()
    if args.worker:
        worker(args.worker, args.folder)
        return 0
    if instructions.why_not():
        print(f"off.py: {instructions.why_not()}", file=sys.stderr)
        return 1
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for _ in range(REPEATS):
        for kind in KINDS:
            found[kind].append(measure(kind))
            print(f"{kind}: {found[kind][-1]}", flush=True)
        args.output.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
        args.output.with_suffix(".md").write_text(page(found))
    return 0


def measure(kind: str) -> dict[str, Any]:
    """The cost of a step of such a job."""
    with tempfile.TemporaryDirectory() as folder:
        variables = instructions.plain_environment()
        if kind != KINDS[0]:
            variables["HOROVOD_TIMELINE"] = "DYNAMIC"
        command = [sys.executable, __file__, "--worker", kind, "--folder", folder]
        counted = instructions.count(command, variables)
    return {
        "instructions": counted.instructions,
        "system calls": counted.system_calls,
        "line numbers": any(FILES.search(file) for _, file in counted.places),
        "recorder": recorders(counted),
    }


def recorders(counted: Counted) -> dict[str, float]:
    """The recorder's instructions in a step, by function."""
    found: dict[str, float] = {}
    for (function, file), value in counted.places.items():
        own = FUNCTIONS.search(function)
        if own or FILES.search(file):
            name = (
                re.split(r"[(<]", function[own.start() + len("hvdtune::") :])[0] if own else INLINED
            )
            found[name] = found.get(name, 0.0) + value
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def worker(kind: str, folder: Path) -> None:
    """The rank whose steps are counted."""
    import hvdtune as hvd

    hvd.init()
    training = instructions.make_step(hvd)

    def step() -> None:
        training()
        hvd.mark_step()

    for _ in range(WARM_STEPS):
        step()
    if kind in KINDS[1:]:
        hvd.start_timeline(os.fspath(folder / "t.json"))
    for _ in range(RECORDED):
        step()
    if kind == KINDS[1]:
        hvd.stop_timeline()
    for _ in range(WARM_STEPS):
        step()
    instructions.run_counted(step)
    hvd.shutdown()


# -- the page --


def page(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The results as a page."""
    lines = ["# What a timeline costs that is off", ""]
    lines += ["Made by `python benchmarks/timeline/off.py`."]
    lines += ["", *(__doc__ or "").split("results-off.md, .json\n", 1)[1].strip().splitlines()]
    lines += ["", f"## A step of {TENSORS} + {BLOCKING} allreduces, one rank, {STEPS} steps", ""]
    lines += ["| | instructions a step, each time | median | of them the recorder's | "
              "system calls a step |", "|---|---|---|---|---|"]  # fmt: skip
    for kind in KINDS:
        each = ", ".join(f"{value:.0f}" for value in column(found[kind], "instructions"))
        own = statistics.median(sum(one["recorder"].values()) for one in found[kind])
        lines.append(
            f"| {kind} | {each} | {middle(found[kind]):.0f} | {own:.0f} "
            f"({100 * own / middle(found[kind]):.2f} %) | "
            f"{statistics.median(column(found[kind], 'system calls')):.2f} |"
        )
    never, stopped = (middle(found[kind]) for kind in OFF)
    lines += [
        "",
        f"After a recording, a step's instructions change by {100 * (stopped / never - 1):+.2f} %. "
        f"Counts of the same job differ by up to {100 * scatter(found):.2f} %, so a "
        "smaller difference would not be visible.",
        "",
        f"## The recorder's code that runs while it is off ({OFF[0]}), instructions a step",
        "",
        "| function | instructions |",
        "|---|---|",
    ]
    typical = found[OFF[0]][0]
    lines += [f"| {name} | {value:.0f} |" for name, value in typical["recorder"].items()]
    if not typical["line numbers"]:
        lines += ["", "The module has no line numbers: inlined code is not included."]
    return "\n".join([*lines, ""])


def column(found: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """One figure of every count."""
    return [one[name] for one in found]


def middle(found: Sequence[Mapping[str, Any]]) -> float:
    """The median of the instructions of a step."""
    return statistics.median(column(found, "instructions"))


def scatter(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> float:
    """The largest share by which counts of the same job differ."""
    counts = [column(found[kind], "instructions") for kind in OFF]
    return max(max(same) / min(same) - 1 for same in counts)


if __name__ == "__main__":
    sys.exit(main())
