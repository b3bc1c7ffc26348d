"""One line of advice, derived only from the measurements."""

from __future__ import annotations

from collections.abc import Callable

from hvdtune.bench import metrics
from hvdtune.bench.report.results import Report, SweepRow, WorkloadRow
from hvdtune.bench.sizes import format_size

#: A gradient set this many times slower per byte than one large allreduce loses its time
#: between the tensors, where settings can help.
_SLOWER_THAN_SWEEP = 1.5

#: From this share on, memory is the limit, and no setting moves more bytes.
_LIMITED_BY_MEMORY = 0.6

#: One operation's latencies are unsteady when p99 is this many times p50.
_UNSTEADY = 20.0

#: Sizes that do not fit into a core's cache, as gradients do not.
_LARGE = 16 << 20


def advise(report: Report) -> str:
    """The most valuable thing to do, with the numbers that say so; "" if nothing was measured."""
    wrong = report.wrong()
    if wrong:
        return (
            f"{wrong} elements came out wrong: do not train with this installation, and report "
            "this output as a bug."
        )
    if report.ranks == 1:
        return "one rank has nobody to talk to: start at least two, as in `hvdtune bench --np 2`."
    if not report.sweep and not report.workloads:
        return ""
    rules: tuple[Callable[[Report], str], ...]
    rules = (_between_tensors, _too_many_ranks, _memory, _latency, _share)
    if report.device != "cpu":  # the others compare with this machine's CPUs and their memory
        return _between_tensors(report) or "nothing stands out in what was measured."
    found = (text for rule in rules if (text := rule(report)))
    return next(
        found,
        "nothing stands out in what was measured; an allreduce sweep up to 64M shows how near "
        "the memory's limit it is.",
    )


def _largest(report: Report) -> SweepRow | None:
    rows = [row for row in report.sweep if row.operation == "allreduce"]
    return rows[-1] if rows and rows[-1].size_bytes >= _LARGE else None


def _between_tensors(report: Report) -> str:
    """A model whose tensors cost more than their bytes."""
    row = _largest(report)
    if row is None:
        return ""
    per_byte = row.best_known().time.mean / row.size_bytes
    models = [work for work in report.workloads if work.size_bytes >= _LARGE]
    worst, factor = _worst(models, per_byte)
    if worst is None or factor < _SLOWER_THAN_SWEEP:
        return ""
    return (
        f"{worst.title}'s gradients take {factor:.1f} times as long as the same bytes in "
        f"allreduces of {format_size(row.size_bytes)}: the time goes between the tensors, so let "
        "HOROVOD_AUTOTUNE=1 look for a better fusion threshold and cycle time."
    )


def _worst(models: list[WorkloadRow], per_byte: float) -> tuple[WorkloadRow | None, float]:
    factors = [(work.step.time.mean / (work.size_bytes * per_byte), work) for work in models]
    if not factors:
        return None, 0.0
    factor, worst = max(factors, key=lambda pair: pair[0])
    return worst, factor


def _too_many_ranks(report: Report) -> str:
    if report.ranks <= report.cpus:
        return ""
    fewer = max(2, report.cpus)
    row = _largest(report)
    head = f"{report.ranks} ranks share {_cpus(report.cpus)}"
    if report.ranks <= fewer:
        return f"{head}: the two take turns, so what is measured here is mostly waiting."
    if row is None or report.memory is None:
        return f"{head}: for speed, start {fewer}; the others only wait for their turn."
    rates = report.memory.rates(row.size_bytes)
    bounds = [
        metrics.memory_bound_seconds("allreduce", row.size_bytes, ranks, *rates) or 0.0
        for ranks in (report.ranks, fewer)
    ]
    return (
        f"{head}: copying {format_size(row.size_bytes)} through memory takes {bounds[0] * 1e3:.0f} "
        f"ms among {report.ranks} ranks (measured: {row.best_known().time.mean * 1e3:.0f} ms), but "
        f"{bounds[1] * 1e3:.0f} ms among {fewer}: for speed, start {fewer}."
    )


def _cpus(count: int) -> str:
    return "1 CPU" if count == 1 else f"{count} CPUs"


def _memory(report: Report) -> str:
    row = _largest(report)
    share = row.best_known().share if row else None
    if row is None or share is None or share < _LIMITED_BY_MEMORY:
        return ""
    return (
        f"{format_size(row.size_bytes)} runs at {100 * share:.0f} % of what this machine's memory "
        "can do: no setting makes it much faster, fewer bytes do (Compression.fp16, "
        "backward_passes_per_step)."
    )


def _latency(report: Report) -> str:
    if not report.sweep:
        return ""
    row = report.sweep[0]
    time = row.best_known().time
    if time.p99 < _UNSTEADY * time.p50:
        return ""
    return (
        f"{row.operation} of {format_size(row.size_bytes)} takes {time.p50 * 1e6:.0f} us at the "
        f"median but {time.p99 * 1e6:.0f} us at p99: something else uses these CPUs; stop it "
        "before you compare anything."
    )


def _share(report: Report) -> str:
    row = _largest(report)
    share = row.best_known().share if row else None
    if row is None or share is None:
        return ""
    return (
        f"nothing stands out: {format_size(row.size_bytes)} runs at {100 * share:.0f} % of what "
        "memory can do; compare settings with HOROVOD_AUTOTUNE=1 on your own training."
    )
