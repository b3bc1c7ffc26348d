"""Hosts, or slots, that get no new process because one failed there."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from hvdtune.launch.errors import LaunchError

_SHORTEST, _LONGEST = 1, 3600  # seconds


class Exclusion:
    """Who is excluded, and until when.

    Without a range, for ever; with `cooldown` = (lo, hi), the k-th exclusion of a name lasts
    lo·2^k + U·lo seconds, between lo and hi, where `uniform` gives U in [0, 1). Raises
    `LaunchError` for a range that is not within 1 s to 3600 s.
    """

    def __init__(
        self,
        cooldown: tuple[float, float] | None = None,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        if cooldown and not _SHORTEST <= cooldown[0] <= cooldown[1] <= _LONGEST:
            raise LaunchError(
                f"--blacklist-cooldown-range {cooldown[0]:g} {cooldown[1]:g} is not accepted: give "
                f"the shortest and the longest time in seconds, from {_SHORTEST} to {_LONGEST}."
            )
        self.cooldown = cooldown
        self._uniform = uniform
        self._ends: dict[str, float] = {}
        self._times: Counter[str] = Counter()

    def exclude(self, name: str, now: float) -> float:
        """Exclude a name; return until when. One that is excluded already stays as it is."""
        if not self.excludes(name, now):
            self._times[name] += 1
            self._ends[name] = now + self._duration(self._times[name])
        return self._ends[name]

    def excludes(self, name: str, now: float) -> bool:
        """Whether the name is excluded at that time."""
        return now < self._ends.get(name, now)

    def next_end(self, now: float) -> float | None:
        """When the next name is free again; None if no more will be."""
        ends = [end for end in self._ends.values() if now < end < float("inf")]
        return min(ends, default=None)

    def _duration(self, times: int) -> float:
        if not self.cooldown:
            return float("inf")
        low, high = self.cooldown
        # 2^12 times the shortest range is longer than the longest.
        return min(max(low * 2 ** min(times, 12) + self._uniform() * low, low), high)
