"""Whether CPUs are scarce: how much of a host's CPUs computing and batches need (docs/metrics.md).

Every rank records at the end of a step how many CPUs it kept busy, and how many of them executed
batches or helped with that; the rest is computing. It also records for how long its program waited
for a CPU. If steps are short, one reading covers several steps. The identity says how many CPUs the
ranks of a host share.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from hvdtune.timeline.record.layout import CPUS_FOR_BATCHES, CPUS_IN_USE, CPUS_WAITED_FOR

if TYPE_CHECKING:
    from hvdtune.timeline.analysis.answers import Analysis
    from hvdtune.timeline.record.layout import RankRecording
    from hvdtune.timeline.structure.joint import View


#: Computing runs on CPUs if it uses this share of the CPUs that it could use.
ON_CPU = 0.5


@dataclass(frozen=True)
class Host:
    """A host: its number of ranks, those that were recorded (`members`: their positions), and the
    CPUs that each rank uses while it computes, and while a batch runs. `used`: CPUs that its ranks
    together kept busy, mean over the steps."""

    cpus: int
    ranks: int
    members: list[int]
    computing: float
    batch: float
    used: float

    @property
    def slowdown(self) -> float:
        """See Load."""
        return max(1.0, self.ranks * (self.computing + self.batch) / self.cpus)


@dataclass(frozen=True)
class Load:
    """The work of the CPUs.

    computing: [ranks, S] ns of CPU time, ranks in the order of Joint.views, NaN if unknown.
    waiting: [ranks, S] ns for which a program was ready to compute while batches used its CPU; NaN
    if unknown. kept: the same while anything else used its CPU. slowdown: the factor by which
    computing and batches take longer while they overlap; 1 if there are enough CPUs, or nothing is
    known. on_cpu: computing is mostly CPU time, not a GPU's or sleeping. beside: ns of a CPU that a
    batch takes on a rank besides its duration. hosts: those for which all this is known.
    """

    computing: np.ndarray
    waiting: np.ndarray
    slowdown: float = 1.0
    on_cpu: bool = False
    cpus: int = 0  # of the host with the largest slowdown; 0: unknown
    beside: float = 0.0
    hosts: tuple[Host, ...] = ()
    kept: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))

    def work(self, step: int) -> tuple[tuple[float, float], ...]:
        """For a step and each host: the least time, ns, for which its CPUs compute, and how much
        each ns of batches adds to it."""
        result = []
        for host in self.hosts:
            own = self.computing[host.members, step]
            if np.isfinite(own).all():
                all_ranks = float(own.mean()) * host.ranks
                result.append((all_ranks / host.cpus, host.ranks * host.batch / host.cpus))
        return tuple(result)


def load(analysis: Analysis) -> Load:
    """The load of all steps found in the recording."""
    joint, steps = analysis.joint, analysis.found_steps
    table = analysis.waterfall
    shape = len(joint.views), len(steps)

    def column(name: str) -> np.ndarray:
        """[ranks, S] ns; the table's rows are ordered by rank, then step."""
        values: np.ndarray = 1e9 * table[name].to_numpy(float)
        return values.reshape(shape)

    compute, communication = column("compute_s"), column("communication_s")
    busy, batches, waited, lengths = (np.full(shape, np.nan) for _ in range(4))
    # A reading covers the time between marks.
    views = sorted(joint.views.items()) if steps.found_from == "marks" else []
    for at, (rank, view) in enumerate(views):
        lengths[at] = steps.end[rank] - steps.begin[rank]
        for name, into in (
            (CPUS_IN_USE, busy),
            (CPUS_FOR_BATCHES, batches),
            (CPUS_WAITED_FOR, waited),
        ):
            into[at] = lengths[at] * _readings(
                view.recording, name, steps.begin[rank], steps.end[rank]
            )
    kept = waited.copy()
    computing = np.maximum(busy - batches, 0.0)
    known = np.isfinite(computing)
    hosts = []
    for cpus, ranks, members in _hosts(joint.views):
        own = known[members]
        if not cpus or not own.any() or not communication[members][own].sum():
            continue
        used = float(computing[members][own].sum() / max(compute[members][own].sum(), 1.0))
        running = float(batches[members][own].sum() / communication[members][own].sum())
        most = max(1.0, cpus / ranks)  # with threads that help, more than one
        mine = busy[members][own].sum() / lengths[members][own].sum() * ranks
        hosts.append(Host(cpus, ranks, members, used, min(running, most), float(mine)))
        waited[members] *= _share_of_batches(
            ranks / cpus, computing[members][own].sum(), batches[members][own].sum()
        )
    if not hosts:
        return Load(computing, np.full(shape, np.nan))
    worst = max(hosts, key=lambda host: host.slowdown)
    on_cpu = all(one.computing >= ON_CPU * min(1.0, one.cpus / one.ranks) for one in hosts)
    # If there is more than one CPU per rank, other threads may help the one that executes batches.
    crowded = [at for one in hosts if one.cpus <= one.ranks for at in one.members]
    beside = _beside(analysis, batches[crowded], communication[crowded])
    return Load(computing, waited, worst.slowdown, on_cpu, worst.cpus, beside, tuple(hosts), kept)


def _beside(analysis: Analysis, batches: np.ndarray, communication: np.ndarray) -> float:
    """See Load; for short batches this is most of their cost. `batches`, `communication`: [ranks,
    S] ns of a CPU and of time, NaN if unknown."""
    of = analysis.found_steps.batch_step
    number = np.bincount(of[of >= 0], minlength=batches.shape[1])
    known = np.isfinite(batches)
    count = float((known * number).sum())
    more = float((batches - communication)[known].sum())
    return max(0.0, more / count) if count else 0.0


def _share_of_batches(crowd: float, computing: float, batches: float) -> float:
    """The share of a program's waiting for CPUs that is for batches (of all ranks); the rest is for
    other ranks' computing, in proportion to the CPU times. `crowd`: ranks per CPU."""
    others = max(crowd - 1, 0.0) * computing
    running = max(crowd, 1.0) * batches
    return float(running / (running + others)) if running > 0 else 0.0


def _readings(one: RankRecording, name: str, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """[S] the counter's reading that covers each step; NaN if there is none. A reading of several
    steps together counts for each of them."""
    result = np.full(len(ends), np.nan)
    every, own = _counter(one, CPUS_IN_USE)["time"], _counter(one, name)
    if not len(every):
        return result
    at = np.searchsorted(own["time"], ends)
    inside = np.flatnonzero(at < len(own))
    read = own[at[inside]]
    # A reading covers the time since the reading before it, and each has CPUS_IN_USE.
    before = np.searchsorted(every, read["time"]) - 1
    since = np.where(before >= 0, every[np.maximum(before, 0)], ends[inside])
    whole = (since <= begins[inside]) | (read["time"] == ends[inside])
    result[inside[whole]] = read["value"][whole]
    return result


def _counter(one: RankRecording, name: str) -> np.ndarray:
    """The counter's readings, in order of time."""
    counters = one.counters
    if name not in one.texts:
        return counters[:0]
    return counters[counters["counter"] == one.texts.index(name)]


def _hosts(views: dict[int, View]) -> list[tuple[int, int, list[int]]]:
    """CPUs, ranks and positions of the recorded ranks of each host."""
    hosts: dict[str, list[int]] = {}
    identities = [view.recording.identity for _, view in sorted(views.items())]
    for at, identity in enumerate(identities):
        hosts.setdefault(identity.host, []).append(at)
    return [
        (identities[members[0]].cpus, max(identities[members[0]].local_size, len(members)), members)
        for members in hosts.values()
    ]
