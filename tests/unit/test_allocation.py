"""What batch systems say about their allocations."""

import re
import stat

import pytest

from hvdtune.core.topology import detect
from hvdtune.launch.allocation import lsf
from hvdtune.launch.allocation.batch_system import allocation
from hvdtune.launch.allocation.hosts import Host, assign_ranks
from hvdtune.launch.allocation.slurm import expand_nodelist
from hvdtune.launch.errors import LaunchError
from hvdtune.launch.external import jsrun
from hvdtune.launch.remote.ssh import Ssh


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node7", ["node7"]),
        ("a,b.example,c-1", ["a", "b.example", "c-1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-11,7]", ["n08", "n09", "n10", "n11", "n7"]),
        ("gpu[001-002]-x,login,n[5]", ["gpu001-x", "gpu002-x", "login", "n5"]),
        ("r[1-2]c[3,5-6]", ["r1c3", "r1c5", "r1c6", "r2c3", "r2c5", "r2c6"]),
        ("[1-2]", ["1", "2"]),
        ("n[99-101]", ["n99", "n100", "n101"]),
    ],
)
def test_lists_of_nodes(text, names):
    assert list(expand_nodelist(text)) == names


@pytest.mark.parametrize(
    "text", ["", ",", "n[1-3", "n[3-1]", "n[a-b]", "n[]", "n 1", "n]1[", "n[1"]
)
def test_what_is_no_list_of_nodes(text):
    with pytest.raises(LaunchError, match="the list of nodes"):
        list(expand_nodelist(text))


def test_a_list_of_nodes_without_end():
    with pytest.raises(LaunchError, match="more than 100000"):
        list(expand_nodelist("n[1-99999999999]"))


SBATCH = {
    "SLURM_JOB_ID": "17",
    "SLURM_JOB_NODELIST": "n[1-3]",
    "SLURM_TASKS_PER_NODE": "4(x2),2",
    "SLURM_NTASKS": "10",
}


def test_a_slurm_allocation():
    ours = allocation(SBATCH)
    assert ours.hosts == [Host("n1", 4), Host("n2", 4), Host("n3", 2)]
    assert ours.processes == 10


def test_what_slurm_may_leave_out():
    assert allocation({}) is None
    assert allocation({"SLURM_JOB_NODELIST": "n1"}) is None
    alone = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[1-2]"}
    assert allocation(alone) == ([Host("n1", 1), Host("n2", 1)], 2)
    assert allocation({**SBATCH, "SLURM_NTASKS": "3"}).processes == 3
    # The batch script itself is a step, too, with a number of its own.
    batch = {**SBATCH, "SLURM_STEP_ID": str(0xFFFFFFFB), "SLURM_STEP_NUM_TASKS": "10"}
    assert allocation(batch).processes == 10


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"SLURM_TASKS_PER_NODE": "4(x2)"}, "which names 3 nodes: give the hosts with -H"),
        ({"SLURM_TASKS_PER_NODE": "four"}, "SLURM_TASKS_PER_NODE='four' does not fit"),
        (
            {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "10"},
            "one of the 10 tasks of an srun step",
        ),
    ],
)
def test_a_slurm_allocation_that_cannot_be_used(changes, words):
    with pytest.raises(LaunchError) as error:
        allocation({**SBATCH, **changes})
    assert words in str(error.value)


def test_pmi2_under_slurm_knows_its_hosts():
    task = {
        **{"PMI_RANK": "5", "PMI_SIZE": "10", "SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0"},
        **{"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"},
        "SLURM_STEP_TASKS_PER_NODE": "4(x2),2",
    }
    found = detect(task)
    assert found[:6] == (5, 10, 1, 4, 1, 3)
    assert found.launcher == "pmi"
    # A variable of the allocation says nothing about a process that mpiexec started.
    assert detect({**task, "SLURM_PROCID": "0"})[:4] == (5, 10, 5, 10)


# ---- LSF ----


def test_lsfs_own_list_of_hosts():
    environment = {"LSB_JOBID": "3", "LSB_MCPU_HOSTS": "a 4 b 2"}
    assert allocation(environment) == ([Host("a", 4), Host("b", 2)], 6)
    for text in ("", "a", "a 4 b", "a x"):
        with pytest.raises(LaunchError, match="LSB_MCPU_HOSTS="):
            allocation({**environment, "LSB_MCPU_HOSTS": text})


@pytest.mark.parametrize("name", ["-oProxyCommand=true", "a;b", "$(a)"])
def test_names_of_an_allocation_must_be_names(name):
    environment = {"LSB_JOBID": "3", "LSB_MCPU_HOSTS": f"a 4 {name} 2"}
    words = f"the allocation of LSF: {name!r} is not the name of a host"
    with pytest.raises(LaunchError, match=re.escape(words)):
        allocation(environment)


def test_names_of_slurms_nodes_must_be_names():
    environment = {"SLURM_JOB_ID": "3", "SLURM_JOB_NODELIST": "a,-oProxyCommand"}
    with pytest.raises(LaunchError, match="Slurm: '-oProxyCommand' is not the name of a host"):
        allocation(environment)


def tool(folder, name, text):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.fixture
def summit(tmp_path, monkeypatch):
    """Two nodes as IBM's tools describe them: 42 cores for jobs, 4 threads each, 6 GPUs."""
    query = 'echo "---"; echo "compute_nodes: [n2, n1]"; echo "isolated_cores: 1"'
    node = (
        '[ "$2" = n1 ] && printf "Record_1:\\n  discovered_cores: 44\\n  discovered_sockets: 2\\n'
        '  discovered_gpus: 6\\n"'
    )
    monkeypatch.setattr(lsf, "ALLOCATION_QUERY", tool(tmp_path, "allocation", query))
    monkeypatch.setattr(lsf, "NODE_QUERY", tool(tmp_path, "node", node))
    tool(tmp_path, "jsrun", "exit 9")
    # As every ssh here: it asks for nothing, and reaches the port with the key that it is given.
    lscpu = (
        'case "$*" in *"BatchMode=yes n1 -p 2222 -i key"*" LC_ALL=C lscpu") '
        'echo "Thread(s) per core:  4";; esac'
    )
    environment = {"LSB_JOBID": "3", "CSM_ALLOCATION_ID": " 8 ", "PATH": str(tmp_path)}
    return environment, Ssh(tool(tmp_path, "ssh", lscpu), 2222, "key")


def test_a_csm_allocation(summit):
    environment, ssh = summit
    assert allocation(environment) == ([Host("n1", 6), Host("n2", 6)], 12)
    assert jsrun.node_of(environment, ssh) == (168, 6)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("allocation", "echo none >&2; exit 3", "allocation failed with exit code 3 (none)"),
        ("allocation", "echo 'compute_nodes: []'", "names no compute nodes of allocation 8"),
        ("node", "echo '{'", "node does not say discovered_cores"),
        ("ssh", "echo Model: x", "lscpu does not say Thread(s) per core"),
    ],
)
def test_tools_that_do_not_answer_as_expected(tmp_path, summit, name, text, words):
    environment, ssh = summit
    tool(tmp_path, name, text)
    with pytest.raises(LaunchError) as error:
        jsrun.node_of(environment, ssh)
    assert words in str(error.value)


def test_jsruns_rankfile():
    hosts = [Host("n1", 2), Host("n2", 6)]
    text = jsrun.rankfile(assign_ranks(hosts, 3), hosts, jsrun.Node(cpus=168, gpus=6))
    assert text == (
        "overlapping_rs: allow\n"
        "cpu_index_using: logical\n"
        "\n"
        "rank: 0: { hostname: n1; cpu: {0-27} ; gpu: * ; mem: * }\n"
        "rank: 1: { hostname: n1; cpu: {28-55} ; gpu: * ; mem: * }\n"
        "\n"
        "rank: 2: { hostname: n2; cpu: {0-27} ; gpu: * ; mem: * }\n"
    )
    with pytest.raises(LaunchError, match="host n2 has 6 slots, more than its 4 GPUs"):
        jsrun.rankfile(assign_ranks(hosts, 3), hosts, jsrun.Node(cpus=168, gpus=4))


def test_jsruns_command():
    job = jsrun.JsrunJob(command=["python", "a b"], rankfile="ranks")
    assert jsrun.compose(job) == ["jsrun", "--erf_input", "ranks", "python", "a b"]
    job = job._replace(binding_args="-n 2 -r '1'", output_file="o", tcp=True, mpi_args="-x A")
    assert jsrun.compose(job) == [
        *("jsrun", "-n", "2", "-r", "1", "--stdio_stderr", "o", "--stdio_stdout", "o"),
        *("--smpiargs", "-tcp -x A", "python", "a b"),
    ]


def test_where_jsrun_cannot_be_used(summit, tmp_path):
    environment, ssh = summit
    jsrun.require_jsrun(environment)
    with pytest.raises(LaunchError, match="LSB_JOBID is not set"):
        jsrun.require_jsrun({"PATH": environment["PATH"]})
    (tmp_path / "jsrun").unlink()
    with pytest.raises(LaunchError, match="no jsrun was found"):
        jsrun.require_jsrun(environment)
    with pytest.raises(LaunchError, match="say where the processes go with --binding-args"):
        jsrun.node_of({"LSB_JOBID": "3"}, ssh)


def test_blaunch_has_none_of_sshs_options():
    assert Ssh("blaunch -n").reach("a", "exec true") == ["blaunch", "-n", "a", "exec true"]
    for ssh in (Ssh("/lsf/bin/blaunch", port=22), Ssh("blaunch", identity_file="key")):
        with pytest.raises(LaunchError, match="blaunch takes no port and no key"):
            ssh.reach("a", "exec true")


def test_a_command_that_cannot_be_split():
    with pytest.raises(LaunchError, match="HVDTUNE_SSH_COMMAND is 'ssh \"', which cannot be split"):
        Ssh('ssh "').reach("a", "exec true")
