"""Tuning of real training on this machine: from the defaults, and from two bad starts.

  python benchmarks/autotune/real.py                 all that is missing, to results-real.json, .md
  python benchmarks/autotune/real.py --seconds 170   as much of it as fits; start again to continue
  python benchmarks/autotune/real.py --runs 1        one run of each instead of three
  python benchmarks/autotune/real.py --again --only "tiny np2"
                                                     repeat what was measured with another tuner

All of it takes about two hours on two CPUs that do nothing else. Every training (see TRAININGS)
runs on 2 and 4 ranks:

  tune     RUNS runs from each of the starts until tuning is over, with nothing remembered from
           other runs: the settings that they ended with, and the cost. If tuning takes long, no
           further candidates are measured after 60 % of TUNE_S, so that the comparison can finish
  compare  one run that changes settings while it trains, and measures a few steps with each, in a
           different order every round. First grid points alone, to choose the best: all of them,
           then the better half, and so on (HALVING). Then, in fresh rounds, the chosen one, the
           outcomes and the defaults, until every difference is known to ENOUGH or JUDGE_S is over.
           Rounds that choose do not judge, because the best of many measured points always looks
           better than it is. Only every BAD_EVERY-th round includes bad starts

Figures are medians over rounds. A difference is the mean of the rounds' paired differences, without
the lowest and the highest fifth, with its margin (Yuen's, 95 %, two-sided): other processes of the
machine disturb single rounds, never all. A step takes as long as on the slowest rank.
`idle.py` measures the cost of a finished autotuner.
"""

from __future__ import annotations

import argparse
import hashlib
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ranks

Settings = dict[str, float]
# A difference of log times and its margin; None: too few rounds. Of the same settings: (0, 0).
Difference = tuple[float, float] | None
KIB, MIB = 1024, 1024**2
HERE = Path(__file__).resolve().parent
DEFAULTS: Settings = {
    "fusion_threshold": 128 * MIB, "cycle_time": 1.0, "chunk_size": 0, "one_shot_limit": 0,
}  # fmt: skip
STARTS: dict[str, Settings] = {
    "the defaults": {},
    "threshold 0": {"fusion_threshold": 0},
    "both": {"fusion_threshold": 0, "cycle_time": 100.0},
}
# Few bytes in many tensors: chunks hardly matter, so their axis has few points.
GRID = [
    {**DEFAULTS, "fusion_threshold": threshold, "cycle_time": cycle, "chunk_size": chunk}
    for chunk, cycles in ((0, (0.1, 1.0, 5.0, 25.0)), (256 * KIB, (1.0,)))
    for threshold, cycle in itertools.product((256 * KIB, 2 * MIB, 128 * MIB), cycles)
]
# Name: title for readers.
TRAININGS = {
    "tiny": "1000 gradients of 256 numbers, submitted one by one, without computing",
    "spread": "the same gradients, submitted one by one in 10 ms of computing",
    "resnet50": "ResNet-50's gradients, submitted one by one, without computing",
    "bert-base": "BERT-base's gradients, in the same way",
    "gpt2": "GPT-2 small's gradients, in the same way",
    "mlp": "a perceptron of six layers in PyTorch, 5 M parameters, batch 32 a rank",
    "cnn": "a convolutional network in PyTorch, 0.3 M parameters, batch 32 a rank",
    "embedding": "100 000 words in PyTorch, of which a batch of 512 a rank has sparse gradients",
    "uneven": "100 small layers in PyTorch, another batch of 8 to 64 in every step of every rank",
}
# Trainings of gradients alone: `hvdtune bench`'s workload, and the computing in a step, ms.
GRADIENTS = {
    "tiny": ("tiny", 0.0), "spread": ("tiny", 10.0), "resnet50": ("resnet50", 0.0),
    "bert-base": ("bert-base", 0.0), "gpt2": ("gpt2", 0.0),
}  # fmt: skip
RUNS = 3  # from each start
# Ranks: the longest that each part may take, seconds.
TUNE_S = {2: 150.0, 4: 300.0}
JUDGE_S = {2: 30.0, 4: 40.0}
LONGEST_S = 900.0  # limit of a piece in any case
SEARCH_SHARE = 0.6  # of TUNE_S, then the search must end
# Grid points, and rounds that measure them.
HALVING = ((len(GRID), 3), (8, 3), (4, 6), (2, 8))
ENOUGH = 0.01  # margin of a difference
LEAST_ROUNDS = 20
BAD_EVERY = 5
LEAST_PAIRS = 3  # rounds that have both
VISIT_S = 0.12
VISIT_STEPS = 5
FAR_OFF = 4.0  # a visit of settings this much slower than the defaults is a single step
COLUMNS = (
    "np", "start", "step at the start", "samples", "steps of tuning", "left the start after",
    "search", "tuned", "against the best grid point", "against the start", "goal",
)  # fmt: skip
GOAL = 0.03  # a bad start must end this near to the best grid point
CHECK_EVERY = 10  # steps between looks whether tuning is over
COMPARE = " compare"
AGAIN = "again"  # pieces measured with --again whose comparison is still missing


NOTE = """\
A row has all runs from a start, in order; *tuned* and the columns to its right are those of the run
that ended slowest. *left the start after* is the number of counted steps before the first candidate
was adopted. *search* is how much longer the search's steps were, including all candidates, than
those of the settings in force that took turns with them.

A goal is *shown* if the difference plus its margin is not above it (3 % against the best grid point
from a bad start; 0 against the start from the defaults), *missed* if the difference minus its
margin is above it, and otherwise *open*.
"""


def main() -> int:
    """Measure what is missing; with `--worker`, be one rank."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "--results",
        type=Path,
        default=HERE / "results-real.json",
        help="file with the measurements so far",
    )
    made.add_argument(
        "--seconds", type=float, default=math.inf, help="begin nothing after this time"
    )
    made.add_argument("--runs", type=int, default=RUNS, help=f"from each start (default: {RUNS})")
    made.add_argument("--only", default="", help="pieces whose name contains this")
    made.add_argument("--list", action="store_true", help="show what is missing and end")
    made.add_argument(
        "--again", action="store_true",
        help="repeat measurements made with another tuner (the old figures stay until the "
        "comparison that belongs to them is done)",
    )  # fmt: skip
    made.add_argument("--worker", type=Path, default=None, help=argparse.SUPPRESS)
    made.add_argument("--task", default="{}", help=argparse.SUPPRESS)
    args = made.parse_args()
    if args.worker:
        task = json.loads(args.task)
        {"tune": tune, "compare": compare}[task["part"]](task, args.worker)
        return 0
    chosen = [(name, task) for name, task in pieces(args.runs) if args.only in name]
    if not chosen:
        made.error(
            f"no piece has {args.only!r} in its name; they are called like 'tiny np2 compare'"
        )
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["HVDTUNE_AUTOTUNE_STORE"] = ""
    stored = json.loads(args.results.read_text()) if args.results.exists() else {}
    began, failed, measured = time.monotonic(), [], False
    made_with = fingerprint()
    for name, task in chosen:
        if not is_missing(stored, name, made_with if args.again else None):
            continue
        if args.list:
            print(name)
            continue
        if time.monotonic() - began > args.seconds:
            break
        found = run_piece(task, stored)
        if found is None:
            failed.append(name)  # the others can still be measured
            continue
        keep(stored, name, {**found, "made_with": made_with}, task)
        measured = True
        args.results.write_text(json.dumps(stored, indent=1) + "\n")
        print(f"{name}: {found['seconds']:.0f} s", flush=True)
    if measured:
        args.results.with_suffix(".md").write_text(report(stored))
    if failed:
        print(f"not measured: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def pieces(runs: int = RUNS) -> list[tuple[str, dict[str, Any]]]:
    """All pieces in order, by name: one run of each, then further runs; comparisons last."""
    found = []
    places = list(itertools.product(TUNE_S, TRAININGS))
    for number, (count, training), start in itertools.product(range(1, runs + 1), places, STARTS):
        task = {"part": "tune", "training": training, "np": count, "start": start}
        found.append((tune_name(training, count, start, number), task))
    for count, training in places:
        task = {"part": "compare", "training": training, "np": count}
        found.append((f"{training} np{count} compare", task))
    return found


def tune_name(training: str, count: int, start: str, number: int) -> str:
    """The name of a run in the results."""
    return f"{training} np{count} tune {start} {number}"


def fingerprint() -> str:
    """A digest of the code that tunes."""
    import hvdtune.autotune

    folder = Path(next(iter(hvdtune.autotune.__path__)))
    rooms = ("statistics", "search", "session")
    files = sorted(path for room in rooms for path in (folder / room).glob("*.py"))
    source = b"".join(path.read_bytes() for path in files)
    return hashlib.sha256(source).hexdigest()[:16]


def is_missing(stored: dict[str, Any], name: str, made_with: str | None) -> bool:
    """Whether a piece must be measured; with `made_with`, also if another tuner made it."""
    known = [stored[name]] if name in stored else []
    known += [stored[AGAIN][name]] if name in stored.get(AGAIN, {}) else []
    later = stored.get(AGAIN, {})
    if name.endswith(COMPARE) and any(one.startswith(tune_prefix(name)) for one in later):
        return True
    return not any(made_with in (None, one.get("made_with")) for one in known)


def tune_prefix(compared: str) -> str:
    """The beginning of the names of the runs that a comparison compares."""
    return compared.removesuffix(COMPARE) + " tune "


def keep(stored: dict[str, Any], name: str, found: dict[str, Any], task: dict[str, Any]) -> None:
    """Store a piece that was measured.

    The page shows outcomes together with their comparison. So if there is an older comparison, new
    outcomes are kept beside the old ones, and replace them when the comparison is replaced.
    """
    compared = f"{task['training']} np{task['np']} compare"
    waiting: dict[str, Any] = stored.setdefault(AGAIN, {})
    if name != compared and compared in stored:
        waiting[name] = found
    else:
        stored[name] = found
    if name == compared:
        for one in tune_names(task, {**stored, **waiting}):
            stored[one] = waiting.pop(one, stored.get(one))
    if not waiting:
        del stored[AGAIN]


def tune_names(task: dict[str, Any], stored: dict[str, Any]) -> list[str]:
    """The stored runs of a training on a number of ranks, start by start."""
    names = (
        tune_name(task["training"], task["np"], start, number)
        for start in STARTS
        for number in range(1, len(stored) + 1)
    )
    return [name for name in names if name in stored]


def run_piece(task: dict[str, Any], stored: dict[str, Any]) -> dict[str, Any] | None:
    """Run a piece's job and return the results of its rank 0.

    None if it failed, which is printed, or if something that it needs is missing.
    """
    flags: list[str] = []
    began = time.monotonic()
    if task["part"] == "compare":
        newest = {**stored, **stored.get(AGAIN, {})}
        names = tune_names(task, newest)
        if not names:
            return None
        task["tried"] = all_settings({name: newest[name]["values"] for name in names})
    with tempfile.TemporaryDirectory() as folder:
        results, log = Path(folder, "results.json"), Path(folder, "log.csv")
        task["log"] = str(log)
        if task["part"] == "tune":
            log.touch()  # a reader may look before the writer has written
            flags = ["--autotune", "--autotune-log-file", str(log)]
            start = ",".join(f"{key}={value}" for key, value in STARTS[task["start"]].items())
            flags += ["--autotune-start", start] if start else []
        command = [*ranks.launcher(task["np"]), *flags, sys.executable, __file__]
        command += ["--worker", str(results), "--task", json.dumps(task)]
        try:
            subprocess.run(
                command, check=True, stderr=subprocess.PIPE, text=True, timeout=LONGEST_S
            )
        except subprocess.SubprocessError as error:
            print(f"{error}\n{getattr(error, 'stderr', '')}", file=sys.stderr, flush=True)
            return None
        found: dict[str, Any] = json.loads(results.read_text())
    return {**found, "seconds": round(time.monotonic() - began, 1)}


def all_settings(tuned: dict[str, Settings]) -> dict[str, Settings]:
    """The settings that take turns in a comparison, by name; equal ones may have several names."""
    tried: dict[str, Settings] = {
        f"start: {name}": {**DEFAULTS, **values} for name, values in STARTS.items()
    }
    tried |= {f"tuned: {name}": values for name, values in tuned.items()}
    return tried | {f"grid {at}": values for at, values in enumerate(GRID)}


def as_measured(tried: dict[str, Settings]) -> dict[str, str]:
    """The name under which each of the settings is measured: the first one of equal settings."""
    first: dict[tuple[float, ...], str] = {}
    return {
        name: first.setdefault(tuple(values[key] for key in DEFAULTS), name)
        for name, values in tried.items()
    }


# -- one rank --


def start(task: dict[str, Any]) -> tuple[Any, Callable[[], None]]:
    """Initialise; (hvdtune, a function that does one training step)."""
    if task["training"] in GRADIENTS:
        import measure_surfaces
        import numpy as np

        import hvdtune as plain

        plain.init()
        workload, computing_ms = GRADIENTS[task["training"]]
        surface = measure_surfaces.Surface(workload, task["np"], computing_ms, {})
        return plain, measure_surfaces.make_step(surface, plain, np)
    import torch

    import hvdtune.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if task["training"] == "embedding":
        return hvd, embedding_step(hvd, torch)
    if task["training"] == "uneven":
        return hvd, uneven_step(hvd, torch)
    import training

    data = training.make_data(torch, task["training"], 32, hvd.rank())
    model = training.make_model(torch, task["training"])
    return hvd, training.make_step(hvd, torch, "hvdtune", model, *data)


def embedding_step(hvd: Any, torch: Any) -> Callable[[], None]:
    """Training of a table of words whose gradients are sparse, and of two layers above it."""
    nn = torch.nn
    model = nn.Sequential(
        nn.EmbeddingBag(100_000, 64, mode="sum", sparse=True), nn.Linear(64, 256), nn.ReLU(),
        nn.Linear(256, 10),
    )  # fmt: skip
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters()
    )
    generator = torch.Generator().manual_seed(hvd.rank())
    words = torch.randint(100_000, (32, 16), generator=generator)
    classes = torch.randint(10, (32,), generator=generator)
    loss_of = nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model(words), classes).backward()
        optimizer.step()

    return step


def uneven_step(hvd: Any, torch: Any) -> Callable[[], None]:
    """Training in which step lengths differ from step to step and from rank to rank."""
    import training

    model = training.make_model(torch, "small")
    inputs, classes = training.make_data(torch, "small", 64, hvd.rank())
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters()
    )
    sizes = random.Random(hvd.rank())
    loss_of = torch.nn.CrossEntropyLoss()

    def step() -> None:
        count = sizes.randint(8, 64)
        optimizer.zero_grad()
        loss_of(model(inputs[:count]), classes[:count]).backward()
        optimizer.step()

    return step


def tune(task: dict[str, Any], results: Path) -> None:
    """Train until tuning is over or its time has passed."""
    import samples

    from hvdtune.autotune.report import log, runs

    hvd, step = start(task)
    began = time.monotonic()
    steps = train_until_tuned(step, task["log"], TUNE_S[task["np"]])
    took = time.monotonic() - began
    hvd.shutdown()
    if hvd_is_first():
        rows = log.read(task["log"])
        found = {
            "values": outcome(rows[-1], STARTS[task["start"]]),
            "steps": steps, "tuning_s": round(took, 1),
            "finished": "not finished" not in rows[-1]["decision"],
            "verdict": rows[-1]["decision"],
            "samples": sum(row["phase"] != "final" for row in rows),
            "left_after": samples.left_the_start_after(runs.read(task["log"])[0]),
            "search": samples.cost_of_search(runs.read(task["log"])[0]),
        }  # fmt: skip
        results.write_text(json.dumps(found))


def outcome(last: dict[str, str], start: Settings) -> Settings:
    """The settings that tuning has shown to be best, from the log's last row.

    A run that ended before tuning may have been trying others then: those do not count.
    """
    if last["accepted"] != "1":
        return {**DEFAULTS, **start}
    return {
        "fusion_threshold": round(float(last["tensor_fusion_threshold"]) * MIB),
        "cycle_time": float(last["cycle_time_ms"]),
        "chunk_size": round(float(last["chunk_size_kb"]) * KIB),
        "one_shot_limit": round(float(last["one_shot_limit_kb"]) * KIB),
    }


def hvd_is_first() -> bool:
    """Whether this is rank 0, also after the engine has ended."""
    return os.environ["HOROVOD_RANK"] == "0"


def train_until_tuned(step: Callable[[], None], log: str, longest_s: float) -> int:
    """Train until the log has its last row, or the time is over; the number of steps."""
    import numpy as np

    import hvdtune as plain
    from hvdtune.autotune.session import online

    steps, began, seen = 0, time.monotonic(), 0
    over = np.zeros(1, np.int32)
    while not over[0]:
        step()
        steps += 1
        if steps % CHECK_EVERY == 0:
            if plain.rank() == 0:
                took = time.monotonic() - began
                if took > SEARCH_SHARE * longest_s:
                    online.end_search("the time for the search was over")
                text = Path(log).read_text()
                over[0] = ",final," in text[seen:] or took > longest_s
                seen = max(0, len(text) - 100)
            # Not an allreduce: it is no part of the training.
            over = plain.broadcast(over, root_rank=0, name="over")
    return steps


def compare(task: dict[str, Any], results: Path) -> None:
    """Choose the best grid point, and compare it with the tuner's results."""
    import numpy as np

    import hvdtune as plain
    from hvdtune.core import tuning

    hvd, step = start(task)
    tried: dict[str, Settings] = task["tried"]
    usual_s = math.inf

    def visit(values: Settings) -> float:
        if hvd.rank() == 0:
            tuning.apply(values)
        hvd.barrier()
        slowest = longest(min(timed(step), timed(step)))
        count = max(VISIT_STEPS, math.ceil(VISIT_S / slowest))
        if slowest > FAR_OFF * usual_s:
            count = 1
        times = np.array([timed(step) for _ in range(count)])
        # All ranks know the same times, and so they choose the same points below.
        times = plain.allreduce(times, op=plain.Max, name=f"times {count}")
        return 1e3 * float(np.median(times))

    def measured(names: list[str], number: int) -> dict[str, float]:
        order = list(names)
        random.Random(number).shuffle(order)
        return {name: visit(tried[name]) for name in order}

    for _ in range(3):
        usual_s = visit(DEFAULTS) / 1e3
    known_as = as_measured(tried)
    best, choosing = choose(known_as, measured)
    judged, bad = judges(known_as, best)
    judging: list[dict[str, float]] = []
    began = time.monotonic()
    while True:
        number = len(judging)
        judging.append(measured([*judged, *(bad if number % BAD_EVERY == 0 else [])], number))
        late = longest(time.monotonic() - began) > JUDGE_S[task["np"]]
        if late or (number + 1 >= LEAST_ROUNDS and is_clear(judging, judged, best)):
            break
    found = {"tried": tried, "best": best, "choosing": choosing, "judging": judging}
    ranks.report(results, hvd.rank(), found)
    hvd.shutdown()


Measured = Callable[[list[str], int], dict[str, float]]


def choose(known_as: dict[str, str], measured: Measured) -> tuple[str, list[dict[str, float]]]:
    """The best grid point by halving their number again and again, and the rounds."""
    names = list(dict.fromkeys(at for name, at in known_as.items() if name.startswith("grid")))
    rounds: list[dict[str, float]] = []
    for left, count in HALVING:
        if rounds:
            names = sorted(names, key=lambda name: _median(rounds, name))[:left]
        for _ in range(count):
            rounds.append(measured(names, len(rounds)))
    return min(names, key=lambda name: _median(rounds, name)), rounds


def judges(known_as: dict[str, str], best: str) -> tuple[list[str], list[str]]:
    """The settings in every round that judges, and those in only some of them."""
    outcomes = [at for name, at in known_as.items() if name.startswith("tuned")]
    judged = list(dict.fromkeys([best, known_as["start: the defaults"], *outcomes]))
    starts = [at for name, at in known_as.items() if name.startswith("start") and at not in judged]
    return judged, starts


def is_clear(rounds: list[dict[str, float]], judged: list[str], best: str) -> bool:
    """Whether every difference from the best point is known well enough."""
    found = [difference(rounds, name, best) for name in judged]
    return all(one is not None and one[1] <= ENOUGH for one in found)


def longest(seconds: float) -> float:
    """The largest value of any rank; equal on all of them."""
    import numpy as np

    import hvdtune as plain

    return float(plain.allreduce(np.array([seconds]), op=plain.Max, name="longest")[0])


def timed(call: Callable[[], None]) -> float:
    """Seconds that a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


# -- the report --


def report(stored: dict[str, Any]) -> str:
    """The page."""
    lines = ["# Tuning of real training", "", "Every training runs on 2 and 4 ranks:"]
    explained = (__doc__ or "").split("runs on 2 and 4 ranks:", 1)[1]
    lines += [line.rstrip() for line in explained.splitlines()]
    lines += ["", *NOTE.splitlines(), *_summary(stored)]
    for training, title in TRAININGS.items():
        lines += ["", f"## {title}", ""]
        lines += ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
        for count in TUNE_S:
            lines += _rows(stored, training, count)
        lines += _scatter(stored, training)
    lines += ["", stored["remark"]] if "remark" in stored else []
    return "\n".join(lines) + "\n"


def _rows(stored: dict[str, Any], training: str, count: int) -> list[str]:
    lines = []
    for start_name in STARTS:
        runs = runs_of(stored, training, count, start_name)
        told = _Told.of(stored, training, count, start_name)
        if told is not None:
            begun, tuned = f"{told.begun_ms:.2f} ms", f"{told.tuned_ms:.2f} ms"
            differences = [words(told.against_best), words(told.against_start), told.goal]
        elif runs:
            begun, tuned, differences = "", "", ["not compared", "not compared", ""]
        else:
            continue
        cells = [
            str(count), start_name, begun,
            ", ".join(str(run["samples"]) for run in runs),
            ", ".join(f"{run['steps']}{'' if run['finished'] else ' (not finished)'}"
                      for run in runs),
            ", ".join(str(run["left_after"] or "-") for run in runs),
            ", ".join("-" if run["search"] is None else f"{100 * run['search']:+.1f} %"
                      for run in runs),
            tuned, *differences,
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return lines or [f"| {count} | not measured |" + " |" * (len(COLUMNS) - 2)]


def runs_of(stored: dict[str, Any], training: str, count: int, start: str) -> list[dict[str, Any]]:
    """The runs from a start, in order."""
    begins = tune_name(training, count, start, 0).removesuffix("0")
    names = tune_names({"training": training, "np": count}, stored)
    return [stored[name] for name in names if name.startswith(begins)]


@dataclass(frozen=True)
class _Told:
    """How the slowest run of a training, on a number of ranks and from a start, ended."""

    begun_ms: float
    tuned_ms: float
    against_best: Difference
    against_start: Difference
    goal: str

    @classmethod
    def of(cls, stored: dict[str, Any], training: str, count: int, start: str) -> _Told | None:
        """None: not measured."""
        found = stored.get(f"{training} np{count} compare")
        if found is None:
            return None
        rounds, measured, best = found["judging"], as_measured(found["tried"]), found["best"]
        names = tune_names({"training": training, "np": count}, stored)
        begins = tune_name(training, count, start, 0).removesuffix("0")
        names = [one for one in names if one.startswith(begins) and f"tuned: {one}" in measured]
        if not names:
            return None
        ends = [measured[f"tuned: {name}"] for name in names]
        slowest = max(ends, key=lambda end: (difference(rounds, end, best) or (math.inf,))[0])
        begun = measured[f"start: {start}"]
        against_best = difference(rounds, slowest, best)
        against_start = difference(rounds, slowest, begun)
        goal = judged(against_best, GOAL) if STARTS[start] else judged(against_start, 0.0)
        return cls(
            _median(rounds, begun), _median(rounds, slowest),
            against_best, against_start, goal,
        )  # fmt: skip


def _summary(stored: dict[str, Any]) -> list[str]:
    """All runs together."""
    told = {
        (training, count, start): found
        for training, count, start in itertools.product(TRAININGS, TUNE_S, STARTS)
        if (found := _Told.of(stored, training, count, start)) is not None
    }
    runs = [
        run
        for training, count, start in itertools.product(TRAININGS, TUNE_S, STARTS)
        for run in runs_of(stored, training, count, start)
    ]
    if len(runs) < LEAST_PAIRS:
        return []
    lines = [f"{len(runs)} runs; {sum(not run['finished'] for run in runs)} not finished."]
    for key, title in (("samples", "samples"), ("steps", "steps")):
        of = sorted(run[key] for run in runs)
        high = of[min(len(of) - 1, math.ceil(0.95 * len(of)) - 1)]
        lines.append(f"{title}: {statistics.median(of):g} in the median, {high} at the 95th "
                     "percentile.")  # fmt: skip
    costs = [run["search"] for run in runs if run["search"] is not None]
    if costs:
        lines.append(f"The search's steps: {100 * statistics.median(costs):+.1f} % in the median.")
    slower = sum(
        one.against_start is not None and one.against_start[0] > one.against_start[1]
        for one in told.values()
    )
    lines.append(f"Starts of which a run ended slower beyond the noise: {slower} of {len(told)}.")
    bad = [one.goal for (_, _, start), one in told.items() if STARTS[start]]
    lines.append("Within 3 % of the best grid point from bad starts: " + ", ".join(
        f"{goal} {bad.count(goal)}" for goal in ("shown", "open", "missed")) + ".")  # fmt: skip
    return ["", *(f"- {line}" for line in lines)]


def _scatter(stored: dict[str, Any], training: str) -> list[str]:
    lines = []
    for count in TUNE_S:
        found = stored.get(f"{training} np{count} compare")
        if found is not None:
            logs = [math.log(one[found["best"]]) for one in found["judging"]]
            low, _, high = statistics.quantiles(logs, n=4)
            lines.append(
                f"- np {count}: {len(logs)} rounds. Half of all visits with the same settings "
                f"differ by more than {100 * math.expm1((high - low) / 2):.1f} % from their median."
            )
    return ["", *lines] if lines else []


def _median(rounds: list[dict[str, float]], name: str) -> float:
    return statistics.median(one[name] for one in rounds if name in one)


def difference(rounds: list[dict[str, float]], name: str, other: str) -> Difference:
    """How much longer a step takes, paired round by round."""
    if name == other:
        return 0.0, 0.0
    pairs = [(one[name], one[other]) for one in rounds if name in one and other in one]
    return trimmed([math.log(mine / others) for mine, others in pairs])


def trimmed(values: list[float]) -> Difference:
    """The trimmed mean and its margin."""
    from hvdtune.autotune.statistics import inference

    if len(values) < LEAST_PAIRS:
        return None
    found = inference.trimmed(values)
    return found.value, found.margin(0.975)


def words(found: Difference) -> str:
    """A difference as text."""
    if found is None:
        return "too few rounds"
    mean, margin = found
    return f"{100 * math.expm1(mean):+.1f} ± {100 * margin:.1f} %" if margin else "same settings"


def judged(found: Difference, goal: float) -> str:
    """Whether the difference is at most the goal: shown, missed, or neither."""
    if found is None:
        return "open"
    mean, margin = found
    if mean + margin <= math.log1p(goal):
        return "shown"
    return "missed" if mean - margin > math.log1p(goal) else "open"


if __name__ == "__main__":
    sys.exit(main())
