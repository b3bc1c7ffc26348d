"""`hvdtune run --jsrun`, with programs in the place of LSF's that answer as described."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.hosts.lsf_stand_ins import answers, place
from support.jobs.ranks import clean_environment

# Two nodes, one of them this host: 22 cores for jobs, 4 threads each, 2 GPUs.
TOOLS = {**answers("$NODES", 22), "fake-ssh": 'echo "Thread(s) per core:  4"'}
JSRUN = """#!{python}
import json, os, sys
words = sys.argv[1:]
ranks = open(words[1]).read() if words[0] == "--erf_input" else None
address, port = (os.environ.get("HOROVOD_GLOO_RENDEZVOUS_" + name) for name in ("ADDR", "PORT"))
seen = [words, ranks, len(os.environ["HVDTUNE_SECRET"]), address, port is not None]
json.dump(seen, open({told!r}, "w"))
sys.exit(6)
"""


@pytest.fixture
def lsf(tmp_path: Path):
    """Runs `hvdtune run --jsrun` in a job of LSF's; its result has what jsrun was `told`."""
    jsrun = JSRUN.format(python=sys.executable, told=str(tmp_path / "told"))
    launcher = place(tmp_path, TOOLS, jsrun)

    def run(*words: str, nodes: str = "localhost", **variables: str):
        environment = {
            **{"LSB_JOBID": "1", "CSM_ALLOCATION_ID": "7", "NODES": nodes},
            **{"PATH": f"{tmp_path}:/usr/bin:/bin", "TMPDIR": str(tmp_path)},
            **{"HVDTUNE_SSH_COMMAND": str(tmp_path / "fake-ssh"), **variables},
        }
        ended = subprocess.run(
            [*launcher, *words],
            env=clean_environment(environment), capture_output=True, text=True, check=False,
        )  # fmt: skip
        told = tmp_path / "told"
        return ended, json.loads(told.read_text()) if told.exists() else None

    return run


RANKS = (
    "overlapping_rs: allow\ncpu_index_using: logical\n\n"
    "rank: 0: {{ hostname: {0}; cpu: {{0-43}} ; gpu: * ; mem: * }}\n"
    "rank: 1: {{ hostname: {0}; cpu: {{44-87}} ; gpu: * ; mem: * }}\n"
)


def test_jsrun_is_given_a_file_of_ranks(lsf):
    ended, told = lsf("--mpi-args=-x A", "--tcp", "python", "a b")
    assert (ended.returncode, ended.stderr) == (6, "")
    words, ranks, secret = told[:3]
    assert words[0] == "--erf_input"
    assert words[2:] == ["--smpiargs", "-tcp -x A", "python", "a b"]
    assert ranks == RANKS.format("localhost")
    assert secret == 64
    assert not os.path.exists(words[1])


def test_binding_args_take_the_files_place(lsf):
    _, told = lsf("-np", "1", "--binding-args=-n 1 -a 1", "true", CSM_ALLOCATION_ID="7")
    assert told[:2] == [["-n", "1", "-a", "1", "true"], None]


def test_a_dry_run_shows_the_file(lsf):
    ended, told = lsf("--dry-run", "true", nodes="far2, far1")
    assert told is None
    assert ended.returncode == 0
    lines = ended.stdout.splitlines()
    assert lines[-1] == "jsrun --erf_input RANKFILE true"
    file = [line.removeprefix("# RANKFILE:").removeprefix(" ") for line in lines[:-1]]
    assert "\n".join(file[:5]) + "\n" == RANKS.format("far1")
    assert file[6].startswith("rank: 2: { hostname: far2; cpu: {0-43}")


def test_ranks_on_several_hosts_are_told_where_rank_0_is(lsf):
    ended, told = lsf("true", nodes="localhost, 198.51.100.7")
    assert (ended.returncode, ended.stderr) == (6, "")
    # Sorted by their names.
    assert told[3:] == ["198.51.100.7", True]


def test_ranks_on_one_host_need_no_address(lsf):
    _, told = lsf("true")
    assert told[3:] == [None, False]


def test_what_jsrun_cannot_do_is_said(lsf):
    ended, told = lsf("--prefix-output-with-timestamp", "true")
    assert ended.returncode == 6
    assert ended.stderr == (
        "hvdtune run: --prefix-output-with-timestamp has no effect with jsrun.\n"
    )
    assert told[0][2:] == ["true"]
