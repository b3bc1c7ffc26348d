"""What the process may use; tests/native/base/test_cpu.cc tests the quotas of control groups."""

from __future__ import annotations

import os

from hvdtune.core.libraries.machine import usable_cpus


def test_usable_cpus_are_at_most_those_of_the_affinity_mask() -> None:
    own = os.sched_getaffinity(0)
    assert 1 <= usable_cpus() <= len(own)
    try:
        os.sched_setaffinity(0, {min(own)})
        assert usable_cpus() == 1
    finally:
        os.sched_setaffinity(0, own)
