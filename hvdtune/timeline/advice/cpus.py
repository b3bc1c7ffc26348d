"""Causes of lost time that lie in a host: CPUs that are scarce."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hvdtune.timeline import whatif
from hvdtune.timeline.advice.case import Case
from hvdtune.timeline.advice.finding import Finding

if TYPE_CHECKING:
    from hvdtune.timeline.cpus import Host

#: CPUs are scarce when ranks wait for one during this share of the step, and others have them when
#: the ranks use less than this share of what they would if they only kept each other waiting.
KEPT, OWN = 0.1, 0.9


def cpus_taken(case: Case) -> list[Finding]:
    """Other programs have the CPUs of a host, so that its ranks wait for one though they could
    compute. Ranks that only keep each other waiting are not told of here: while one of these waits,
    the CPU that it waits for is busy with another, so they use at least CPUs × their waiting."""
    load = case.load
    worst: tuple[float, Host] | None = None
    for host in load.hosts:
        kept = load.kept[host.members] / 1e9
        share = float(np.nanmean(kept / case.durations)) if np.isfinite(kept).any() else 0.0
        taken = host.used < OWN * host.cpus * share
        if share >= KEPT and taken and (not worst or share > worst[0]):
            worst = share, host
    if not worst:
        return []
    share, host = worst
    ranks = list(case.analysis.joint.views)
    name = case.analysis.joint.views[ranks[host.members[0]]].recording.identity.host
    return [
        Finding(
            "CPUs taken",
            f"The ranks on host {name} wait for a CPU during {100 * share:.0f} % of the step, "
            f"ready to compute, while they keep only {host.used:.2g} of its {host.cpus} CPUs busy: "
            "other programs run there, or the container's share of the CPUs is used up.",
            f"End the other programs on {name} (top shows them), or give this job CPUs of its own "
            "(cpuset, taskset, a larger CPU limit).",
            case.gain(whatif.never_kept()),
            {
                "host": name,
                "waiting_share": share,
                "cpus_used": host.used,
                "cpus": float(host.cpus),
                "replay_error": case.replay_error(case.sample),
            },
        )
    ]
