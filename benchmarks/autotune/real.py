"""Tuning of real training on this machine: from the defaults, and from three bad starts.

  python benchmarks/autotune/real.py                 what is missing; results-real.json, .md
  python benchmarks/autotune/real.py --seconds 170   as much of it as fits; start again to go on

Every training (see TRAININGS) runs on 2, 4 and 8 ranks:

  tune     a run from each of the starts until tuning is over, with nothing remembered from others;
           what it ended with, and what that took
  compare  one run that takes turns with all these outcomes, the starts, and a grid of settings,
           which are changed while it runs. Every round visits all of them, in another order each
           time. The best grid point is chosen by the even rounds and judged by the odd ones: of
           many that were measured the best always looks better than it is
  idle     one process that starts the engine again and again, by turns with HOROVOD_AUTOTUNE, whose
           (short) tuning it lets end, and without; then both run the same steps with the same
           settings. What is reported is the paired difference

Figures are medians over rounds; differences are means over rounds with their margin (Student's t,
95 %, two-sided). A step takes as long as on the slowest rank.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ranks

KIB, MIB = 1024, 1024**2
HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results-real.json"
DEFAULTS = {
    "fusion_threshold": 128 * MIB, "cycle_time": 1.0, "chunk_size": 0, "one_shot_limit": 0,
}  # fmt: skip
STARTS: dict[str, dict[str, float]] = {
    "the defaults": {},
    "threshold 0": {"fusion_threshold": 0},
    "cycle 100 ms": {"cycle_time": 100.0},
    "both": {"fusion_threshold": 0, "cycle_time": 100.0},
}
GRID = [
    {**DEFAULTS, "fusion_threshold": threshold, "cycle_time": cycle, "chunk_size": chunk}
    for threshold, cycle, chunk in itertools.product(
        (2 * MIB, 16 * MIB, 128 * MIB), (0.1, 1.0, 5.0), (0, 256 * KIB, 2 * MIB)
    )
]
# Name: (what a person calls it, how its step is made).
TRAININGS = {
    "mlp": "MLP in PyTorch, 5.3 M parameters, batch 32 a rank",
    "small": "100 small layers in PyTorch, 1.6 M parameters in 200 tensors, batch 32 a rank",
    "tiny": "gradients of hvdtune bench's tiny model, submitted one by one in 10 ms of computing",
}
RANKS = (2, 4, 8)
ROUNDS = 12
VISIT_S = 0.12
VISIT_STEPS = 5
FAR_OFF = 4.0  # a visit of settings this much slower than the defaults is a single step
IDLE_PAIRS = 12
IDLE_S = 1.0
LONGEST_S = 130.0  # of a tuning run; a piece has to fit into three minutes
SHORT_TUNING = {
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "0",
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "3",
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "1",
}
CHECK_EVERY = 10  # steps between looks whether tuning is over


NOTE = """\
Read these figures with their margins: the machine had two CPUs and other work, and a step of the
same settings took up to 1.5 times as long from one visit to the next. A row whose margin is above
3 % neither shows that a goal is met nor that it is missed.
"""


def main() -> int:
    """Measure what is missing; with `--worker`, be one rank."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--seconds", type=float, default=math.inf, help="begin nothing after so long")
    made.add_argument("--only", default="", help="pieces whose name contains this")
    made.add_argument("--list", action="store_true", help="show what is missing and end")
    made.add_argument("--worker", type=Path, default=None, help=argparse.SUPPRESS)
    made.add_argument("--task", default="{}", help=argparse.SUPPRESS)
    args = made.parse_args()
    if args.worker:
        task = json.loads(args.task)
        {"tune": tune, "compare": compare, "idle": idle}[task["part"]](task, args.worker)
        return 0
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["HVDTUNE_AUTOTUNE_STORE"] = ""
    stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    began = time.monotonic()
    for name, task in pieces():
        if name in stored or args.only not in name:
            continue
        if args.list:
            print(name)
            continue
        if time.monotonic() - began > args.seconds:
            break
        found = run_piece(task, stored)
        if found is None:
            continue  # what it compares is not there
        stored[name] = found
        RESULTS.write_text(json.dumps(stored, indent=1) + "\n")
        print(f"{name}: {found['seconds']:.0f} s", flush=True)
    if not args.list:
        (HERE / "results-real.md").write_text(report(stored))
    return 0


def pieces() -> list[tuple[str, dict[str, Any]]]:
    """All pieces in order, by name."""
    found = []
    for count, training in itertools.product(RANKS, TRAININGS):
        where = {"training": training, "np": count}
        for start in STARTS:
            found.append((f"{training} np{count} tune {start}", {**where, "start": start}))
        found.append((f"{training} np{count} compare", {**where, "part": "compare"}))
        found.append((f"{training} np{count} idle", {**where, "part": "idle"}))
    return [(name, {"part": "tune", **task}) for name, task in found]


def run_piece(task: dict[str, Any], stored: dict[str, Any]) -> dict[str, Any] | None:
    """Run a piece's job and return what its rank 0 found; None if something it needs is missing."""
    flags: list[str] = []
    began = time.monotonic()
    if task["part"] == "compare":
        names = [f"{task['training']} np{task['np']} tune {start}" for start in STARTS]
        if any(name not in stored for name in names):
            return None
        task["tuned"] = {start: stored[name]["values"]
                         for start, name in zip(STARTS, names, strict=True)}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        results, log = Path(folder, "results.json"), Path(folder, "log.csv")
        task["log"] = str(log)
        if task["part"] == "tune":
            flags = ["--autotune", "--autotune-log-file", str(log)]
            start = ",".join(f"{key}={value}" for key, value in STARTS[task["start"]].items())
            flags += ["--autotune-start", start] if start else []
        command = [*ranks.launcher(task["np"]), *flags, sys.executable, __file__]
        command += ["--worker", str(results), "--task", json.dumps(task)]
        ended = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
        if ended.returncode != 0:
            sys.exit(f"{command}: exit status {ended.returncode}\n{ended.stderr}")
        found: dict[str, Any] = json.loads(results.read_text())
    return {**found, "seconds": round(time.monotonic() - began, 1)}


# -- one rank --


def start(task: dict[str, Any]) -> tuple[Any, Callable[[], None]]:
    """Initialise; (hvdtune, a function that does one training step)."""
    if task["training"] == "tiny":
        import measure_surfaces
        import numpy as np

        import hvdtune as plain

        plain.init()
        surface = measure_surfaces.Surface("tiny", task["np"], 10.0, {})
        return plain, measure_surfaces.make_step(surface, plain, np)
    import torch
    import training

    import hvdtune.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = training.make_data(torch, task["training"], 32, hvd.rank())
    model = training.make_model(torch, task["training"])
    return hvd, training.make_step(hvd, torch, "hvdtune", model, *data)


def tune(task: dict[str, Any], results: Path) -> None:
    """Train until tuning is over, or LONGEST_S have passed."""
    from hvdtune.autotune import log

    hvd, step = start(task)
    began = time.monotonic()
    steps = train_until_tuned(step, task["log"], LONGEST_S)
    took = time.monotonic() - began
    if hvd.rank() == 0:
        from hvdtune.core import tuning

        in_force = dict(tuning.current())
    hvd.shutdown()
    if hvd_is_first(task):
        last = log.read(task["log"])[-1]
        found = {
            "values": in_force, "steps": steps, "tuning_s": round(took, 1),
            "finished": "not finished" not in last["decision"], "verdict": last["decision"],
            "candidates": sum(row["phase"] == "search" and row["decision"] != "incumbent"
                              for row in log.read(task["log"])),
        }  # fmt: skip
        results.write_text(json.dumps(found))


def hvd_is_first(task: dict[str, Any]) -> bool:
    """Whether this is rank 0, also when the engine has ended."""
    return os.environ["HOROVOD_RANK"] == "0"


def train_until_tuned(step: Callable[[], None], log: str, longest_s: float) -> int:
    """Train until the log has its last row; the number of steps."""
    import numpy as np

    import hvdtune as plain

    steps, began, seen = 0, time.monotonic(), 0
    over = np.zeros(1, np.int32)
    while not over[0]:
        step()
        steps += 1
        if steps % CHECK_EVERY == 0:
            if plain.rank() == 0:
                text = Path(log).read_text()
                over[0] = ",final," in text[seen:] or time.monotonic() - began > longest_s
                seen = max(0, len(text) - 100)
            # Not an allreduce: it is no part of the training.
            over = plain.broadcast(over, root_rank=0, name="over")
    return steps


def compare(task: dict[str, Any], results: Path) -> None:
    """Take turns with all settings."""
    import numpy as np

    import hvdtune as plain
    from hvdtune.core import tuning

    hvd, step = start(task)
    tried: dict[str, dict[str, float]] = {
        f"start: {name}": {**DEFAULTS, **values} for name, values in STARTS.items()
    }
    tried |= {f"tuned: {name}": values for name, values in task["tuned"].items()}
    tried |= {f"grid {at}": values for at, values in enumerate(GRID)}
    usual_s = math.inf

    def visit(values: dict[str, float]) -> float:
        if hvd.rank() == 0:
            tuning.apply(values)
        hvd.barrier()
        first = [timed(step), timed(step)]
        slowest = float(plain.allreduce(np.array([min(first)]), op=plain.Max, name="estimate")[0])
        count = max(VISIT_STEPS, math.ceil(VISIT_S / slowest))
        if slowest > FAR_OFF * usual_s:
            count = 1
        times = np.array([timed(step) for _ in range(count)])
        times = plain.allreduce(times, op=plain.Max, name=f"times {count}")
        return 1e3 * float(np.median(times))

    for _ in range(3):
        usual_s = visit(DEFAULTS) / 1e3
    began = time.monotonic()
    rounds: list[dict[str, float]] = []
    while len(rounds) < ROUNDS:
        order = list(tried)
        random.Random(len(rounds)).shuffle(order)
        rounds.append({name: visit(tried[name]) for name in order})
        left = np.array([time.monotonic() - began])
        if float(plain.allreduce(left, op=plain.Max, name="left")[0]) > LONGEST_S:
            break
    ranks.report(results, hvd.rank(), {"tried": tried, "rounds": rounds})
    hvd.shutdown()


def idle(task: dict[str, Any], results: Path) -> None:
    """Take turns with and without an autotuner that has finished."""
    import numpy as np

    from hvdtune.core import tuning

    times: dict[bool, list[float]] = {False: [], True: []}
    began = time.monotonic()
    for pair in range(IDLE_PAIRS):
        for tuned in (bool(pair % 2), not pair % 2):
            os.environ.pop("HOROVOD_AUTOTUNE", None)
            if tuned:
                log = f"{task['log']}.{pair}"
                os.environ.update(SHORT_TUNING, HOROVOD_AUTOTUNE="1", HOROVOD_AUTOTUNE_LOG=log)
            hvd, step = start(task)
            if tuned:
                train_until_tuned(step, log, LONGEST_S)
            else:
                for _ in range(100):
                    step()
            if hvd.rank() == 0:
                tuning.apply(DEFAULTS)
            hvd.barrier()
            times[tuned].append(turn(step, IDLE_S, np))
            rank = hvd.rank()
            hvd.shutdown()
        if pair >= 3 and time.monotonic() - began > LONGEST_S:
            break
    ranks.report(results, rank, {"with": times[True], "without": times[False]})


def turn(step: Callable[[], None], seconds: float, np: Any) -> float:
    """The median step of a turn that lasts so long, ms."""
    import hvdtune as plain

    first = np.array([min(timed(step) for _ in range(5))])
    count = math.ceil(seconds / float(plain.allreduce(first, op=plain.Max, name="first")[0]))
    times = np.array([timed(step) for _ in range(count)])
    return 1e3 * float(np.median(times))


def timed(call: Callable[[], None]) -> float:
    """Seconds that a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


# -- the report --


def report(stored: dict[str, Any]) -> str:
    """The table."""
    lines = ["# Tuning of real training", ""]
    lines += [line.rstrip() for line in (__doc__ or "").split("Every training", 1)[1].splitlines()]
    lines[2] = "Every training" + lines[2]
    lines += ["", *NOTE.splitlines()]
    for training, title in TRAININGS.items():
        lines += ["", f"## {title}", ""]
        lines += ["| np | start | step at the start | steps of tuning | tuned | against the best "
                  "grid point | against the start |", "|---|---|---|---|---|---|---|"]  # fmt: skip
        for count in RANKS:
            lines += _rows(stored, training, count)
        lines += _idle_rows(stored, training)
    return "\n".join(lines) + "\n"


def _rows(stored: dict[str, Any], training: str, count: int) -> list[str]:
    found = stored.get(f"{training} np{count} compare")
    if found is None:
        return [f"| {count} | not measured | | | | | |"]
    rounds = found["rounds"]
    grid = [name for name in found["tried"] if name.startswith("grid")]
    best = min(grid, key=lambda name: _median(rounds[::2], name))
    lines = []
    for start_name in STARTS:
        begun, tuned = f"start: {start_name}", f"tuned: {start_name}"
        run = stored[f"{training} np{count} tune {start_name}"]
        steps = f"{run['steps']}" + ("" if run["finished"] else ", not finished")
        against_start = difference(rounds, tuned, begun)
        if found["tried"][tuned] == found["tried"][begun]:
            against_start = "same settings"
        lines.append(
            f"| {count} | {start_name} | {_median(rounds, begun):.2f} ms | {steps} | "
            f"{_median(rounds, tuned):.2f} ms | {difference(rounds[1::2], tuned, best)} | "
            f"{against_start} |"
        )
    return lines


def _idle_rows(stored: dict[str, Any], training: str) -> list[str]:
    lines = []
    for count in RANKS:
        found = stored.get(f"{training} np{count} idle")
        if found is not None:
            pairs = zip(found["with"], found["without"], strict=True)
            logs = [math.log(with_it / without) for with_it, without in pairs]
            words = _words(logs)
            lines.append(f"- np {count}: a finished autotuner costs {words} in {len(logs)} pairs.")
    return ["", *lines] if lines else []


def _median(rounds: list[dict[str, float]], name: str) -> float:
    return statistics.median(one[name] for one in rounds)


def difference(rounds: list[dict[str, float]], name: str, other: str) -> str:
    """How much longer a step takes, paired round by round, in words."""
    return _words([math.log(one[name] / one[other]) for one in rounds])


def _words(logs: list[float]) -> str:
    from hvdtune.autotune.inference import student_quantile

    if len(logs) < 3:
        return "too few rounds"
    mean = statistics.fmean(logs)
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    margin = student_quantile(0.975, len(logs) - 1) * error
    return f"{100 * math.expm1(mean):+.1f} ± {100 * margin:.1f} %"


if __name__ == "__main__":
    sys.exit(main())
