"""Real jobs with something wrong in them: does the verdict name it, and is its gain right?

    python benchmarks/timeline/planted.py [--np 2] [--rounds 3] [--only NAME] [--busy] [--json FILE]

Each case is a job with a fault and the same job without it. Both run without recording, in turns,
for what curing the fault really gives, until that is known well: its standard error is a twentieth
of it, or there were four times as many rounds as asked for. The faulty one also runs recorded, in
the first rounds, and the verdict on these recordings is held against it.

Compute is sleeping, in few long pieces: it needs hardly any CPU, so that ranks and engine do not
compete for CPUs, and what is planted is all that is wrong. With --busy compute is so much
arithmetic: then they do compete where ranks and batches want more CPUs than are there, and
overlapping gives little or nothing; nor may it be expected to. Tensors are reduced in place:
results take new memory, which costs time, too. Every rank is pinned to a CPU (several to one, where
there are more ranks), so that runs can be compared. Also checked: that the parts of the waterfall
sum to the step time that the program measured itself.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ranks

MIB = 1 << 20
WARM_UP = 5
WORTH = 0.02
#: Rounds go on until the standard error of the true gain is this share of it …
WELL_KNOWN = 0.05
#: … or there were so many times as many as asked for.
MOST = 4


@dataclass(frozen=True)
class Work:
    """A training job in numbers. Seconds, bytes."""

    steps: int = 100
    layers: int = 5
    per_layer: int = 4  # tensors
    size: int = MIB
    huge: int = 0  # size of one more tensor
    huge_first: bool = False
    forward: float = 0.010
    layer: float = 0.004  # backward pass of one layer
    update: float = 0.001
    overlap: bool = True
    one_by_one: bool = False  # wait for every tensor at once
    late_rank: int = -1
    late: float = 0.0
    late_from: int = 0
    late_to: int = 1 << 30
    rate: float = 0.0  # of arithmetic, a second of computing; 0: sleep instead
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    kind: str
    bad: Work
    good: Work


def cases(size: int = 2, rate: float = 0.0) -> dict[str, Case]:
    """On `size` ranks. What is planted costs a good deal of the step, on fast machines too: small
    gains drown in what runs differ by. Large tensors are shorter where there are more ranks, which
    copy more and have less of a CPU each, so that communication takes about the same share of a
    step and computing can hide it: one that fills the memory's bandwidth for most of the step takes
    much longer in one run than in the next."""
    plain = Work(rate=rate)
    heavy = replace(plain, size=32 * MIB // size**2)
    cache = {"HOROVOD_CACHE_CAPACITY": "4096"}  # else that would be wrong, too
    # So many that starting an operation for each is more than computing can hide.
    small = replace(
        plain, layers=10, per_layer=300, size=1 << 10, environment=cache,
        forward=0.002, layer=0.0002,
    )  # fmt: skip
    huge = replace(plain, huge=192 * MIB // size)
    late = replace(plain, late_rank=1, late=0.030)
    threshold = {"HOROVOD_FUSION_THRESHOLD": "0"}
    cycle = {"HOROVOD_CYCLE_TIME": "50"}
    return {
        "late rank": Case("persistent straggler", late, plain),
        "late in steps 40-60": Case(
            "transient straggler", replace(late, late_from=40, late_to=60), plain
        ),
        "threshold 0": Case(
            "fusion threshold too small", replace(small, environment=cache | threshold), small
        ),
        "cycle time 50 ms": Case("cycle time too long", replace(heavy, environment=cycle), heavy),
        "huge tensor last": Case("huge tensor last", huge, replace(huge, huge_first=True)),
        "no overlap": Case("no overlap", replace(heavy, overlap=False), heavy),
        "one by one": Case("no overlap", replace(heavy, one_by_one=True), heavy),
        "stalled rank": Case(
            "stalled rank",
            replace(plain, late_rank=1, late=2.0, late_from=50, late_to=50),
            plain,
        ),
    }


# ---- on every rank -------------------------------------------------------------------------------


def work(plan: Work, result: Path) -> None:
    import torch

    import hvdtune.torch as hvd

    torch.set_num_threads(1)

    # Each rank's threads on one CPU: where all sleep, the scheduler may put several ranks' threads
    # on one CPU and leave the others idle, now and then and for seconds.
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[int(os.environ["HOROVOD_LOCAL_RANK"]) % len(cpus)]})
    hvd.init()

    def make(size: int) -> Any:
        return torch.zeros(size // 4)

    tensors = [[make(plan.size) for _ in range(plan.per_layer)] for _ in range(plan.layers)]
    huge = make(plan.huge) if plan.huge else None
    times = []
    for step in range(1, plan.steps + 1):
        begin = time.monotonic()
        train(hvd, plan, step, tensors, huge)
        if hasattr(hvd, "mark_step"):
            hvd.mark_step()
        times.append(time.monotonic() - begin)
    if hvd.rank() == 0:
        result.write_text(json.dumps(times))
    hvd.shutdown()


def compute(plan: Work, seconds: float) -> None:
    """What takes so long where nothing else runs."""
    if not plan.rate:
        time.sleep(seconds)
        return
    arithmetic(round(seconds * plan.rate))


def arithmetic(times: int) -> None:
    """Work that fits into a CPU's own cache."""
    import numpy as np

    block = np.ones((64, 64), np.float32)
    for _ in range(times):
        block = np.minimum(block @ block, 1.0)


def arithmetic_rate() -> float:
    """Calls of arithmetic(1) that a CPU does in a second."""
    arithmetic(2000)
    begin, times = time.monotonic(), 20_000
    arithmetic(times)
    return times / (time.monotonic() - begin)


def train(hvd: Any, plan: Work, step: int, tensors: list[list[Any]], huge: Any) -> None:
    """One step."""
    compute(plan, plan.forward)
    if hvd.rank() == plan.late_rank and plan.late_from <= step <= plan.late_to:
        compute(plan, plan.late)
    handles = []

    def submit(name: str, tensor: Any) -> None:
        if plan.one_by_one:
            hvd.allreduce_(tensor, name=name)
        else:
            handles.append(hvd.allreduce_async_(tensor, name=name))

    if huge is not None and plan.huge_first:
        compute(plan, plan.layer)
        submit("huge", huge)
    for number, layer in enumerate(tensors):
        compute(plan, plan.layer)
        if plan.overlap:
            for index, tensor in enumerate(layer):
                submit(f"layer{number}.{index}", tensor)
    if not plan.overlap:
        for number, layer in enumerate(tensors):
            for index, tensor in enumerate(layer):
                submit(f"layer{number}.{index}", tensor)
    if huge is not None and not plan.huge_first:
        compute(plan, plan.layer)
        submit("huge", huge)
    for handle in handles:
        hvd.synchronize(handle)
    compute(plan, plan.update)


# ---- the comparison ------------------------------------------------------------------------------


def run(plan: Work, size: int, timeline: Path | None = None) -> list[float]:
    """Step times of rank 0 of one job."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "times.json")
        command = [*ranks.launcher(size), sys.executable, __file__]
        command += ["--work", json.dumps(asdict(plan)), "--result", str(result)]
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"} | plan.environment
        if timeline is not None:
            environment |= {"HOROVOD_TIMELINE": str(timeline)}
        subprocess.run(command, env=environment, check=True, timeout=120)
        times: list[float] = json.loads(result.read_text())
        return times[WARM_UP:]


def gain(bad: list[float], good: list[float]) -> tuple[float, float]:
    """What the good job saves of the bad one's time, and the standard error of that."""
    each = [1 - g / b for b, g in zip(bad, good, strict=True)]
    error = statistics.stdev(each) / len(each) ** 0.5 if len(each) > 1 else float("inf")
    return statistics.fmean(each), error


def known(bad: list[float], good: list[float], rounds: int) -> bool:
    """There were rounds enough."""
    if len(bad) < rounds:
        return False
    true, error = gain(bad, good)
    return error <= WELL_KNOWN * max(true, WORTH) or len(bad) >= MOST * rounds


def judge(
    name: str, case: Case, size: int, rounds: int, keep: Path | None = None
) -> dict[str, Any]:
    """What the verdict says (medians over `rounds` recordings), and what is true (means)."""
    bad: list[float] = []
    good: list[float] = []
    told = []
    with tempfile.TemporaryDirectory() as folder:
        while not known(bad, good, rounds):
            number = len(bad)
            for times, plan in ((bad, case.bad), (good, case.good))[:: -1 if number % 2 else 1]:
                times.append(statistics.fmean(run(plan, size)))
            if number < rounds:
                path = Path(keep or folder, f"{name.replace(' ', '-')}.np{size}.{number}.json")
                told.append(verdict(case, path, statistics.fmean(run(case.bad, size, path))))
    true, error = gain(bad, good)
    expected = statistics.median(one["expected_gain"] for one in told)
    firsts = [one["first"] for one in told]
    nothing = max(true, expected) < WORTH  # nothing to gain, and nothing promised
    return {
        "case": name,
        "np": size,
        "bad_ms": [1e3 * time for time in bad],
        "good_ms": [1e3 * time for time in good],
        "true_gain": true,
        "true_gain_error": error,
        "expected_gain": expected,
        "ratio": expected / true if true else float("nan"),
        "first": max(firsts, key=firsts.count),
        "right": nothing or all(first == case.kind for first in firsts),
        "expected_right": nothing or abs(expected - true) <= 0.2 * true,
        "parts_over_step": statistics.median(one["parts_over_step"] for one in told),
        "told": told,
    }


def verdict(case: Case, path: Path, measured: float) -> dict[str, Any]:
    """On one recording, whose steps took so long by the program's own clock."""
    from hvdtune.timeline.advice.verdict import findings
    from hvdtune.timeline.load import read_recording
    from hvdtune.timeline.report_data import PARTS, analyse

    analysis = analyse(read_recording(path))
    table = analysis.waterfall
    own = table[(table["rank"] == 0) & (table["step"] > WARM_UP)]
    found = findings(analysis)
    return {
        "first": found[0].kind,
        "expected_gain": next((one.gain for one in found if one.kind == case.kind), 0.0),
        "findings": [(one.kind, round(one.gain, 4)) for one in found],
        "sentence": found[0].sentence,
        "action": found[0].action,
        "evidence": found[0].evidence,
        "parts_over_step": float(own[list(PARTS)].sum(axis=1).mean() / measured),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--np", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="cases whose name contains this")
    parser.add_argument("--busy", action="store_true", help="compute instead of sleeping")
    parser.add_argument("--json", type=Path, help="append each case's results to this file")
    parser.add_argument("--keep", type=Path, help="keep the recordings in this folder")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(Work(**json.loads(args.work)), args.result)
        return
    print(
        f"{'case':22} {'bad':>8} {'good':>8} {'true':>14} {'rounds':>6} "
        f"{'expected':>8} {'ratio':>5}  verdict"
    )
    wrong = 0
    rate = arithmetic_rate() if args.busy else 0.0
    for name, case in cases(args.np, rate).items():
        if args.only and args.only not in name:
            continue
        row = judge(name, case, args.np, args.rounds, args.keep)
        wrong += not (row["right"] and row["expected_right"])
        print(
            f"{name:22} {statistics.fmean(row['bad_ms']):5.1f} ms "
            f"{statistics.fmean(row['good_ms']):5.1f} ms {row['true_gain']:6.1%} "
            f"± {row['true_gain_error']:5.1%} {len(row['bad_ms']):6} "
            f"{row['expected_gain']:8.1%} {row['ratio']:5.2f}  {row['first']} "
            f"(parts / step {row['parts_over_step']:.3f})",
            flush=True,
        )
        if args.json:
            with args.json.open("a") as file:
                file.write(json.dumps(row) + "\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
