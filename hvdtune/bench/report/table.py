"""The text for people: nccl-tests' table, and a similar one for the gradient sets."""

from __future__ import annotations

from collections.abc import Sequence

from hvdtune.bench.memory import MemoryCurve
from hvdtune.bench.report.results import Measurement, Report, SweepRow, WorkloadRow
from hvdtune.bench.sizes import format_size

#: (title, unit, width) of the columns before, in and after the two halves of the sweep's table.
_CASE = (("size", "(B)", 10), ("count", "(elements)", 11), ("type", "", 9), ("redop", "", 7))
_ROOT = (("root", "", 5),)
_HALF = (("time", "(us)", 9), ("algbw", "(GB/s)", 8), ("busbw", "(GB/s)", 8), ("#wrong", "", 8))
_EXTRA = (("p50", "(us)", 9), ("p99", "(us)", 9), ("share", "", 7), ("iters", "", 7))
_SWEEP = (*_CASE, *_ROOT, *_HALF, *_HALF, *_EXTRA)

_WORKLOAD = (
    *(("gradients of", "", 15), ("tensors", "", 8), ("size", "(MB)", 8), ("steps/s", "", 9)),
    *(("time", "(ms)", 9), ("p50", "(ms)", 9), ("p99", "(ms)", 9)),
    *(("algbw", "(GB/s)", 8), ("busbw", "(GB/s)", 8), ("share", "", 7)),
    *(("#wrong", "", 8), ("iters", "", 7)),
)

NOT_APPLICABLE = "N/A"


def number(value: float | None, width: int, decimals: int = 2) -> str:
    """A number in at most `width` characters if possible: decimals are dropped to fit."""
    if value is None:
        return NOT_APPLICABLE
    for places in range(decimals, 0, -1):
        text = f"{value:.{places}f}"
        if len(text) <= width:
            return text
    return f"{value:.0f}"


def percent(share: float | None) -> str:
    """A share as `37%`."""
    return NOT_APPLICABLE if share is None else f"{100 * share:.0f}%"


def _join(cells: Sequence[str], columns: Sequence[tuple[str, str, int]], lead: str) -> str:
    pairs = zip(cells, columns, strict=True)
    line = "".join(cell.rjust(width) for cell, (_, _, width) in pairs)
    return lead + line[len(lead) :].rstrip() if line.startswith(" " * len(lead)) else lead + line


def _titles(columns: Sequence[tuple[str, str, int]]) -> list[str]:
    return [
        _join([title for title, _, _ in columns], columns, "#"),
        _join([unit for _, unit, _ in columns], columns, "#"),
    ]


def sweep_header(in_place: bool) -> list[str]:
    """Three lines above the sweep's rows; the last four columns belong to the named half."""
    before = sum(width for _, _, width in (*_CASE, *_ROOT))
    half = sum(width for _, _, width in _HALF)
    extra = sum(width for _, _, width in _EXTRA)
    banner = " " * before + "out-of-place".center(half) + "in-place".center(half)
    last = "in-place" if in_place else "out-of-place"
    return [("#" + banner[1:] + last.center(extra)).rstrip(), *_titles(_SWEEP)]


def sweep_row(row: SweepRow) -> str:
    """One line of the sweep."""
    best = row.best_known()
    cells = [str(row.size_bytes), str(row.count), row.dtype, row.redop, str(row.root)]
    cells += _half(row.out_of_place) + _half(row.in_place)
    cells += [number(best.time.p50 * 1e6, 8), number(best.time.p99 * 1e6, 8)]
    cells += [percent(best.share), str(best.time.iterations)]
    return _join(cells, _SWEEP, " ")


def _half(half: Measurement | None) -> list[str]:
    if half is None:
        return [NOT_APPLICABLE] * len(_HALF)
    wrong = NOT_APPLICABLE if half.wrong is None else str(half.wrong)
    bandwidths = [number(half.algbw, 7), number(half.busbw, 7)]
    return [number(half.time.mean * 1e6, 8), *bandwidths, wrong]


def workload_header() -> list[str]:
    """The lines above the gradient sets' rows."""
    return [
        "# One step: every tensor of the model submitted in backward order (float32 sum, in "
        "place), then all waited for.",
        *_titles(_WORKLOAD),
    ]


def workload_row(row: WorkloadRow) -> str:
    """One line of the gradient sets."""
    step, time = row.step, row.step.time
    cells = [row.title, str(row.tensors), number(row.size_bytes / 1e6, 7, 1)]
    cells += [number(row.steps_per_second(), 8)]
    cells += [number(seconds * 1e3, 8) for seconds in (time.mean, time.p50, time.p99)]
    cells += [number(step.algbw, 7), number(step.busbw, 7), percent(step.share)]
    cells += [NOT_APPLICABLE if step.wrong is None else str(step.wrong), str(time.iterations)]
    return _join(cells, _WORKLOAD, " ")


def memory_lines(curve: MemoryCurve) -> list[str]:
    """The speed of this machine's memory, one column per size."""
    workers = "1 rank alone" if curve.workers == 1 else f"{curve.workers} ranks at once"
    titles = [format_size(point.size_bytes) for point in curve.points]
    rows = [
        (f"# memory, {workers}, arrays of", titles),
        ("#   copy (GB/s copied)", [number(p.copy_rate / 1e9, 8, 1) for p in curve.points]),
        ("#   z += x (GB/s moved)", [number(p.stream_rate / 1e9, 8, 1) for p in curve.points]),
    ]
    first = max(len(label) for label, _ in rows)
    return [label.ljust(first) + "".join(cell.rjust(10) for cell in cells) for label, cells in rows]


def footer(report: Report) -> list[str]:
    """nccl-tests' last lines, how long the run took, and the advice."""
    wrong = report.wrong()
    verdict = "not checked" if wrong is None else f"{wrong} {'OK' if wrong == 0 else 'FAILED'}"
    lines = [f"# Out of bounds values : {verdict}"]
    average = report.average_busbw()
    if average is not None:
        lines.append(f"# Avg bus bandwidth    : {average:.3f} GB/s")
    lines.append(f"# Took                 : {report.seconds:.0f} s")
    if report.advice:
        lines += ["#", f"# Advice: {report.advice}"]
    return lines
