"""What a start must not load: every rank and every command pays for it.

Nothing is timed here (`benchmarks/startup.py` does that): the modules are listed.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from hvdtune.core import job as life
from hvdtune.core.topology import Topology

# Each of them costs some milliseconds (or brings others that do), and there is another way.
SLOW = {"_hashlib", "asyncio", "dataclasses", "inspect", "secrets", "socket", "traceback"}
LAUNCHER = (
    "hvdtune.cli.run, hvdtune.launch.local.environment, hvdtune.launch.allocation.hosts, "
    "hvdtune.launch.job, hvdtune.launch.settings"
)


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(result.stdout.split())


@pytest.mark.parametrize("modules", ["hvdtune", "hvdtune.cli.main", LAUNCHER])
def test_what_a_start_imports(modules):
    ours = modules_after(f"import {modules}") - modules_after("pass")
    assert "hvdtune.core.world" in ours
    assert not ours & SLOW


@pytest.mark.parametrize("job", ["0" * 32, "0" * 300, "é" * 40, "job/ranks=" + "1," * 60])
def test_names_of_meeting_points_are_short_enough(job, monkeypatch):
    """An abstract socket's name has room for 107 bytes, and ranks append their number."""
    monkeypatch.setattr(life, "_generations", {job: 10**9, job[:-1]: 10**9})
    names = {
        life._meeting_point(Topology(0, 2, 0, 2, 0, 1, "here", name, "hvdtune"))
        for name in (job, job[:-1])
    }
    assert len(names) == 2
    assert all(len(f"{name}/127".encode()) <= 107 for name in names)


def test_a_job_of_our_launcher_needs_no_hash():
    place = "Topology(0, 1, 0, 1, 0, 1, 'here', '0' * 32, 'hvdtune')"
    modules = modules_after(
        "from hvdtune.core import job\n"
        "from hvdtune.core.topology import Topology\n"
        "job._generations['0' * 32] = 1\n"
        f"job._meeting_point({place})"
    )
    assert "_hashlib" not in modules - modules_after("pass")
