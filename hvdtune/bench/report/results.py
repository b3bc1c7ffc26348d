"""The results of a benchmark: plain data, ready for the table and the files."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from hvdtune.bench import metrics
from hvdtune.bench.memory import LEAST_SIZE, MemoryCurve
from hvdtune.bench.metrics import Summary


@dataclass(frozen=True)
class Measurement:
    """Durations of one case and the figures derived from them; times in s, bandwidths in GB/s.

    `wrong` counts the wrong elements on all ranks, None if unchecked. `bound` is T_bound, and
    `share` is T_bound / t; both are None if they mean nothing (see `metrics`).
    """

    time: Summary
    wrong: int | None
    algbw: float | None
    busbw: float | None
    bound: float | None
    share: float | None


@dataclass(frozen=True)
class SweepRow:
    """One size of the sweep. `root` is -1 and `redop` "none" if the operation has neither.

    `in_place` is None for operations that have no in-place form.
    """

    operation: str
    size_bytes: int
    count: int
    dtype: str
    redop: str
    root: int
    out_of_place: Measurement
    in_place: Measurement | None

    def best_known(self) -> Measurement:
        """The in-place measurement, if there is one: training steps use that form."""
        return self.in_place or self.out_of_place


@dataclass(frozen=True)
class WorkloadRow:
    """One gradient set: allreduce in place of every tensor of a model = one step."""

    key: str
    title: str
    tensors: int
    elements: int
    size_bytes: int
    dtype: str
    step: Measurement

    def steps_per_second(self) -> float:
        """Steps/s if a step were nothing but this communication."""
        return 1.0 / self.step.time.mean


@dataclass
class Report:
    """Everything a run found, in the order in which it was found."""

    ranks: int
    cpus: int
    device: str = "cpu"
    environment: dict[str, Any] = field(default_factory=dict)
    memory: MemoryCurve | None = None
    sweep: list[SweepRow] = field(default_factory=list)
    workloads: list[WorkloadRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    advice: str = ""
    seconds: float = 0.0

    def wrong(self) -> int | None:
        """Wrong elements over all checked cases; None if nothing was checked."""
        cases = [row.out_of_place for row in self.sweep]
        cases += [row.in_place for row in self.sweep if row.in_place]
        cases += [row.step for row in self.workloads]
        counts = [case.wrong for case in cases if case.wrong is not None]
        return sum(counts) if counts else None

    def average_busbw(self) -> float | None:
        """Mean busbw over the sweep, out of place and in place, as in nccl-tests' footer."""
        cases = [row.out_of_place for row in self.sweep]
        cases += [row.in_place for row in self.sweep if row.in_place]
        values = [case.busbw for case in cases if case.busbw is not None]
        return sum(values) / len(values) if values else None


def measurement(
    operation: str,
    size_bytes: int,
    ranks: int,
    time: Summary,
    wrong: int | None,
    memory: MemoryCurve | None,
) -> Measurement:
    """Derive bandwidths, bound and share of one case from its durations."""
    bound = None
    if memory is not None and size_bytes >= LEAST_SIZE:
        copy_rate, stream_rate = memory.rates(size_bytes)
        bound = metrics.memory_bound_seconds(operation, size_bytes, ranks, copy_rate, stream_rate)
    carries_data = operation != "barrier"
    return Measurement(
        time=time,
        wrong=wrong,
        algbw=metrics.algbw_gbs(size_bytes, time.mean) if carries_data else None,
        busbw=metrics.busbw_gbs(operation, size_bytes, time.mean, ranks),
        bound=bound,
        share=None if bound is None else bound / time.mean,
    )


def to_dict(report: Report) -> dict[str, Any]:
    """The report as JSON-ready data; times in s, sizes in bytes, bandwidths in GB/s."""
    data = asdict(report)
    data["wrong"] = report.wrong()
    data["average_busbw"] = report.average_busbw()
    for row, source in zip(data["workloads"], report.workloads, strict=True):
        row["steps_per_second"] = source.steps_per_second()
    return data
