"""Hosts and slots that get no new process because one failed there."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator

from hvdtune.launch.elastic import wording
from hvdtune.launch.elastic.limits import Limits
from hvdtune.launch.elastic.orders import Orders
from hvdtune.launch.elastic.process import Process
from hvdtune.launch.elastic.roster import Roster
from hvdtune.launch.elastic.suspicion import Lateness, Suspicion
from hvdtune.launch.errors import LaunchError

STRIKES = 3  # unproven processes that may fail in a slot in a row
_SHORTEST, _LONGEST = 1, 3600  # seconds


class Exclusion:
    """Which names are excluded, and until when.

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
        """Exclude a name; return until when. An exclusion that is in force stays as it is."""
        if not self.excludes(name, now):
            self._times[name] += 1
            self._ends[name] = now + self._duration(self._times[name])
        return self._ends[name]

    def excludes(self, name: str, now: float) -> bool:
        """Whether the name is excluded at that time."""
        return now < self._ends.get(name, now)

    def next_end(self, now: float) -> float | None:
        """When the next exclusion ends; None if none will."""
        ends = [end for end in self._ends.values() if now < end < float("inf")]
        return min(ends, default=None)

    def _duration(self, times: int) -> float:
        if not self.cooldown:
            return float("inf")
        low, high = self.cooldown
        # 2^12 times the shortest range is longer than the longest.
        return min(max(low * 2 ** min(times, 12) + self._uniform() * low, low), high)


class Blame:
    """What a failure means for its place: whether its slot, or its host, gets processes again."""

    def __init__(
        self, limits: Limits, exclusion: Exclusion, roster: Roster, orders: Orders
    ) -> None:
        self._limits = limits
        self._exclusion = exclusion
        self._roster = roster
        self._orders = orders
        self._strikes: dict[tuple[str, int], int] = {}  # by slot
        self._hinted = False  # the user has been told which option spares a host

    def free_seats(self, now: float) -> Iterator[tuple[str, int]]:
        """Slots that may get a process, as (host, number)."""
        return self._roster.free_seats(lambda name: self._exclusion.excludes(name, now))

    def next_end(self, now: float) -> float | None:
        """When the next exclusion ends; None if none will."""
        return self._exclusion.next_end(now)

    def exclude_host_of(self, process: Process, what: str, now: float) -> None:
        """Start nothing on the process's host any more, for some time or for ever.

        The host's other processes are ended as well. If only a newcomer failed, the members stay.
        A process whose elastic function has returned may end by itself.
        """
        self._exclude(process.host, now, hint=self._limits.replaces_failed is False)
        for other in self._roster.processes.values():
            lost = process.since is not None or other.since is None
            if lost and other.host == process.host and other.lives and not other.finished:
                self._orders.end_process(other, f"{process.name} {what}, and its host is excluded")

    def note_failure_of(self, process: Process, now: float, is_slow: bool) -> None:
        """Start nothing in the process's place any more if it would probably fail again."""
        if process.proved_at is not None and now >= process.proved_at:
            self._strikes.pop(process.seat, None)
        else:
            self._strikes[process.seat] = self._strikes.get(process.seat, 0) + 1
        # Before the first generation all others wait, and have waited long enough for this one.
        hopeless = is_slow and not self._roster.generation
        hopeless |= self._strikes.get(process.seat, 0) >= STRIKES
        if hopeless or (self._exclusion.cooldown and not is_slow):
            self._exclude(process.name, now)

    def _exclude(self, name: str, now: float, hint: bool = False) -> None:
        """Exclude a host or a slot by name, and say so; a `hint` tells how to spare a host."""
        if not self._exclusion.excludes(name, now):
            seconds = self._exclusion.exclude(name, now) - now
            self._orders.say(wording.excluded(name, seconds, hint and not self._hinted))
            self._hinted |= hint

    def replace_late(
        self, found: Lateness, seconds: float, suspicion: Suspicion, now: float
    ) -> Process | None:
        """End a process for which the others have waited for too long, and return it.

        Returns None if it stays; the user is told that once per generation.
        """
        crew, words = self._roster.crew, wording.late(found, seconds)
        late = [crew[rank] for rank in found.ranks if 0 <= rank < len(crew)]
        if not late:
            return None
        first = late[0]
        stays = ""
        if len(late) > 1:
            words = f"host {first.host} as a whole ({len(late)} processes) {words}"
            stays = "its processes stay: others there would be as late"
        else:
            words = f"{first.name} (started as rank {first.start_rank}) {words}"
            if not self._can_do_without(first):
                lost = "it" if self._limits.replaces_failed else "its host"
                stays = f"it stays: too few would be left without {lost} (--min-np)"
        if not stays:
            self._orders.say(f"{words}; it is ended (--replace-stragglers).")
            self._orders.kill(first)
            if self._limits.replaces_failed:
                self._exclude(first.name, now)
            else:
                self.exclude_host_of(first, "was late", now)
            return first
        if found.ranks != suspicion.spared:
            suspicion.spared = found.ranks
            self._orders.say(f"{words}; {stays}.")
        return None

    def _can_do_without(self, process: Process) -> bool:
        """Whether, without the process, enough are left, and one of them has the job's state."""
        slot_only, elsewhere = self._limits.replaces_failed, self._roster.elsewhere()
        others = [
            one
            for one in self._roster.expected()
            if one is not process and (slot_only or one.host != process.host)
        ]
        others = [one for one in others if one not in elsewhere]
        has_state = any(map(self._roster.carries, others))
        return has_state and min(len(others), self._roster.most) >= self._limits.least
