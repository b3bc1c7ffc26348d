"""What the ranks may really use of this machine: CPUs (affinity and quota) and memory."""

from __future__ import annotations

import math
import os
from pathlib import Path


def usable_cpus() -> int:
    """CPUs this process and its children may use, at least 1.

    The smaller of the affinity mask (taskset, cpusets) and the CPU quota of the control group
    (containers, batch systems), a fraction of a CPU counted as one.
    """
    allowed = len(os.sched_getaffinity(0))
    quota = cgroup_quota(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def cgroup_quota(membership: Path, mount: Path) -> float | None:
    """CPUs granted by the tightest quota on the way from the own group to the root, or None.

    Reads version 2 (``cpu.max``) and version 1 (``cpu.cfs_quota_us``). Inside a container the
    path in `membership` may not exist below `mount`; the mount's own files count then.
    """
    quotas = [
        quota for group in _groups(membership, mount) if (quota := _quota_of(group)) is not None
    ]
    return min(quotas, default=None)


def _groups(membership: Path, mount: Path) -> list[Path]:
    groups: list[Path] = []
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = mount / controllers if controllers else mount
        group = root / path.lstrip("/")
        while group != root and root in group.parents:
            groups.append(group)
            group = group.parent
        groups.append(root)
    return groups or [mount]


def _quota_of(group: Path) -> float | None:
    try:
        limit, period = (group / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        pass
    try:
        limit_us = int((group / "cpu.cfs_quota_us").read_text())
        period_us = int((group / "cpu.cfs_period_us").read_text())
        return None if limit_us <= 0 else limit_us / period_us
    except (OSError, ValueError):
        return None


def available_memory() -> int | None:
    """Bytes that can be allocated without swapping, from /proc/meminfo; None if unknown."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None
