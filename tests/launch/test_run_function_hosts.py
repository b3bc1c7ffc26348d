"""`hvdtune.run(function)` on other hosts, over real ssh to this machine, and under mpirun."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import tempfile
import threading

import numpy as np
import psutil
import pytest
from rank_programs.functions import failing, summed
from support.hosts import ssh_server
from support.jobs.launcher import wait_until_gone

from hvdtune.launch.errors import FAILED
from hvdtune.launch.function.call_site import run
from hvdtune.launch.function.exchange import Exchange, Worker
from hvdtune.launch.remote.frames import Kind

needs_ssh = pytest.mark.skipif(bool(ssh_server.why_not()), reason=ssh_server.why_not())
needs_mpirun = pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ssh_server.ssh_server(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture
def by_ssh(server, tmp_path, monkeypatch):
    """The launcher reaches any name with ssh, and finds this machine; it remembers nothing."""
    monkeypatch.setenv("HVDTUNE_SSH_COMMAND", server.client)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@needs_ssh
def test_results_of_other_hosts_come_back_by_rank(by_ssh):
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    # Larger than a frame, both ways.
    array = np.arange(700_000, dtype=np.float64)
    found = run(summed, (array,), num_proc=3, hosts="localhost:1,nodea:2")
    assert [rank for _, rank, _, _ in found] == [0, 1, 2]
    assert [host for _, _, host, _ in found] == ["localhost", "nodea", "nodea"]
    for total, _, _, sees_key in found:
        np.testing.assert_array_equal(total, array * 6)
        assert not sees_key
    after = {child.pid for child in psutil.Process().children(recursive=True)}
    wait_until_gone(sorted(after - before))


@needs_ssh
def test_a_failure_on_another_host_is_named(by_ssh):
    with pytest.raises(RuntimeError, match=rf"{FAILED}: rank 1 \(pid \d+ on nodea\)") as raised:
        run(failing, num_proc=2, hosts="nodea:2")
    assert "LookupError: no such batch" in str(raised.value)


@needs_ssh
def test_a_host_that_cannot_be_reached(by_ssh, monkeypatch):
    monkeypatch.setenv("HVDTUNE_SSH_COMMAND", "false")
    with pytest.raises(RuntimeError, match="nodea"):
        run(failing, num_proc=1, hosts="nodea:1")


@needs_ssh
def test_an_elastic_job_on_discovered_hosts(by_ssh):
    array = np.ones(4)
    found = run(summed, (array,), num_proc=2, min_num_proc=2, host_discovery_script="echo nodea:2")
    assert [rank for _, rank, _, _ in found] == [0, 1]
    assert [host for _, _, host, _ in found] == ["nodea"] * 2
    np.testing.assert_array_equal(found[1][0], array * 3)


@needs_mpirun
def test_mpirun_starts_the_workers():
    found = run(summed, (np.ones(3),), num_proc=2, use_mpi=True)
    assert [rank for _, rank, _, _ in found] == [0, 1]
    np.testing.assert_array_equal(found[0][0], np.full(3, 3.0))


@needs_mpirun
def test_a_failure_under_mpirun():
    # Horovod's words.
    with pytest.raises(RuntimeError, match="mpirun failed with exit code"):
        run(failing, num_proc=2, use_mpi=True)


# ---- the exchange ----


@pytest.fixture
def files():
    with tempfile.TemporaryFile() as call, tempfile.TemporaryFile() as result:
        call.write(b"the call")
        call.flush()
        yield call, result


def content(file) -> bytes:
    file.seek(0)
    return file.read()


def test_the_last_complete_result_of_a_rank_counts(files):
    call, result = files
    exchange = Exchange(call, [result])
    first = Worker(exchange.port, ["127.0.0.1"], exchange.key)
    second = Worker(exchange.port, ["127.0.0.1"], exchange.key)
    assert first.call().read() == second.call().read() == b"the call"
    first.send(0, b"a long result " * 200_000)
    second.send(0, b"short")
    assert content(result) == b"short"
    # Half of a result, then the worker is gone; and a rank whose result nobody needs.
    first._link.send(Kind.RESULT, 0, b"half")
    first.close()
    second.send(1, b"surplus")
    second.close()
    exchange.close()
    assert content(result) == b"short"


def test_strangers_get_nothing(files):
    exchange = Exchange(files[0], [files[1]])
    with pytest.raises(OSError, match=r"answers at none of 127\.0\.0\.1"):
        Worker(exchange.port, ["127.0.0.1"], secrets.token_hex(32))
    with socket.create_connection(("127.0.0.1", exchange.port), timeout=5) as stranger:
        # The listener ends although this connection says nothing.
        exchange.close()
        stranger.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(4096):
                pass


def test_a_worker_takes_nothing_from_who_does_not_know_the_key():
    """Somebody else may listen at an address that the caller's host also has."""
    heard = []

    def pretend(server: socket.socket) -> None:
        with server.accept()[0] as connection:
            connection.settimeout(10)
            connection.sendall(bytes(32))
            heard.append(connection.recv(4096))
            connection.sendall(bytes(32) + b"+")
            with contextlib.suppress(ConnectionResetError):
                while connection.recv(4096):
                    pass

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=pretend, args=(server,))
        thread.start()
        with pytest.raises(OSError, match="answers at none"):
            Worker(server.getsockname()[1], ["127.0.0.1"], secrets.token_hex(32))
        thread.join()
    assert heard


def test_a_worker_notices_that_the_caller_is_gone(files):
    exchange = Exchange(files[0], [files[1]])
    worker = Worker(exchange.port, ["127.0.0.1"], exchange.key)
    exchange.close()
    with pytest.raises(OSError, match="has ended"):
        worker.send(0, b"result")
    worker.close()
    assert os.fstat(files[1].fileno()).st_size == 0
