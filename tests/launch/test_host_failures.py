"""What can be wrong with a host or the way to it, on hosts of their own: one sentence, in time.

The table in docs/troubleshooting.md has these cases, with how long they took.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rank_programs import launched, training
from support.hosts.hosts_rig import Link, Rig, hosts_rig, why_not
from support.jobs.launcher import wait_until_gone
from support.jobs.ranks import clean_environment, hvdtune_command, start_under

import hvdtune

REASON = why_not()
pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(REASON), reason=REASON)]
SSHD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@pytest.fixture(scope="module")
def rig():
    with hosts_rig(2, Link(rate=100e6)) as running:
        yield running


@pytest.fixture
def environment(rig, tmp_path):
    return rig.environment(tmp_path / "cache")


def start_on_hosta(rig: Rig, environment, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        rig.on("hosta", hvdtune_command("run", "-np", "2", *words)),
        env=clean_environment(environment), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def refusal(rig: Rig, environment, *words: str) -> str:
    """The sentence with which a job ends before anything has been started."""
    (rig.folder / "started").unlink(missing_ok=True)
    process = start_on_hosta(rig, environment, *words, "touch", str(rig.folder / "started"))
    stdout, stderr = process.communicate(timeout=300)
    assert (process.returncode, stdout) == (2, ""), stderr
    assert stderr.count("\n") == 1, stderr
    assert not (rig.folder / "started").exists()
    return stderr.removeprefix("hvdtune run: ")


@contextlib.contextmanager
def in_place_of(rig: Rig, name: str, path: str, content: str) -> Iterator[None]:
    """One host sees another file at a path."""
    subprocess.run(rig.on(name, ["mount", "--bind", content, path]), check=True)
    try:
        yield
    finally:
        subprocess.run(rig.on(name, ["umount", path]), check=True)


def pythons_of(rig: Rig, name: str) -> set[str]:
    """Whatever a command over ssh finds there: a shell's own files may add folders to its path."""
    client = [*rig.client.split(), "-o", "StrictHostKeyChecking=no"]
    ask = [*client, name, "command -v python3; command -v python; true"]
    found = subprocess.run(
        rig.on("hosta", ask), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    every = {sys.executable, *found.stdout.split()}
    every |= {shutil.which(n, path=SSHD_PATH) or "" for n in ("python3", "python")}
    return {os.path.realpath(python) for python in every if python}


def test_a_host_without_python(rig, environment):
    with contextlib.ExitStack() as stack:
        for path in pythons_of(rig, "hostb"):
            stack.enter_context(in_place_of(rig, "hostb", path, "/dev/null"))
        sentence = refusal(rig, environment, "-H", "hosta:1,hostb:1")
    assert sentence == (
        "host hostb: there is no Python: neither this one's path nor python3 nor python.\n"
    )


def test_a_host_with_another_version(rig, environment, tmp_path):
    package = Path(hvdtune.__file__).with_name("version.py")
    other = tmp_path / "other.py"
    own = f'__version__ = "{hvdtune.__version__}"'
    assert own in package.read_text()
    other.write_text(package.read_text().replace(own, '__version__ = "9.9"'))
    with in_place_of(rig, "hostb", str(package), str(other)):
        sentence = refusal(rig, environment, "-H", "hostb:2")
    assert sentence == (
        f"host hostb has hvdtune 9.9, this one {hvdtune.__version__}: install the same version on "
        "both.\n"
    )


def test_a_host_that_is_too_busy_to_answer(rig, environment):
    rig.pause("hostb")
    try:
        sentence = refusal(rig, environment, "-H", "hostb:2", "--start-timeout", "4")
    finally:
        rig.pause("hostb", goes_on=True)
    assert sentence == "host hostb: it did not answer within 4 s (HOROVOD_START_TIMEOUT).\n"


def test_an_interface_that_one_host_lacks(rig, environment):
    link = ["ip", "link", "add", "ib0", "type", "veth", "peer", "name", "ib0-other"]
    subprocess.run(rig.on("hosta", link), check=True)
    try:
        flags = ["-H", "hosta:1,hostb:1", "--network-interfaces", "ib0"]
        sentence = refusal(rig, environment, *flags)
    finally:
        subprocess.run(rig.on("hosta", ["ip", "link", "del", "ib0"]), check=True)
    assert sentence == (
        "--network-interfaces: host hostb has no interface 'ib0'; it has lo, eth0.\n"
    )


def test_a_name_that_nobody_knows(rig, environment):
    sentence = refusal(rig, environment, "-H", "hostb:1,hostz:1")
    assert sentence.startswith("host hostz: no such host is known (")


def test_hosts_with_ipv6_alone(rig, environment):
    if not rig.has_ipv6:
        pytest.skip("this kernel has no IPv6")
    words = ["-H", "hostb6:2", "sh", "-c", 'hostname; echo "$SSH_CONNECTION"']
    process = start_on_hosta(rig, environment, *words)
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    for rank in range(2):
        assert f"[{rank}]<stdout>:hostb\n" in stdout
        assert f"[{rank}]<stdout>:fd77::1 " in stdout


@contextlib.contextmanager
def without_ipv4(rig: Rig) -> Iterator[None]:
    """The hosts know each other by IPv6 alone."""
    places = [(name, f"{rig.address(name)}/24") for name in rig.names]
    for name, address in places:
        subprocess.run(rig.on(name, ["ip", "addr", "del", address, "dev", "eth0"]), check=True)
    try:
        yield
    finally:
        for name, address in places:
            subprocess.run(rig.on(name, ["ip", "addr", "add", address, "dev", "eth0"]), check=True)


@pytest.mark.parametrize(
    ("flags", "plane"),
    [
        (["-H", "hosta6:2,hostb6:1"], ""),
        (["-H", "hostb6:1,hosta6:2", "--network-interfaces", "eth0"], ""),
        (["-H", "hosta6:2,hostb6:1", "--network-interfaces", "eth0"], "GLOO"),
        (["-H", "hostb6:1,hosta6:2"], "GLOO"),
    ],
)
def test_ranks_meet_by_ipv6_alone(rig, environment, flags, plane):
    if not rig.has_ipv6:
        pytest.skip("this kernel has no IPv6")
    if plane and not hvdtune.gloo_built():
        pytest.skip("hvdtune was built without Gloo (Debian: libgloo-dev)")
    chosen = {"HOROVOD_CPU_OPERATIONS": plane} if plane else {}
    command = rig.on("hosta", hvdtune_command("run", "-np", "3", *flags))
    with (
        without_ipv4(rig),
        start_under(command, launched.identity, 3, 2, env={**environment, **chosen}) as ranks,
    ):
        result = ranks.wait()
    assert [answer["rank"] for answer in result.values] == [0, 1, 2]
    assert all(answer["sums"] == {9.0} for answer in result.values)


def test_a_host_that_is_another_one_now(rig, environment):
    """Half-open connections: what answers at the host's address, as after a power cut, does not
    know of them, and nobody has ended them."""
    command = hvdtune_command("run", "-np", "2", "-H", "hosta:1,hostb:1")
    options = {**environment, "HVDTUNE_SSH_COMMAND": f"{rig.client} -o ServerAliveInterval=60"}
    program = training.train_or_fail
    there = 0
    with start_under(rig.on("hosta", command), program, "small", -1, env=options) as job:
        try:
            job.wait_for_output(0, "[0]<stdout>:running")
            job.wait_for_output(0, "[1]<stdout>:running ")
            there = int(job.stdout(0).split("[1]<stdout>:running ", 1)[1].split()[0])
            with rig.replaced("hostb"):
                result = job.wait(90, check=False)
        finally:
            if there:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(there, signal.SIGKILL)
    assert result[0].returncode != 0
    # Whichever is the first to send there: rank 0, or the launcher, which then ends rank 0.
    broke = rf"the connection between rank 0 and rank 1 \(pid {there} on hostb\) broke: "
    closed = "(it closed the connection|Connection reset by peer)"
    assert re.search(f"{broke}{closed}|connection to hostb has ended", result.describe())
    wait_until_gone([there])


COUNT = "for number in range(200):\n    print('count', number, flush=True)\n    time.sleep(0.05)\n"


def test_a_network_that_is_cut_and_heals(rig, environment, tmp_path):
    """TCP carries on, and nothing of what was printed meanwhile is lost."""
    worker = tmp_path / "worker.py"
    worker.write_text(f"import time\n{COUNT}")
    process = start_on_hosta(rig, environment, "-H", "hostb:2", sys.executable, str(worker))
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        rig.cut("hostb")
        time.sleep(5)
        rig.cut("hostb", connected=True)
        # Not communicate(): readline() may have taken more than one line from the pipe.
        stdout, stderr = process.stdout.read(), process.stderr.read()
        process.wait()
    finally:
        rig.cut("hostb", connected=True)
        process.kill()
        process.communicate()
    assert process.returncode == 0, stderr
    assert stderr == ""
    lines = (first + stdout).splitlines()
    for rank in range(2):
        own = [line for line in lines if line.startswith(f"[{rank}]")]
        assert own == [f"[{rank}]<stdout>:count {number}" for number in range(200)]
