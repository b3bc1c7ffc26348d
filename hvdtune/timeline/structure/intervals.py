"""Intervals of time: how much of it they cover."""

from __future__ import annotations

from collections.abc import Iterable


def union_length(intervals: Iterable[tuple[int, int]]) -> int:
    """The time that `intervals` (begin, end) cover at least once, in their unit."""
    covered = 0
    reached: int | None = None
    for begin, end in sorted(intervals):
        if reached is None or begin > reached:
            reached = begin
        if end > reached:
            covered += end - reached
            reached = end
    return covered
