"""Do the parts of the waterfall sum to the step time that the program measured itself?

    python benchmarks/timeline/waterfall.py [--np 2] [--steps 60] [--only NAME]

Records six kinds of job. Every rank times its own steps with its own clock, from the end of one
step to the end of the next; the recording gives the parts of the same steps. Prints the mean of the
parts' sum divided by the mean step (of the worst rank), the worst single step of all ranks, and the
parts of the step. Goal: means within 2 %.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import ranks
from planted.networks import MIB
from planted.work import Work, train

WARM_UP = 5
GOAL = 0.02
Step = Callable[[int], None]


# ---- on every rank -------------------------------------------------------------------------------


def sleeping(plan: Work) -> Callable[[Any], Step]:
    """A job in numbers (planted/work.py)."""

    def prepared(hvd: Any) -> Step:
        import torch

        import hvdtune.torch as hvd_torch

        layers = [
            [torch.ones(plan.size // 4) for _ in range(plan.per_layer)] for _ in range(plan.layers)
        ]

        def step(number: int) -> None:
            train(hvd_torch, plan, number, layers, None)
            hvd.mark_step()

        return step

    return prepared


def torch_optimizer(hvd: Any) -> Step:
    """An MLP under DistributedOptimizer, whose step() marks the steps."""
    import torch

    import hvdtune.torch as hvd_torch

    torch.set_num_threads(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(),
        torch.nn.Linear(512, 10),
    )  # fmt: skip
    optimizer = hvd_torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.01), named_parameters=model.named_parameters()
    )
    hvd_torch.broadcast_parameters(model.state_dict(), root_rank=0)
    inputs, targets = torch.randn(128, 256), torch.randint(0, 10, (128,))

    def step(_number: int) -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def all_kinds(hvd: Any) -> Step:
    """Every kind of operation, one of them in a process set."""
    some = hvd.add_process_set(list(range(max(1, hvd.size() - 1))))
    ones = np.ones((1 << 16, 4), np.float32)

    def step(_number: int) -> None:
        time.sleep(0.002)
        reduced = hvd.allreduce_async(ones, name="r")
        hvd.allgather(ones[: 1 << 12], name="g")
        hvd.broadcast(ones, 0, name="b")
        time.sleep(0.001)
        hvd.reducescatter(ones, name="s")
        hvd.alltoall(ones, name="a")
        if some.included():
            hvd.allreduce(ones, name="some", process_set=some)
        hvd.synchronize(reduced)
        hvd.barrier()
        hvd.mark_step()

    return step


_PLAIN = Work()
WORKLOADS: dict[str, tuple[Callable[[Any], Step], dict[str, str]]] = {
    "overlapped": (sleeping(_PLAIN), {}),
    "not overlapped": (sleeping(replace(_PLAIN, overlap=False, size=2 * MIB)), {}),
    "small, not fused": (
        sleeping(replace(_PLAIN, layers=10, layer=0.001, per_layer=40, size=4096)),
        {"HOROVOD_FUSION_THRESHOLD": "0"},
    ),
    "late rank": (sleeping(replace(_PLAIN, late_rank=1, late=0.010)), {}),
    "PyTorch optimizer": (torch_optimizer, {"OMP_NUM_THREADS": "1"}),
    "all kinds": (all_kinds, {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}),
}


def work(name: str, steps: int, results: Path) -> None:
    """Be a rank: write how long each step took."""
    import hvdtune as hvd

    hvd.init()
    step = WORKLOADS[name][0](hvd)
    times = []
    before = time.monotonic()
    for number in range(1, steps + 1):
        step(number)
        now = time.monotonic()
        times.append(now - before)
        before = now
    (results / f"{hvd.rank()}.json").write_text(json.dumps(times))
    hvd.shutdown()


# ---- the comparison ------------------------------------------------------------------------------


def judge(name: str, size: int, steps: int) -> dict[str, Any]:
    """Run the job, and compare."""
    from hvdtune.timeline.analysis.analyse import analyse
    from hvdtune.timeline.analysis.answers import PARTS
    from hvdtune.timeline.record.load import read_recording

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.json")
        environment = {**os.environ, **WORKLOADS[name][1], "HOROVOD_TIMELINE": str(path)}
        command = [*ranks.launcher(size), sys.executable, __file__]
        command += ["--work", name, "--steps", str(steps), "--results", folder]
        subprocess.run(command, env=environment, check=True, timeout=100)
        table = analyse(read_recording(path)).waterfall
        measured = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(size)]
    parts = list(PARTS)
    means, worst = [], 0.0
    for rank in range(size):
        own = table[(table["rank"] == rank) & (table["step"] > WARM_UP)]
        sums = own[parts].sum(axis=1).to_numpy()
        times = np.array(measured[rank])[own["step"].to_numpy() - 1]
        means.append(sums.mean() / times.mean() - 1)
        worst = max(worst, float(np.abs(sums / times - 1).max()))
    shares = table.loc[table["step"] > WARM_UP, parts].sum() / table.loc[
        table["step"] > WARM_UP, "step_s"
    ].sum()  # fmt: skip
    return {
        "steps": int(table["step"].nunique()),
        "step_ms": 1e3 * float(np.mean([times[WARM_UP:] for times in measured])),
        "mean": max(means, key=abs),
        "worst": worst,
        "shares": {part.removesuffix("_s"): share for part, share in shares.items()},
    }


def main() -> int:
    """All of them; 1 if one misses the goal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--np", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--only", help="workloads whose name contains this")
    parser.add_argument("--work", choices=WORKLOADS, help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.work, args.steps, args.results)
        return 0
    chosen = [name for name in WORKLOADS if not args.only or args.only in name]
    if not chosen:
        parser.error(f"no workload has {args.only!r} in its name: there are {', '.join(WORKLOADS)}")
    missed = 0
    print(
        f"{'workload':18} {'steps':>5} {'step':>9} {'parts / step':>12} {'worst step':>10}  parts"
    )
    for name in chosen:
        row = judge(name, args.np, args.steps)
        missed += not abs(row["mean"]) <= GOAL
        shares = sorted(row["shares"].items(), key=lambda one: -one[1])
        told = ", ".join(f"{part} {share:.0%}" for part, share in shares if share >= 0.01)
        print(
            f"{name:18} {row['steps']:5} {row['step_ms']:6.2f} ms {1 + row['mean']:12.4f} "
            f"{row['worst']:10.2%}  {told}",
            flush=True,
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
