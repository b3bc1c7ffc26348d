"""The cost of an autotuner that has finished: nothing.

  python benchmarks/autotune/idle.py      about five minutes; results-idle.md

Two things are compared: a job whose (short) tuning has ended, and one without an autotuner. Both
use the same settings. A step is TENSORS allreduces that are waited for together, which use the
coordinator, and BLOCKING small ones that are waited for one by one, which bypass it.

  counted   the instructions and system calls of STEPS steps, all threads, as valgrind's callgrind
            counts them. There is one rank, which never waits for another, so chance only decides
            which of its threads runs first. Its tuner is told that there are two ranks, and runs to
            its end
  looked at rank 0 of a job of RANKS ranks: its threads, open files and child processes, and the
            kernel's counts (context switches, time on a CPU) in REST_S seconds of doing nothing

Each is repeated, with and without the tuner in turns. Time is not measured: on a busy machine it
cannot show so small a difference.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import instructions
import ranks
from instructions import BLOCKING, STEPS, TENSORS

HERE = Path(__file__).resolve().parent
RANKS = 2
WARM_STEPS = 200
REST_S = 10.0
REPEATS = 3
SHORT_TUNING = {
    "HOROVOD_AUTOTUNE": "1",
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "0",
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "3",
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "1",
}
KINDS = {True: "finished autotuner", False: "no autotuner"}


def main() -> int:
    """Measure and write the page; with `--worker`, be one rank."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--worker", choices=("counted", "looked-at"), help=argparse.SUPPRESS)
    made.add_argument("--results", type=Path, help=argparse.SUPPRESS)
    made.add_argument("--output", type=Path, default=HERE / "results-idle.md", help="the page")
    args = made.parse_args()
    if args.worker:
        {"counted": counted, "looked-at": looked_at}[args.worker](args.results)
        return 0
    if instructions.why_not():
        print(f"idle.py: {instructions.why_not()}", file=sys.stderr)
        return 1
    found: dict[str, list[Any]] = {
        f"{part} {kind}": [] for part in PARTS for kind in KINDS.values()
    }
    for _ in range(REPEATS):
        for tuned, kind in KINDS.items():
            for part, measure in PARTS.items():
                found[f"{part} {kind}"].append(measure(tuned))
                print(f"{part}, {kind}: {found[f'{part} {kind}'][-1]}", flush=True)
        args.output.write_text(page(found))
    return 0


def environment(tuned: bool, folder: str) -> dict[str, str]:
    """The variables of a job with or without an autotuner."""
    log = {"HOROVOD_AUTOTUNE_LOG": str(Path(folder, "log.csv"))}
    plain = instructions.plain_environment()
    return {**plain, **({**SHORT_TUNING, **log} if tuned else {})}


def count(tuned: bool) -> dict[str, float]:
    """Instructions and system calls of a step."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--worker", "counted", "--results", folder]
        counted = instructions.count(command, environment(tuned, folder))
    return {"instructions": counted.instructions, "system calls": counted.system_calls}


def look(tuned: bool) -> dict[str, Any]:
    """What rank 0 of a job holds, and what it does while it is idle."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.json")
        command = [*ranks.launcher(RANKS), sys.executable, __file__]
        command += ["--worker", "looked-at", "--results", str(results)]
        instructions.run(command, environment(tuned, folder))
        seen: dict[str, Any] = json.loads(results.read_text())
    return seen


PARTS: dict[str, Callable[[bool], dict[str, Any]]] = {"counted": count, "looked at": look}


# -- one rank --


def start() -> tuple[Any, Callable[[], None]]:
    """Initialise, and let the tuning end if there is any; (hvdtune, one step)."""
    import hvdtune as hvd
    from hvdtune.core import tuning

    hvd.init()
    step = instructions.make_step(hvd)
    train_until_tuned(hvd, step)
    if hvd.rank() == 0:
        tuning.apply({"fusion_threshold": 1 << 20, "cycle_time": 1.0, "chunk_size": 0})
    for _ in range(WARM_STEPS):
        step()
    return hvd, step


def train_until_tuned(hvd: Any, step: Callable[[], None]) -> None:
    """Do steps until rank 0's tuner, if there is one, has ended with its last row."""
    log = Path(os.environ.get("HOROVOD_AUTOTUNE_LOG", ""))
    went_on = "HOROVOD_AUTOTUNE" in os.environ
    while went_on:
        for _ in range(10):
            step()
            time.sleep(0.002)
        went_on = hvd.broadcast_object(hvd.rank() == 0 and ",final," not in log.read_text())
    for thread in threading.enumerate():
        if "autotune" in thread.name:
            thread.join()  # it ends after the last row


def counted(_: Path) -> None:
    """The steps that callgrind counts."""
    from hvdtune.autotune.session import online, session

    class ToldOfTwo(session.Session):
        def __init__(self, engine: Any, settings: Any, size: int, *rest: Any, **more: Any) -> None:
            super().__init__(engine, settings, RANKS, *rest, **more)

    online.Session = ToldOfTwo  # type: ignore[misc]
    hvd, step = start()
    instructions.run_counted(step)
    hvd.shutdown()


def looked_at(results: Path) -> None:
    """Write what this process holds, and what it does while it is idle."""
    hvd, _ = start()
    hvd.barrier()
    time.sleep(0.5)
    before = activity()
    time.sleep(REST_S)
    after = activity()
    children = Path("/proc/self/task", str(os.getpid()), "children").read_text().split()
    seen = {
        "threads": sorted(
            name.read_text().strip() for name in Path("/proc/self/task").glob("*/comm")
        ),
        "open files": len(os.listdir("/proc/self/fd")) - 1,  # that of the folder itself
        "child processes": len(children),
        **{name: after[name] - before[name] for name in before},
    }
    ranks.report(results, hvd.rank(), seen)
    hvd.barrier()
    hvd.shutdown()


def activity() -> dict[str, float]:
    """Context switches of this process's threads so far, and their time on a CPU in ms."""
    switches, running_ns = 0, 0
    for task in Path("/proc/self/task").iterdir():
        lines = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
        switches += int(lines["voluntary_ctxt_switches"])
        switches += int(lines["nonvoluntary_ctxt_switches"])
        running_ns += int((task / "schedstat").read_text().split()[0])
    return {"context switches": switches, "CPU ms": running_ns / 1e6}


# -- the page --


def page(found: dict[str, list[Any]]) -> str:
    """The results as a page."""
    lines = [
        "# What a finished autotuner costs",
        "",
        "Made by `python benchmarks/autotune/idle.py`.",
    ]
    lines += ["", *(__doc__ or "").split("five minutes; results-idle.md", 1)[1].splitlines()]
    lines += ["", f"## A step of {TENSORS} + {BLOCKING} allreduces, one rank, {STEPS} steps", ""]
    lines += [
        "| | instructions a step, each time | median | system calls a step |",
        "|---|---|---|---|",
    ]
    for kind in KINDS.values():
        counts = [one["instructions"] for one in found[f"counted {kind}"]]
        calls = statistics.median(one["system calls"] for one in found[f"counted {kind}"])
        each = ", ".join(f"{value:.0f}" for value in counts)
        lines.append(f"| {kind} | {each} | {statistics.median(counts):.0f} | {calls:.2f} |")
    share, spread = f"{100 * difference(found):+.2f} %", f"{100 * scatter(found):.2f} %"
    lines += [
        "",
        f"With the finished autotuner, a step's instructions change by {share}. Counts of the same "
        f"job differ by up to {spread}, so a smaller cost would not be visible.",
    ]
    lines += ["", f"## Rank 0 of {RANKS}, {REST_S:.0f} s of doing nothing", ""]
    names = list(found[f"looked at {KINDS[True]}"][0])
    lines += ["| | " + " | ".join(KINDS.values()) + " |", "|---|---|---|"]
    for name in names:
        cells = [
            _cell([one[name] for one in found[f"looked at {kind}"]]) for kind in KINDS.values()
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def difference(found: dict[str, list[Any]]) -> float:
    """The share by which the instructions of a step differ, of the medians."""
    with_it, without = (
        statistics.median(one["instructions"] for one in found[f"counted {kind}"])
        for kind in KINDS.values()
    )
    return with_it / without - 1


def scatter(found: dict[str, list[Any]]) -> float:
    """The largest share by which counts of the same job differ."""
    counts = [[one["instructions"] for one in found[f"counted {kind}"]] for kind in KINDS.values()]
    return max(max(same) / min(same) - 1 for same in counts)


def _cell(values: list[Any]) -> str:
    """The value if it was the same every time, otherwise all values."""
    words = [
        ", ".join(f"`{name}`" for name in value) if isinstance(value, list)
        else f"{value:.1f}" if isinstance(value, float) else str(value)
        for value in values
    ]  # fmt: skip
    return words[0] if len(set(words)) == 1 else "; ".join(words)


if __name__ == "__main__":
    sys.exit(main())
