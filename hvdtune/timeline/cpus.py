"""Whether CPUs are scarce: what computing and batches want of a host's CPUs. See docs/metrics.md.

Every rank records at the end of a step how many CPUs it kept busy, and how many of them executed
batches; the rest is computing. The identity says how many CPUs the ranks of a host share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hvdtune.timeline.capture import CPUS_FOR_BATCHES, CPUS_IN_USE

if TYPE_CHECKING:
    from hvdtune.timeline.capture import RankRecording
    from hvdtune.timeline.joint import View
    from hvdtune.timeline.report_data import Analysis


#: Computing is done by CPUs when it has this much of those that it could have.
ON_CPU = 0.5


@dataclass(frozen=True)
class Load:
    """What the CPUs have to do.

    computing: [ranks, S] ns of CPU time, ranks in the order of Joint.views, NaN where it is not
    known. slowdown: by how much computing and batches take longer while they overlap; 1 where
    there are CPUs enough, or nothing is known. on_cpu: computing is mostly CPU time; it is not
    where a GPU computes, or nobody.
    """

    computing: np.ndarray
    slowdown: float = 1.0
    on_cpu: bool = False
    cpus: int = 0  # of the host with the largest slowdown; 0: not known


def load(analysis: Analysis) -> Load:
    """Of all steps found in the recording."""
    joint, steps = analysis.joint, analysis.found_steps
    table = analysis.waterfall
    shape = len(joint.views), len(steps)

    def column(name: str) -> np.ndarray:
        """[ranks, S] ns; the table's rows are ordered by rank, then step."""
        values: np.ndarray = 1e9 * table[name].to_numpy(float)
        return values.reshape(shape)

    compute, communication = column("compute_s"), column("communication_s")
    busy, batches = np.full(shape, np.nan), np.full(shape, np.nan)
    for at, (rank, view) in enumerate(sorted(joint.views.items())):
        lengths = (steps.end[rank] - steps.begin[rank]).astype(float)
        busy[at] = lengths * _readings(view.recording, CPUS_IN_USE, steps.end[rank])
        batches[at] = lengths * _readings(view.recording, CPUS_FOR_BATCHES, steps.end[rank])
    computing = np.maximum(busy - batches, 0.0)
    known = np.isfinite(computing)
    hosts = []
    for cpus, ranks, members in _hosts(joint.views):
        own = known[members]
        if not cpus or not own.any() or not communication[members][own].sum():
            continue
        used = float(computing[members][own].sum() / max(compute[members][own].sum(), 1.0))
        running = float(batches[members][own].sum() / communication[members][own].sum())
        slowdown = max(1.0, ranks * (used + min(running, 1.0)) / cpus)
        hosts.append((slowdown, used >= ON_CPU * min(1.0, cpus / ranks), cpus))
    if not hosts:
        return Load(computing)
    slowdown, _, cpus = max(hosts)
    on_cpu = all(one for _, one, _ in hosts)
    return Load(computing, slowdown, on_cpu, cpus)


def _readings(one: RankRecording, name: str, ends: np.ndarray) -> np.ndarray:
    """[S] the counter's reading at each step's end; NaN where there is none."""
    result = np.full(len(ends), np.nan)
    if name not in one.texts:
        return result
    own = one.counters[one.counters["counter"] == one.texts.index(name)]
    at = np.searchsorted(own["time"], ends)
    inside = at < len(own)
    same = np.zeros(len(ends), bool)
    same[inside] = own["time"][at[inside]] == ends[inside]
    result[same] = own["value"][at[same]]
    return result


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
