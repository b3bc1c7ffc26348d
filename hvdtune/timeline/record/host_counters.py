"""Readings of a rank's threads and of the CPUs that it may use, recorded twice a second.

`hvdtune.live.cpu_counters` reads them from the kernel; a counter that a kernel does not have is
missing. Rates and shares cover the time since the previous reading.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hvdtune.timeline.record.layout import RankRecording, Recording

#: Names of counters in a capture, by key.
COUNTERS = {
    "run": "threads: CPUs in use (CPUs)",
    "main": "main thread: CPU in use (CPUs)",
    "system": "threads: CPUs in use by the kernel (CPUs)",
    "wait": "threads: waiting for a CPU (threads)",
    "computing": "threads: that compute (threads)",
    "set": "threads: set for computing (threads)",
    "involuntary": "switches: involuntary (1/s)",
    "voluntary": "switches: voluntary (1/s)",
    "major": "page faults: from disk (1/s)",
    "minor": "page faults: others (1/s)",
    "swapped": "memory: swapped out (bytes)",
    "throttled": "CPU limit: held back (ratio)",
    "busy": "allowed CPUs: busy (CPUs)",
    "stolen": "allowed CPUs: stolen by the hypervisor (CPUs)",
    "clock": "allowed CPUs: clock (Hz)",
    "online": "host: CPUs (CPUs)",
    "cpu_pressure": "host: a thread waits for a CPU (ratio)",
    "memory_pressure": "host: a thread waits for memory (ratio)",
}
#: The CPUs that a rank may use: a counter whose name lists them, and whose value is their number.
ALLOWED = "allowed CPUs: {list} (CPUs)"
#: A program that keeps CPUs busy, of any process; the first of a host's ranks records it.
PROGRAM = "program {name} ({pid}): CPUs in use (CPUs)"

#: A reading counts if it is entirely within the steps; in short runs, this share of it is enough.
MOSTLY = 0.75

_ALLOWED = re.compile(r"allowed CPUs: ([\d,-]+) \(CPUs\)")
_PROGRAM = re.compile(r"program (.*) \((\d+)\): CPUs in use \(CPUs\)")


def listed(cpus: set[int]) -> str:
    """`0-3,8`."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)


def unlisted(text: str) -> frozenset[int]:
    """The CPUs in such a list."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


@dataclass(frozen=True)
class Threads:
    """One rank's readings during its steps: the mean of each key of COUNTERS that was recorded.

    allowed: the CPUs that it may use; empty: unknown. programs: the CPUs that each program of the
    host kept busy on average, by pid, with its name, if this rank read them.
    """

    rank: int
    host: str
    pid: int
    means: dict[str, float]
    allowed: frozenset[int] = frozenset()
    programs: dict[int, tuple[str, float]] = field(default_factory=dict)

    def __getitem__(self, key: str) -> float:
        """A mean; NaN if it was not recorded."""
        return self.means.get(key, float("nan"))


def threads(recording: Recording, begin: int, end: int) -> dict[int, Threads]:
    """The readings from `begin` to `end` (ns), by rank, for ranks that have any."""
    found = {}
    for rank, one in sorted(recording.ranks.items()):
        own = _of_rank(one, begin, end)
        if own is not None:
            found[rank] = own
    return found


def used_by_others(ranks: list[Threads]) -> np.ndarray:
    """[ranks] how many of the CPUs that each rank may use are kept busy by anything other than
    these ranks of its host. Another rank's use counts in proportion to the CPUs that both may
    use."""
    busy = np.array([one["busy"] for one in ranks])
    own = np.zeros(len(ranks))
    for at, one in enumerate(ranks):
        for other in ranks:
            common = len(one.allowed & other.allowed)
            own[at] += other["run"] * common / max(len(other.allowed), 1)
    return np.maximum(busy - own, 0.0)


def _of_rank(one: RankRecording, begin: int, end: int) -> Threads | None:
    rows = one.counters
    run = COUNTERS["run"]
    if run not in one.texts:
        return None
    times = rows["time"][rows["counter"] == one.texts.index(run)]
    # A reading covers the time since the one before.
    before = np.concatenate([[0], times[:-1]])
    inside = times[(before >= begin) & (times <= end)]
    if not len(inside):  # a reading that is mostly outside is about starting and stopping
        lengths = np.maximum(times - before, 1)
        shares = (np.minimum(times, end) - np.maximum(before, begin)) / lengths
        if not len(times) or shares.max() < MOSTLY:
            return None
        inside = times[[int(shares.argmax())]]
    # This counter is the first of a reading; the others follow it.
    behind = times[times > inside[-1]]
    rows = rows[rows["time"] >= inside[0]]
    rows = rows[rows["time"] < behind[0]] if len(behind) else rows
    keys = {name: key for key, name in COUNTERS.items()}
    means: dict[str, float] = {}
    programs: dict[int, tuple[str, float]] = {}
    allowed: frozenset[int] = frozenset()
    looks = 0  # for programs: one that is always busy is in each look
    for identifier in np.unique(rows["counter"]):
        name = one.texts[identifier] if identifier < len(one.texts) else ""
        values = rows["value"][rows["counter"] == identifier]
        if name in keys:
            means[keys[name]] = float(values.mean())
        elif match := _ALLOWED.fullmatch(name):
            allowed = unlisted(match[1])
        elif match := _PROGRAM.fullmatch(name):
            looks = max(looks, len(values))
            programs[int(match[2])] = match[1], float(values.sum())
    programs = {pid: (name, total / looks) for pid, (name, total) in programs.items()}
    identity = one.identity
    return Threads(identity.rank, identity.host, identity.pid, means, allowed, programs)
