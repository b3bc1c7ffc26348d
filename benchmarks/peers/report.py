"""The text for readers: one table per number of ranks, then hvdtune against the best peer."""

from __future__ import annotations

from hvdtune.bench.report.table import percent
from peers.results import OWN, Case, Comparison

_WIDTHS = (16, 12, 12, 12, 10, 8)
_NONE = "-"


def duration(seconds: float) -> str:
    """Three significant digits in the unit that fits: `1.53 us`, `275 us`, `1060 ms`."""
    unit, value = ("us", seconds * 1e6) if seconds < 999.5e-6 else ("ms", seconds * 1e3)
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f} {unit}"


def multiple(ratio: float | None) -> str:
    """`0.48 x`, `12.3 x`, `157 x`."""
    if ratio is None:
        return _NONE
    digits = 2 if ratio < 10 else 1 if ratio < 100 else 0
    return f"{ratio:.{digits}f} x"


def header(comparison: Comparison) -> list[str]:
    """The systems that ran, with their versions and settings."""
    machine, options = comparison.machine, comparison.options
    lines = [
        f"{machine['cpu']}, {machine['cpus']} usable CPUs, {machine['memory_gib']:.0f} GiB",
        f"float32 sum in place; {options['rounds']} rounds, {options['seconds']:g} s of calls "
        "for each work in each",
    ]
    for peer in comparison.peers.values():
        settings = [f"np {ranks}: {text}" for ranks, text in peer["settings"].items() if text]
        texts = set(peer["settings"].values())
        if len(texts) == 1:  # the same for every number of ranks
            settings = [text for text in texts if text]
        lines.append(f"  {peer['title']:<15}{peer['version']:<18}{'; '.join(settings)}".rstrip())
    return lines


def tables(comparison: Comparison) -> list[str]:
    """Every figure."""
    lines: list[str] = []
    for ranks in _ranks(comparison):
        titles = ("", "median", "p95", "x hvdtune", "of bound", "best")
        lines += ["", f"np {ranks}".ljust(14) + _cells(titles)]
        for work, about in comparison.works.items():
            rows = [
                _row(comparison, case)
                for peer in comparison.peers
                if (case := comparison.case(peer, ranks, work)) is not None
            ]
            bounds = {
                "bound": comparison.bound(ranks, work),
                "  no cache": comparison.bound_without_cache(ranks, work),
            }
            rows += [
                _cells((title, duration(bound), "", "", "", ""))
                for title, bound in bounds.items()
                if bound is not None and rows
            ]
            names = [about["title"]] + [""] * len(rows)
            lines += [name.ljust(14) + row for name, row in zip(names, rows, strict=False)]
    return lines


def _row(comparison: Comparison, case: Case) -> str:
    bound = comparison.bound(case.ranks, case.work)
    share = _NONE if case.share is None else percent(case.share)
    best = _NONE if bound is None else percent(bound / case.best)
    title = comparison.peers[case.peer]["title"]
    ratio = multiple(case.ratio)
    return _cells((title, duration(case.median), duration(case.p95), ratio, share, best))


def _cells(cells: tuple[str, ...]) -> str:
    first = cells[0].ljust(_WIDTHS[0])
    rest = (cell.rjust(width) for cell, width in zip(cells[1:], _WIDTHS[1:], strict=True))
    return (first + "".join(rest)).rstrip()


def summary(comparison: Comparison) -> list[str]:
    """hvdtune's time as a multiple of the fastest peer's, one column per number of ranks."""
    every = _ranks(comparison)
    if not every:
        return ["nothing was measured"]
    lines = ["", "hvdtune's time / the fastest peer's (below 1: hvdtune is faster)"]
    lines.append(" " * 14 + "".join(f"np {ranks}".ljust(26) for ranks in every).rstrip())
    for work, about in comparison.works.items():
        cells = []
        for ranks in every:
            best = comparison.best_peer(ranks, work)
            own = comparison.case(OWN, ranks, work)
            if best is None or own is None:
                cells.append(_NONE)
            else:
                case, ratio = best
                cells.append(f"{ratio:5.2f} x {comparison.peers[case.peer]['title']}")
        lines.append((about["title"].ljust(14) + "".join(c.ljust(26) for c in cells)).rstrip())
    return lines


def footer(comparison: Comparison) -> list[str]:
    """The systems that could not be measured, and the time that the others took."""
    lines = [""] if comparison.left_out else []
    lines += [f"left out: {text}" for text in comparison.left_out]
    return [*lines, f"took {comparison.seconds:.0f} s"]


def _ranks(comparison: Comparison) -> list[int]:
    return sorted({case.ranks for case in comparison.cases})
