"""Numbers as people read them: times, sizes, shares, lists of ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable


def known(value: float | None) -> bool:
    """Whether there is a number at all: neither None nor NaN nor infinite."""
    return value is not None and math.isfinite(value)


def seconds(value: float | None) -> str:
    """A time in s: `2.50 s`, `31.4 ms`, `7.2 µs`; `-` if it is unknown."""
    if value is None or not math.isfinite(value):
        return "-"
    size = abs(value)
    if size >= 120:
        return f"{value / 60:.1f} min"
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if size * factor >= 0.9995 or unit == "µs":
            return f"{digits(value * factor)} {unit}"
    raise AssertionError("unreachable")


def milliseconds(value: float | None) -> str:
    """A time in s as a bare number of ms, for a column; whole microseconds below ten."""
    if value is None or not math.isfinite(value):
        return "-"
    if abs(value) >= 9.995e-6:
        return digits(value * 1e3)
    return f"{value * 1e3:.3f}" if abs(value) >= 0.5e-6 else "0"


def digits(value: float | None) -> str:
    """Three significant digits: `0.0123`, `1.23`, `12.3`, `1234`."""
    if value is None or not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    if abs(value) >= 1e5:
        return f"{value:.3g}"
    value = float(f"{value:.3g}") if abs(value) < 1000 else value  # 0.9999 becomes 1.00
    places = max(0, 2 - math.floor(math.log10(abs(value)) + 1e-9))
    return f"{value:.{min(places, 6)}f}"


def count(value: float | None) -> str:
    """A mean or median of whole numbers: `1`, `2.5`, `19.7`, `200`."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percent(share: float | None) -> str:
    """A share of 1: `12.3 %`, from 10 % on without a decimal; `under 0.1 %`. A share just below 0
    is a rounding error: `0 %`."""
    if share is None or not math.isfinite(share):
        return "-"
    value = 100 * share
    if 0 < value < 0.05:
        return "under 0.1 %"
    if -0.05 < value <= 0:
        return "0 %"
    return f"{value:.0f} %" if abs(value) >= 9.95 else f"{value:.1f} %"


def percent_between(low: float, high: float) -> str:
    """Two shares of 1: `12–17 %`; a single number if both read the same."""
    least, most = percent(low), percent(high)
    return most if least == most else f"{least.removesuffix(' %')}\u2013{most}"


def size(count: float | None) -> str:
    """Bytes, in powers of 1024: `512 B`, `64 KiB`, `97.5 MiB`. All sizes are written this way; only
    bandwidths use powers of 1000 (`bandwidth`)."""
    if count is None or not math.isfinite(count):
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1023.5 or unit == "TiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" or abs(count) >= 999.5 else f"{count:.3g} {unit}"


def bandwidth(rate: float | None) -> str:
    """Bytes a second, in powers of 1000 as in nccl-tests: `3.21 GB/s`, `12.5 MB/s`."""
    if rate is None or not math.isfinite(rate):
        return "-"
    for unit in ("B/s", "kB/s", "MB/s", "GB/s"):
        if abs(rate) < 999.5 or unit == "GB/s":
            break
        rate /= 1000
    return f"{rate:.0f} B/s" if unit == "B/s" else f"{digits(rate)} {unit}"


def number(count: int, thing: str, plural: str = "") -> str:
    """`1 step`, `12 000 steps`."""
    return f"{grouped(count)} {thing if count == 1 else plural or thing + 's'}"


def grouped(count: int) -> str:
    """`12 345`, with a non-breaking space."""
    return f"{count:,}".replace(",", "\u202f")


def ordinal(number: int) -> str:
    """`2nd`, `10th`."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ending}"


def ranks(numbers: Iterable[int]) -> str:
    """`rank 3`, `ranks 0-3, 5`."""
    ordered = sorted(set(numbers))
    runs: list[list[int]] = []
    for one in ordered:
        if runs and one == runs[-1][1] + 1:
            runs[-1][1] = one
        else:
            runs.append([one, one])
    text = ", ".join(
        str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}-{b}" for a, b in runs
    )
    return f"rank {text}" if len(ordered) == 1 else f"ranks {text}"


def shortened(name: str, most: int = 60) -> str:
    """One line. Long text loses its beginning, which tensors' names often have in common."""
    printable = "".join(c if c.isprintable() else "?" for c in name)
    return printable if len(printable) <= most else "…" + printable[1 - most :]
