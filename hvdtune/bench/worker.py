"""One rank of the benchmark: `main([PLAN, RESULTS])` in a process of its own.

Started by `runner` through the launcher. Every rank measures; rank 0 writes one JSON object a
line to RESULTS (a named pipe), in this order: `begin`, `memory`, then for each case `phase`
before it and `sweep` or `workload` after it, and `end`. Durations are in seconds.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from hvdtune.bench import memory, metrics, pattern
from hvdtune.bench.collectives import COLLECTIVES, Collective
from hvdtune.bench.metrics import Summary
from hvdtune.bench.plan import Plan
from hvdtune.bench.workloads import WORKLOADS, Workload

#: Iterations when the time budget decides: at least enough for a median, at most enough for a p99.
_SWEEP_ITERATIONS = (5, 1000)
_WORKLOAD_ITERATIONS = (3, 100)
_WARMUP_ITERATIONS = (1, 10)

#: The part of a budget spent on warming up before the timed iterations.
_WARMUP_SHARE = 0.1

#: In how many rounds the timed iterations are made; between them the budget is looked at.
_ROUNDS = 4


class Ranks:
    """What the ranks tell each other besides the operations under test."""

    def __init__(self, hvd: Any) -> None:
        self.hvd = hvd
        self._count = 0

    def slowest(self, value: float) -> float:
        """The largest `value` of all ranks."""
        import numpy as np

        largest = self.hvd.allreduce(np.array([value]), op=self.hvd.Max, name="bench.slowest")
        return float(largest[0])

    def total(self, value: int) -> int:
        """The sum of all ranks' values."""
        import numpy as np

        summed = self.hvd.allreduce(np.array([value]), op=self.hvd.Sum, name="bench.total")
        return int(summed[0])

    def gather(self, durations: Sequence[float]) -> list[list[float]]:
        """All ranks' durations, [rank][iteration]; every rank gives equally many."""
        import numpy as np

        self._count += 1  # a name of its own: the length differs from case to case
        gathered = self.hvd.allgather(np.array(durations), name=f"bench.gather.{self._count}")
        result: list[list[float]] = gathered.reshape(self.hvd.size(), -1).tolist()
        return result


class Benchmark:
    """Carries out a plan on this rank."""

    def __init__(self, hvd: Any, plan: Plan, results: IO[str] | None) -> None:
        self.hvd = hvd
        self.plan = plan
        self.results = results
        self.ranks = Ranks(hvd)

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
        """Measure one size, out of place and, where there is such a form, in place."""
        case = COLLECTIVES[self.plan.operation](self.hvd, self.plan.dtype, size, self.plan.check)
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
        self.report("phase", text=f"{self.plan.operation} {case.size_bytes} B {place}")
        wrong = None
        if self.plan.check:
            case.fill()
            case.run(in_place)
            wrong = self.ranks.total(case.count_wrong())
        summary = self.timed(lambda: case.run(in_place), self.plan.sweep_budget, _SWEEP_ITERATIONS)
        return {"time": asdict(summary), "wrong": wrong}

    def timed(self, call: Callable[[], None], budget: float, limits: tuple[int, int]) -> Summary:
        """Warm up, then time `call` as often as the plan or the budget says."""
        warmup, iterations = self.plan.warmup, self.plan.iterations
        estimate = 0.0
        if warmup is None or iterations is None:
            estimate = self.ranks.slowest(_time_of(call, 1))
            share = budget * _WARMUP_SHARE
            fitting = metrics.iterations_for(estimate, share, *_WARMUP_ITERATIONS)
            warmup = fitting if warmup is None else max(0, warmup - 1)
        if warmup:
            estimate = self.ranks.slowest(_time_of(call, warmup))
        if iterations is not None:
            return self.timed_rounds(call, iterations, iterations, math.inf)
        wanted = metrics.iterations_for(estimate, budget, *limits)
        return self.timed_rounds(call, wanted, max(limits[0], wanted // _ROUNDS), budget)

    def timed_rounds(
        self, call: Callable[[], None], iterations: int, each_round: int, budget: float
    ) -> Summary:
        """Time up to `iterations` calls; between rounds the ranks agree whether time is left.

        The estimate that chose `iterations` may have been lucky, so the clock has the last word.
        """
        durations: list[float] = []
        self.hvd.barrier()
        while len(durations) < iterations:
            count = min(each_round, iterations - len(durations))
            durations += [_time_of(call, 1) for _ in range(count)]
            if self.ranks.slowest(math.fsum(durations)) >= budget:
                break
        return metrics.summarise(self.ranks.gather(durations))

    def gradient_sets(self) -> None:
        """Measure every gradient set of the plan, all in one flat array of float32."""
        import numpy as np

        chosen = [WORKLOADS[key] for key in self.plan.workloads]
        flat = np.ones(max(workload.elements() for workload in chosen), np.float32)
        for workload in chosen:
            self.gradient_set(workload, flat[: workload.elements()])

    def gradient_set(self, workload: Workload, flat: Any) -> None:
        """One set: every tensor submitted in backward order, then all waited for = one step."""
        hvd = self.hvd
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
            # The last first: one wake-up for a step, not one for every tensor.
            for handle in reversed(handles):
                hvd.synchronize(handle)

        wrong = None
        if self.plan.check:
            pattern.fill(flat, pattern.tile(hvd.rank(), hvd.size(), "float32"))
            step()
            expected = pattern.tile_sum(hvd.size(), "float32")
            wrong = self.ranks.total(pattern.count_wrong(flat, expected))
        summary = self.timed(step, self.plan.workload_budget, _WORKLOAD_ITERATIONS)
        self.report(
            "workload",
            key=workload.key,
            title=workload.title,
            tensors=len(tensors),
            elements=flat.size,
            size_bytes=flat.nbytes,
            dtype="float32",
            step={"time": asdict(summary), "wrong": wrong},
        )


def _time_of(call: Callable[[], None], repeats: int) -> float:
    """Seconds of one of `repeats` calls, one after another."""
    started = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - started) / repeats


def _settings_in_force() -> dict[str, Any]:
    from hvdtune.core import tuning

    return dict(tuning.current())


def main(arguments: Sequence[str]) -> int:
    """Run this rank of the plan; the exit status of the process."""
    import hvdtune as hvd

    plan_path, results_path = (Path(argument) for argument in arguments)
    hvd.init()
    results = results_path.open("w", encoding="utf-8") if hvd.rank() == 0 else None
    try:
        Benchmark(hvd, Plan.load(plan_path), results).run()
    finally:
        if results is not None:
            results.close()
    hvd.shutdown()
    return 0
