"""`hvdtune run` between hosts that do not share memory; see tests/support/hosts/hosts_rig.py."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rank_programs import digits, launched, training
from rank_programs import hosts as programs
from support.hosts.hosts_rig import Link, hosts_rig, why_not
from support.jobs.launcher import PRELUDE, SLEEP, wait_until_gone
from support.jobs.ranks import (
    clean_environment,
    hvdtune_command,
    run_ranks,
    start_under,
    tool,
)

import hvdtune

REASON = why_not()
pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(REASON), reason=REASON)]


PLANES = ["", "GLOO"]


def require_gloo(plane):
    if plane and not hvdtune.gloo_built():
        pytest.skip("hvdtune was built without Gloo (Debian: libgloo-dev)")


@pytest.fixture(scope="module")
def rig():
    with hosts_rig(3, Link(rate=100e6)) as running:
        yield running


@pytest.fixture
def environment(rig, tmp_path):
    return rig.environment(tmp_path / "cache")


def run_on(rig, name, command, environment):
    return subprocess.run(
        rig.on(name, command),
        env=clean_environment(environment), capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL, timeout=120,
    )  # fmt: skip


def test_the_hosts_are_hosts(rig, environment):
    """Names, addresses and rates of their own, and a network between them."""
    for name in rig.names:
        shown = run_on(rig, name, ["hostname"], environment)
        assert shown.stdout == f"{name}\n"
        assert "tbf" in rig.shaping(name)
        assert "rate 100Mbit" in rig.shaping(name)
    assert os.uname().nodename not in rig.names
    before = rig.sent_bytes("hostb")
    sender = f"{rig.client} -o StrictHostKeyChecking=no hostb head -c 1000000 /dev/zero"
    shown = run_on(rig, "hosta", ["sh", "-c", f"{sender} | wc -c"], environment)
    assert shown.stdout.strip() == "1000000"
    assert rig.sent_bytes("hostb") - before > 1_000_000


CALL = """
import os, sys
from hvdtune import run

def sizes(data):
    import hvdtune
    hvdtune.init()
    total = hvdtune.allreduce(data, op=hvdtune.Sum)
    return hvdtune.rank(), os.uname().nodename, float(total[-1])

import numpy
data = numpy.full(500_000, 2.0)
print(run(sizes, (data,), num_proc=3, hosts="hosta:1,hostb:1,hostc:1", **eval(sys.argv[1])))
"""


@pytest.mark.parametrize("arguments", [{}, {"min_num_proc": 3}], ids=["fixed", "elastic"])
def test_a_function_on_three_hosts(rig, environment, tmp_path, arguments):
    (tmp_path / "script.py").write_text(CALL, encoding="utf-8")
    shown = run_on(
        rig,
        "hosta",
        [sys.executable, str(tmp_path / "script.py"), repr(arguments)],
        environment,
    )
    assert shown.returncode == 0, shown.stderr
    expected = [(rank, f"host{letter}", 6.0) for rank, letter in enumerate("abc")]
    assert shown.stdout == f"{expected}\n"


SLOW = Link(rate=100e6, delay=0.02, loss=0.001)
SERVE = """
import socket
with socket.create_server(("", 7000)) as server:
    print("serving", flush=True)
    peer = server.accept()[0]
    while data := peer.recv(65536):
        peer.sendall(data)
"""
ASK = """
import socket, time
with socket.create_connection(("hostb", 7000)) as peer:
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times = []
    for _ in range(5):
        begin = time.monotonic()
        peer.sendall(b"x")
        peer.recv(1)
        times.append(time.monotonic() - begin)
    peer.sendall(bytes(100_000))
    got = 0
    while got < 100_000:
        got += len(peer.recv(65536))
    print(min(times))
"""


@pytest.mark.skipif(bool(why_not(SLOW)), reason=why_not(SLOW) or "-")
def test_links_that_are_slow_and_lose_frames(tmp_path):
    with hosts_rig(2, SLOW) as rig:
        command = rig.on("hostb", [sys.executable, "-c", SERVE])
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                assert server.stdout.readline() == "serving\n"
                shown = run_on(rig, "hosta", [sys.executable, "-c", ASK], {})
            finally:
                server.kill()
        # Not how fast it is, but that nothing is faster than the link allows.
        assert float(shown.stdout) >= 2 * SLOW.delay

        def reach(seconds):
            options = f"-o ConnectTimeout={seconds} -o StrictHostKeyChecking=no"
            return run_on(rig, "hosta", [*f"{rig.client} {options} hostb hostname".split()], {})

        rig.cut("hostb")
        assert reach(1).returncode == 255
        rig.cut("hostb", connected=True)
        assert reach(30).stdout == "hostb\n"


@pytest.mark.parametrize("target", ["hosta", "hostb"])
def test_a_job_on_one_host(rig, environment, target):
    """The launcher may be on another one."""
    command = rig.on("hosta", hvdtune_command("run", "-np", "2", "-H", f"{target}:2"))
    with start_under(command, launched.identity, 3, 10, env=environment) as ranks:
        result = ranks.wait()
    assert [answer["rank"] for answer in result.values] == [0, 1]
    assert all(answer["sums"] == {6.0} for answer in result.values)


def ssh_agent(rig):
    """For mpirun's plm_ssh_agent."""
    return f"{rig.client} -o StrictHostKeyChecking=no"


def run_by_mpi(rig, environment, hosts):
    """The answers of two ranks of `hvdtune run --mpi`."""
    flags = ["--mpi", "-H", hosts, f"--mpi-args=--mca plm_ssh_agent '{ssh_agent(rig)}'"]
    path = f"{Path(tool('mpirun')).parent}:{os.environ['PATH']}"
    command = rig.on("hosta", hvdtune_command("run", "-np", "2", *flags))
    with start_under(command, launched.identity, 3, 10, env={**environment, "PATH": path}) as ranks:
        return ranks.wait().values


def test_mpirun_starts_a_job_on_another_host(rig, environment):
    answers = run_by_mpi(rig, environment, "hostb:2")
    assert [answer["local"] for answer in answers] == [(0, 2), (1, 2)]
    assert all(answer["sums"] == {6.0} for answer in answers)


def mpirun_across(rig, *more):
    words = ["--allow-run-as-root", "-np", "2", "-H", "hosta:1,hostb:1"]
    words += ["--mca", "plm_ssh_agent", ssh_agent(rig), "-x", "PYTHONPATH", *more]
    return rig.on("hosta", [tool("mpirun"), *words])


def test_mpirun_across_hosts_with_what_the_user_tells(rig, environment):
    told = {
        "HVDTUNE_SECRET": "of this test",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": rig.address("hosta"),
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "20417",
    }
    command = mpirun_across(rig, *(word for name in told for word in ("-x", name)))
    with start_under(command, launched.identity, 3, 10, env={**environment, **told}) as ranks:
        result = ranks.wait()
    assert all(answer["sums"] == {6.0} for answer in result.values)


def test_our_mpirun_across_hosts(rig, environment):
    answers = run_by_mpi(rig, environment, "hosta:1,hostb:1")
    assert len(answers) == 2
    assert all(answer["sums"] == {6.0} for answer in answers)


def test_a_worker_is_where_it_should_be(rig, environment):
    command = hvdtune_command("run", "-np", "2", "-H", "hostc:2", "sh", "-c", "hostname; ss -Hltn")
    shown = run_on(rig, "hosta", command, environment)
    assert shown.returncode == 0, shown.stderr
    for rank in range(2):
        assert f"[{rank}]<stdout>:hostc\n" in shown.stdout


def test_port_and_key(rig, environment):
    client = f"ssh -F none -o IdentitiesOnly=yes -o UserKnownHostsFile={rig.folder}/known"
    key = str(rig.folder / "key")
    flags = ["-np", "1", "-H", "hostb:1", "--ssh-command", client]

    def run(*more):
        command = hvdtune_command("run", *flags, *more, "hostname")
        return run_on(rig, "hosta", command, environment)

    assert run("-p", "22", "-i", key).stdout == "[0]<stdout>:hostb\n"
    refused = run("-p", "23", "-i", key)
    assert refused.returncode == 2
    assert (
        "hvdtune run: host hostb: ssh failed (ssh: connect to host hostb port 23" in refused.stderr
    )
    refused = run("-i", str(rig.folder / "wrong_key"))
    assert refused.returncode == 2
    assert "hvdtune run: host hostb: ssh asks for a password or passphrase" in refused.stderr


@pytest.mark.parametrize(
    "hosts", ["hosta:2,hostb:2", "hostb:2,hosta:2", "hostb:1,hostc:3", "hosta:1,hostb:1,hostc:2"]
)
def test_a_job_across_hosts(rig, environment, hosts):
    """Rank 0 is on the launcher's host, or on another one."""
    command = rig.on("hosta", hvdtune_command("run", "-np", "4", "-H", hosts))
    with start_under(command, launched.identity, 3, 10, env=environment) as ranks:
        result = ranks.wait()
    assert [answer["rank"] for answer in result.values] == [0, 1, 2, 3]
    assert all(answer["sums"] == {12.0} for answer in result.values)
    assert all(answer["gathered"] == [0, 1, 2, 3] for answer in result.values)


@pytest.mark.parametrize("plane", PLANES)
def test_the_chosen_interface_is_used(rig, environment, plane):
    require_gloo(plane)
    flags = ["-H", "hosta:1,hostb:1", "--network-interfaces", "eth0"]
    command = rig.on("hosta", hvdtune_command("run", "-np", "2", *flags))
    env = {**environment, "HOROVOD_CPU_OPERATIONS": plane}
    with start_under(command, launched.identity, 3, 2, env=env) as ranks:
        result = ranks.wait()
    assert all(answer["sums"] == {6.0} for answer in result.values)


def test_hosts_that_go_first_send_as_one_rank_each(rig, environment):
    """2(h-1)/h of the message, of h hosts: counted on their interfaces."""
    size = 10_000_000

    def sent(*flags):
        before = [rig.sent_bytes(name) for name in ("hosta", "hostb")]
        flags = ("-np", "4", "-H", "hosta:2,hostb:2", *flags)
        command = rig.on("hosta", hvdtune_command("run", *flags))
        with start_under(command, programs.sums_of, size // 4, 1, env=environment) as ranks:
            ranks.wait()
        after = [rig.sent_bytes(name) for name in ("hosta", "hostb")]
        return [end - begin for begin, end in zip(before, after, strict=True)]

    # The bytes of the tensor, and 5 % for what carries them.
    assert all(size <= count <= 1.05 * size for count in sent("--hierarchical-allreduce"))
    # All with all, as much for each of its ranks.
    assert all(count >= 2 * size for count in sent())


def test_digits_end_with_the_same_weights_as_on_one_host(rig, environment, tmp_path):
    """And the losses of all steps on the way are the same, bit for bit."""
    logs = tmp_path / "one host", tmp_path / "two hosts"
    alone = run_ranks(3, digits.train, 1, "--loss-log", str(logs[0])).values[0]["printed"]
    flags = ["-np", "3", "-H", "hosta:2,hostb:1", sys.executable, str(digits.EXAMPLE)]
    flags += ["--epochs", "1", "--loss-log", str(logs[1])]
    shown = run_on(rig, "hosta", hvdtune_command("run", *flags), environment)
    assert shown.returncode == 0, shown.stderr
    [accuracy] = [line for line in alone.splitlines() if "final test accuracy" in line]
    assert accuracy in shown.stdout
    first, second = (log.read_text() for log in logs)
    assert first == second
    assert len(first.splitlines()) > 20


def test_a_host_of_several_vanishes(rig, environment):
    """Of all that is left, the ranks on the other host learn that it has gone; over each plane."""
    command = rig.on("hosta", hvdtune_command("run", "-np", "2", "-H", "hosta:1,hostb:1"))
    environment["HVDTUNE_SSH_COMMAND"] = f"{rig.client} -o ServerAliveInterval=60"
    there, results = [], []
    with contextlib.ExitStack() as stack:
        jobs = []
        for plane in PLANES if hvdtune.gloo_built() else PLANES[:1]:
            options = {**environment, "HOROVOD_CPU_OPERATIONS": plane}
            job = start_under(command, training.train_or_fail, "small", -1, env=options)
            jobs.append(stack.enter_context(job))
        for job in jobs:
            job.wait_for_output(0, "[0]<stdout>:running")
            job.wait_for_output(0, "[1]<stdout>:running ")
            there.append(int(job.stdout(0).split("[1]<stdout>:running ", 1)[1].split()[0]))
        rig.cut("hostb")
        try:
            results = [job.wait(90, check=False) for job in jobs]
        finally:
            rig.cut("hostb", connected=True)
            for pid in there:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    for result in results:
        assert result[0].returncode != 0
        assert "rank 1 (pid " in result.describe()
        assert "has not answered for 20 s" in result.describe()
    wait_until_gone(there)


def test_other_hosts_are_others_where_any_address_can_be_bound(rig, environment):
    """As keepalived's hosts have it."""
    code = (
        "from hvdtune.launch.allocation.hosts import is_local\n"
        "names = ['localhost', '127.0.0.2', 'hosta', '10.77.0.1', 'hostb', '10.77.0.2']\n"
        "print([is_local(name) for name in names])"
    )
    switch = "/proc/sys/net/ipv4/ip_nonlocal_bind"
    shown = run_on(rig, "hosta", ["sh", "-c", f"echo 1 > {switch} && cat {switch}"], environment)
    if shown.stdout != "1\n":
        pytest.skip(f"{switch} cannot be set here")
    try:
        shown = run_on(rig, "hosta", [sys.executable, "-c", code], environment)
    finally:
        run_on(rig, "hosta", ["sh", "-c", f"echo 0 > {switch}"], environment)
    assert shown.stdout == "[True, True, True, True, False, False]\n", shown.stderr


def test_a_host_that_is_not_there(rig, environment):
    rig.cut("hostc")
    try:
        flags = ["--ssh-command", f"{rig.client} -o ConnectTimeout=1"]
        command = hvdtune_command("run", "-np", "2", "-H", "hostb:1,hostc:1", *flags, "true")
        shown = run_on(rig, "hosta", command, environment)
    finally:
        rig.cut("hostc", connected=True)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr.count("\n") == 1
    assert shown.stderr.startswith(
        "hvdtune run: host hostc: ssh failed (ssh: connect to host hostc"
    )


def test_a_host_that_vanishes(rig, environment, tmp_path):
    """Nobody says that it has gone; ssh notices, and the launcher says so."""
    worker = tmp_path / "worker.py"
    worker.write_text(PRELUDE + SLEEP)
    options = "-o ServerAliveInterval=1 -o ServerAliveCountMax=2 -o LogLevel=INFO"
    flags = ["--ssh-command", f"{rig.client} {options}", "-H", "hostb:2"]
    command = hvdtune_command("run", "-np", "2", *flags, "python3", str(worker))
    process = subprocess.Popen(
        rig.on("hosta", command),
        env=clean_environment(environment), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    pids = []
    try:
        assert process.stdout is not None
        while len(pids) < 2:
            line = process.stdout.readline()
            assert line, process.communicate()
            if "<stdout>:pid " in line:
                pids.append(int(line.rpartition(" ")[2]))
        rig.cut("hostb")
        _, errors = process.communicate(timeout=120)
    finally:
        rig.cut("hostb", connected=True)
        process.kill()
        process.wait()
        for pid in pids:
            # They were cut off, and may not know it yet.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert process.returncode == 255
    assert " on hostb) was lost: the ssh connection to hostb has ended (" in errors
    wait_until_gone(pids)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_hosts_that_are_ended_leave_nothing(tmp_path, number):
    """Namespaces, sshds, and what ran on the hosts."""
    program = Path(__file__).parents[1] / "support" / "hosts" / "hosts_rig.py"
    script = (
        f"echo $$ > {tmp_path}/pid.tmp && mv {tmp_path}/pid.tmp {tmp_path}/pid && exec sleep 600"
    )
    process = subprocess.Popen(
        [sys.executable, str(program), "--hosts", "2", "--", "sh", "-c", script],
        env=clean_environment(), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # nohup has tests ignore SIGHUP
    )  # fmt: skip
    try:
        while not (tmp_path / "pid").exists():
            assert process.poll() is None
            time.sleep(0.02)
        pid = int((tmp_path / "pid").read_text())
        [space] = said_by_ip("identify", str(pid))
        assert space.endswith("-hosta")
        rig = space.removesuffix("hosta")
        assert sum(name.startswith(rig) for name in said_by_ip("list")) == 3
        process.send_signal(number)
        assert process.wait(120) != 0
    finally:
        process.kill()
        process.wait()
    assert not any(name.startswith(rig) for name in said_by_ip("list"))
    wait_until_gone([pid])


def said_by_ip(*words):
    shown = subprocess.run(["ip", "netns", *words], capture_output=True, text=True, check=True)
    return [line.split()[0] for line in shown.stdout.splitlines()]
