"""The part of the machine that this process may use."""

from __future__ import annotations

import hvdtune._native as _native


def usable_cpus() -> int:
    """CPUs this process and its children may use, at least 1.

    The smaller of the affinity mask (taskset, cpusets) and the CPU quota of the control groups
    (containers, batch systems), a fraction of a CPU counted as one.
    """
    return _native.usable_cpus()
