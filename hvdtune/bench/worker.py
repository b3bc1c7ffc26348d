"""One rank of the benchmark: `main([PLAN, RESULTS])` in a process of its own.

`runner` starts it through the launcher. Every rank measures; rank 0 writes one JSON object per
line to RESULTS (a named pipe), in this order: `begin`, `memory`, then for each case `phase`
before it and `sweep` or `workload` after it, and `end`. Durations are in seconds.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from hvdtune.bench import memory, pattern
from hvdtune.bench.arrays import Arrays, of_device
from hvdtune.bench.collectives import COLLECTIVES, Collective
from hvdtune.bench.plan import Plan
from hvdtune.bench.sizes import format_size
from hvdtune.bench.timing import Ranks, Timer, time_of
from hvdtune.bench.workloads.gradient_sets import WORKLOADS, Workload

#: Fewest and most timed calls if the time decides: p50 needs a few, p99 some hundreds.
_SWEEP_LIMITS = (3, 1000)
_WORKLOAD_LIMITS = (3, 200)


class Benchmark:
    """Carries out a plan on this rank."""

    def __init__(self, hvd: Any, plan: Plan, results: IO[str] | None, arrays: Arrays) -> None:
        self.hvd = hvd
        self.arrays = arrays
        self.plan = plan
        self.results = results
        self.ranks = Ranks(hvd)
        self.timer = Timer(self.ranks, plan)

    def report(self, kind: str, **fields: Any) -> None:
        """Send one record to the parent (rank 0 only)."""
        if self.results is not None:
            self.results.write(json.dumps({"kind": kind, **fields}) + "\n")
            self.results.flush()

    def run(self) -> None:
        """Measure the memory, the sweep and the gradient sets."""
        self.report("begin", settings=_settings_in_force(), ranks=self.hvd.size())
        if self.plan.memory_sizes:
            self.report("phase", text="memory of this machine")
            curve = memory.measure(
                self.hvd.rank(),
                self.plan.memory_workers,
                self.plan.memory_sizes,
                self.hvd.barrier,
                self.ranks.slowest,
            )
            self.report("memory", **asdict(curve))
        for size in self.plan.sizes:
            self.sweep_size(size)
        if self.plan.workloads:
            self.gradient_sets()
        self.report("end")

    def sweep_size(self, size: int) -> None:
        """Measure one size, out of place and, if there is such a form, in place."""
        plan = self.plan
        case = COLLECTIVES[plan.operation](self.hvd, self.arrays, plan.dtype, size, plan.check)
        forms = {"out_of_place": self.measure_form(case, in_place=False)}
        if case.has_in_place:
            forms["in_place"] = self.measure_form(case, in_place=True)
        self.report(
            "sweep",
            operation=self.plan.operation,
            size_bytes=case.size_bytes,
            count=case.count,
            dtype=self.plan.dtype,
            redop=case.redop,
            root=case.root,
            forms=forms,
        )

    def measure_form(self, case: Collective, in_place: bool) -> dict[str, Any]:
        """Check one call, then time many; returns the summary and the wrong elements."""
        place = "in place" if in_place else "out of place"
        text = f"{self.plan.operation} of {format_size(case.size_bytes)}, {place}"
        self.report("phase", text=text)
        wrong = first = None

        def call() -> None:
            case.run(in_place)
            self.arrays.finish()

        if self.plan.check:
            case.fill()
            first = time_of(call)
            wrong = self.ranks.total(case.count_wrong())
        summary = self.timer.measure(call, first, self.plan.sweep_budget, _SWEEP_LIMITS)
        return {"time": asdict(summary), "wrong": wrong}

    def gradient_sets(self) -> None:
        """Measure every gradient set of the plan, all in one flat array of float32."""
        chosen = [WORKLOADS[key] for key in self.plan.workloads]
        flat = self.arrays.ones(max(workload.elements() for workload in chosen), "float32")
        for workload in chosen:
            self.gradient_set(workload, flat[: workload.elements()])

    def gradient_set(self, workload: Workload, flat: Any) -> None:
        """One set: every tensor submitted in backward order, then all waited for = one step."""
        hvd = self.arrays.hvd
        self.report("phase", text=f"gradients of {workload.title}")
        tensors = []
        offset = 0
        for name, shape in workload.backward_order():
            elements = math.prod(shape)
            view = flat[offset : offset + elements].reshape(shape)
            tensors.append((f"bench.{workload.key}.{name}", view))
            offset += elements

        def step() -> None:
            handles = [
                hvd.allreduce_async_(tensor, op=hvd.Sum, name=name) for name, tensor in tensors
            ]
            # The last first, so that there is one wake-up per step, not one per tensor.
            for handle in reversed(handles):
                hvd.synchronize(handle)
            self.arrays.finish()

        wrong = first = None
        if self.plan.check:
            self.arrays.fill(flat, pattern.tile(hvd.rank(), hvd.size(), "float32"))
            first = time_of(step)
            expected = pattern.tile_sum(hvd.size(), "float32")
            wrong = self.ranks.total(self.arrays.count_wrong(flat, expected))
        summary = self.timer.measure(step, first, self.plan.workload_budget, _WORKLOAD_LIMITS)
        self.report(
            "workload",
            key=workload.key,
            title=workload.title,
            tensors=len(tensors),
            elements=workload.elements(),
            size_bytes=4 * workload.elements(),
            dtype="float32",
            step={"time": asdict(summary), "wrong": wrong},
        )


def _settings_in_force() -> dict[str, Any]:
    from hvdtune.core import tuning

    return dict(tuning.current())


def main(arguments: Sequence[str]) -> int:
    """Run this rank of the plan; the exit status of the process."""
    import hvdtune as hvd
    from hvdtune.core.exceptions import HorovodInternalError

    plan_path, results_path = (Path(argument) for argument in arguments)
    try:
        hvd.init()
    except ValueError as error:
        return _fail(error)
    results = results_path.open("w", encoding="utf-8") if hvd.rank() == 0 else None
    try:
        plan = Plan.load(plan_path)
        arrays = of_device(plan.device, hvd.local_rank())
        Benchmark(hvd, plan, results, arrays).run()
    except HorovodInternalError as error:
        return _fail(error)
    finally:
        if results is not None:
            results.close()
    hvd.shutdown()
    return 0


def _fail(error: Exception) -> int:
    print(error, file=sys.stderr)
    return 1
