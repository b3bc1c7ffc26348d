"""LSF on two hosts, with programs in the place of its own that start the ranks.

In the place of jsrun, what its manual says: every rank of the file on its host, with the
environment of the caller and the place in Spectrum MPI's variables. In the place of blaunch, what
its manual says: a shell on the host runs the command, as if rsh had been called.
"""

from __future__ import annotations

import os
import shlex
import sys

import pytest
from rank_programs import launched
from support.hosts.hosts_rig import hosts_rig, why_not
from support.hosts.lsf_stand_ins import answers, place
from support.jobs.ranks import hvdtune_command, start_under

REASON = why_not()
pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(REASON), reason=REASON)]
TOOLS = {**answers("hosta, hostb", 4), "lscpu-there": 'echo "Thread(s) per core:  1"'}
JSRUN = """#!{python}
import json, os, re, shlex, subprocess, sys
START = (
    "import json, os, sys; os.environ.update(json.load(open(sys.argv[1]))); "
    "os.environ.update(word.split('=') for word in sys.argv[2].split()); "
    "os.execvp(sys.argv[3], sys.argv[3:])"
)
assert sys.argv[1] == "--erf_input"
places = re.findall(r"^rank: (\\d+): {{ hostname: (\\S+);", open(sys.argv[2]).read(), re.M)
with open({folder!r} + "/environment", "w") as file:
    json.dump(dict(os.environ), file)
started, there = [], {{}}
for rank, host in places:
    local = there[host] = there.get(host, -1) + 1
    size = sum(other == host for _, other in places)
    place = f"OMPI_COMM_WORLD_RANK={{rank}} OMPI_COMM_WORLD_SIZE={{len(places)}} "
    place += f"OMPI_COMM_WORLD_LOCAL_RANK={{local}} OMPI_COMM_WORLD_LOCAL_SIZE={{size}}"
    words = [sys.executable, "-c", START, file.name, place, *sys.argv[3:]]
    started.append(subprocess.Popen([*{client!r}, host, shlex.join(words)]))
sys.exit(max([one.wait() for one in started]))
"""


@pytest.fixture(scope="module")
def rig():
    with hosts_rig(2) as running:
        yield running


def test_a_job_on_two_hosts(rig, tmp_path):
    client = [*shlex.split(rig.client), "-o", "StrictHostKeyChecking=no"]
    jsrun = JSRUN.format(python=sys.executable, folder=str(tmp_path), client=client)
    launcher = place(tmp_path, TOOLS, jsrun)
    environment = {
        **rig.environment(tmp_path / "cache"),
        **{"LSB_JOBID": "1", "CSM_ALLOCATION_ID": "7", "HOROVOD_CYCLE_TIME": "3"},
        **{"HVDTUNE_SSH_COMMAND": str(tmp_path / "lscpu-there")},  # for nothing else
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }
    command = rig.on("hosta", launcher)
    with start_under(command, launched.told, "HOROVOD_CYCLE_TIME", env=environment) as ranks:
        values = ranks.wait().values
    assert [value["host"] for value in values] == ["hosta", "hosta", "hostb", "hostb"]
    assert [value["rank"] for value in values] == [0, 1, 2, 3]
    assert all(value["sum"] == 6.0 for value in values)
    assert all(value["variables"] == {"HOROVOD_CYCLE_TIME": "3"} for value in values)


def test_ranks_that_blaunch_starts(rig, tmp_path):
    cases = [
        f'{name}) exec {shlex.join(rig.on(name, []))} /bin/sh -c "$*" ;;' for name in rig.names
    ]
    lines = ["#!/bin/sh", "host=$1", "shift", "case $host in", *cases, "esac", "exit 1"]
    (tmp_path / "blaunch").write_text("\n".join(lines) + "\n")
    (tmp_path / "blaunch").chmod(0o755)
    environment = {
        **{"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "hosta 2 hostb 2", "HOROVOD_CYCLE_TIME": "3"},
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    command = rig.on("hosta", hvdtune_command("run", "--ssh-command", "blaunch"))
    with start_under(command, launched.told, "HOROVOD_CYCLE_TIME", env=environment) as ranks:
        values = ranks.wait().values
    assert [value["host"] for value in values] == ["hosta", "hosta", "hostb", "hostb"]
    assert all(value["sum"] == 6.0 for value in values)
    assert all(value["variables"] == {"HOROVOD_CYCLE_TIME": "3"} for value in values)
