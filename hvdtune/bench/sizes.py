"""Sizes in bytes as people type and read them: `8`, `128M`, `64MiB`.

K, M and G are powers of 1024, as in nccl-tests.
"""

from __future__ import annotations

from hvdtune.settings import values


def parse_size(text: str) -> int:
    """Bytes of `8`, `4K`, `128M`, `1G`, `64MB` or `64MiB`, at least 1; ValueError otherwise."""
    try:
        size = values.parse_size(text.strip())
    except ValueError:
        size = 0
    if size < 1:
        raise ValueError(f"{text!r} is not a size; accepted: bytes such as 8, 4K, 128M or 1G")
    return size


def format_size(size: int) -> str:
    """``4 B``, ``64 KiB``, ``1.5 MiB``: the largest unit that keeps at least one whole."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size} B"


def sweep_sizes(begin: int, end: int, factor: float, granularity: int) -> list[int]:
    """begin, begin·factor, … up to end, each raised to a multiple of `granularity` bytes.

    Ascending, without repetition; at least one size. ValueError unless 0 < begin <= end and
    factor > 1.
    """
    if begin < 1 or end < begin:
        raise ValueError(f"a sweep needs 0 < begin <= end, not begin {begin} and end {end}")
    if not factor > 1.0:
        raise ValueError(f"a sweep's factor must be greater than 1, not {factor:g}")
    sizes: list[int] = []
    wanted = float(begin)
    while int(wanted) <= end:
        size = -(-int(wanted) // granularity) * granularity
        if not sizes or size > sizes[-1]:
            sizes.append(size)
        wanted *= factor
    return sizes
