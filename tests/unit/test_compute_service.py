"""The registry of TensorFlow's data service: real sockets, one process, no TensorFlow."""

from __future__ import annotations

import importlib
import json
import re
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import hvdtune.launch
from hvdtune.compute_service import client as client_module
from hvdtune.compute_service import messages, service
from hvdtune.compute_service.client import ComputeClient
from hvdtune.compute_service.errors import TimeoutException
from hvdtune.compute_service.service import ComputeService

ALIAS = str(Path(hvdtune.launch.__file__).resolve().parents[1] / "_alias")
KEY = bytes(range(32))
SECONDS = 10.0


@contextmanager
def running(dispatchers: int = 2, workers: int = 2, nics=None):
    """A service and a client of it."""
    server = ComputeService(dispatchers, workers, KEY, nics)
    try:
        yield server, ComputeClient(server.addresses(), KEY)
    finally:
        server.shutdown()


@pytest.fixture
def client():
    with running() as (_, client):
        yield client


def in_background(function, *arguments):
    """Call a function in a thread; returns the thread and a list, for its result."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function(*arguments)), daemon=True)
    thread.start()
    return thread, results


@pytest.mark.parametrize(("dispatchers", "workers"), [(1, 1), (1, 64), (32, 4)])
def test_all_find_each_other(dispatchers, workers):
    with running(dispatchers, workers) as (_, client):
        numbers = range(dispatchers)
        waiting = [
            in_background(client.wait_for_dispatcher_registration, number, SECONDS)
            for number in numbers
        ]
        time.sleep(0.05)
        assert all(thread.is_alive() for thread, _ in waiting)
        for number in numbers:
            client.register_dispatcher(number, f"grpc://host{number}:1")
        for number, (thread, results) in enumerate(waiting):
            thread.join(SECONDS)
            assert results == [f"grpc://host{number}:1"]
        waiting = [
            in_background(client.wait_for_dispatcher_worker_registration, number, SECONDS)
            for number in numbers
        ]
        for worker in range(dispatchers * workers):
            client.register_worker_for_dispatcher(worker // workers, worker)
        for thread, results in waiting:
            thread.join(SECONDS)
            assert results == [None]


@pytest.mark.parametrize("number", [-1, 2])
def test_a_dispatcher_that_is_not_expected(client, number):
    for call in (
        lambda: client.register_dispatcher(number, "grpc://host:1"),
        lambda: client.wait_for_dispatcher_registration(number, 0.1),
        lambda: client.register_worker_for_dispatcher(number, 0),
        lambda: client.wait_for_dispatcher_worker_registration(number, 0.1),
    ):
        with pytest.raises(IndexError, match=rf"Dispatcher id {number} .* from 0 to 1"):
            call()


def test_a_dispatcher_keeps_its_address(client):
    client.register_dispatcher(0, "grpc://host:1")
    client.register_dispatcher(0, "grpc://host:1")
    text = (
        "Dispatcher with id 0 has already been registered under different address grpc://host:1: "
        "grpc://host:2"
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        client.register_dispatcher(0, "grpc://host:2")
    assert client.wait_for_dispatcher_registration(0, 0) == "grpc://host:1"


def test_a_worker_counts_once(client):
    client.register_worker_for_dispatcher(1, 7)
    client.register_worker_for_dispatcher(1, 7)
    with pytest.raises(TimeoutException):
        client.wait_for_dispatcher_worker_registration(1, 0.1)
    client.register_worker_for_dispatcher(1, 8)
    client.wait_for_dispatcher_worker_registration(1, 0)


def test_what_does_not_register_in_time_is_named(client):
    begin = time.monotonic()
    for call, text in (
        (
            client.wait_for_dispatcher_registration,
            "Timed out waiting for dispatcher 0 to register. Try to find out what takes the "
            "dispatcher so long to register or increase timeout. Timeout after 0.1 seconds.",
        ),
        (
            client.wait_for_dispatcher_worker_registration,
            "Timed out waiting for workers for dispatcher 0 to register. Try to find out what "
            "takes the workers so long to register or increase timeout. Timeout after 0.1 seconds.",
        ),
    ):
        with pytest.raises(TimeoutException, match=re.escape(text)):
            call(0, timeout=0.1)
    assert time.monotonic() - begin < SECONDS / 2


def test_the_end_is_told(client):
    assert client.is_running()
    ended, _ = in_background(client.wait_for_shutdown)
    interrupted = []

    def wait_for_dispatcher():
        with pytest.raises(RuntimeError, match="shut down before dispatcher 0 registered"):
            client.wait_for_dispatcher_registration(0, 60)
        interrupted.append(True)

    waiting, _ = in_background(wait_for_dispatcher)
    client.wait_for_shutdown(0.1)
    assert ended.is_alive()
    assert waiting.is_alive()
    client.shutdown()
    for thread in (ended, waiting):
        thread.join(SECONDS)
        assert not thread.is_alive()
    assert interrupted
    assert not client.is_running()
    client.wait_for_shutdown()


def test_a_service_that_ends_by_itself_is_missed():
    with running() as (server, client):
        ended, _ = in_background(client.wait_for_shutdown)
        client.wait_for_shutdown(0.1)
        server.shutdown()
        server.shutdown()
        ended.join(SECONDS)
        assert not ended.is_alive()
        assert not client.is_running()
        with pytest.raises(ConnectionError, match=r"the compute service at \S+ does not answer"):
            client.register_dispatcher(0, "grpc://host:1")


def test_a_killed_service_is_missed():
    code = (
        "import json, sys, time; from hvdtune.compute_service.service import ComputeService\n"
        f"service = ComputeService(1, 1, {KEY!r}); print(json.dumps(service.addresses()))\n"
        "sys.stdout.flush(); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            client = ComputeClient(json.loads(process.stdout.readline()), KEY)
            waiting, _ = in_background(client.wait_for_shutdown)
            client.wait_for_shutdown(0.1)
            assert waiting.is_alive()
        finally:
            process.kill()
        waiting.join(SECONDS)
        assert not waiting.is_alive()


def test_a_cut_connection_is_no_end(monkeypatch):
    with running() as (server, client):
        exchange, cut = client._exchange, [True, True]

        def exchange_with_cuts(name, parameters, seconds):
            if name == "wait_for_end" and cut and cut.pop():
                raise ConnectionResetError("cut")
            return exchange(name, parameters, seconds)

        monkeypatch.setattr(client, "_exchange", exchange_with_cuts)
        waiting, _ = in_background(client.wait_for_shutdown)
        begin = time.monotonic()
        while cut:
            assert time.monotonic() - begin < SECONDS
            time.sleep(0.01)
        waiting.join(0.3)
        assert waiting.is_alive()
        server.shutdown()
        waiting.join(SECONDS)
        assert not waiting.is_alive()


def test_who_has_another_key_is_refused():
    with running() as (server, client):
        with pytest.raises(ConnectionError, match="answers at none of its addresses: "):
            ComputeClient(server.addresses(), bytes(32))
        with pytest.raises(ConnectionError, match="there is none"):
            ComputeClient({}, KEY)
        assert client.is_running()


def connect(server: ComputeService) -> socket.socket:
    [place, *_] = [place for places in server.addresses().values() for place in places]
    return socket.create_connection(place, SECONDS)


def test_strangers_are_sent_away(monkeypatch):
    with running() as (server, client):
        monkeypatch.setattr(service, "_PATIENCE", 0.5)
        for sent in (
            b"GET / HTTP/1.1\r\n\r\n" + b"\r\n" * 20,
            messages.PREFIX.pack(messages.LONGEST + 1, bytes(32)),
            messages.PREFIX.pack(5, bytes(32)) + b"hello",
            b"too short",  # and nothing else: it is waited for, but not for long
        ):
            with connect(server) as stranger:
                assert len(stranger.recv(100)) == messages.CHALLENGE_BYTES
                stranger.sendall(sent)
                with suppress(ConnectionResetError):
                    assert stranger.recv(100) == b""
        monkeypatch.undo()
        assert client.is_running()


def test_a_recorded_question_is_worth_nothing():
    with running() as (server, client):
        with connect(server) as one:
            challenge = one.recv(100)
            question, _ = messages.pack(KEY, challenge, {"ask": "end", "with": {}})
        with connect(server) as other:
            other.recv(100)
            other.sendall(question)
            assert other.recv(100) == b""
        assert client.is_running()


def test_what_others_answer_is_refused():
    """Who answers in the service's place has no key; a client does not take its word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            connection, _ = listener.accept()
            with connection:
                connection.sendall(bytes(messages.CHALLENGE_BYTES))
                connection.recv(1000)
                connection.sendall(messages.pack(bytes(32), b"", {"value": True})[0])

        thread, _ = in_background(answer)
        with pytest.raises(ConnectionError, match="not made with this key"):
            ComputeClient({"lo": [listener.getsockname()]}, KEY)
        thread.join(SECONDS)


def test_bad_questions_are_answered(client):
    for name, parameters in (
        ("no such thing", {}),
        ("register_dispatcher", {"dispatcher": 0}),
        ("register_dispatcher", {"dispatcher": "0", "address": "grpc://host:1"}),
        ("wait_for_dispatcher", {"dispatcher": 0, "timeout": "long"}),
    ):
        with pytest.raises(ValueError, match="was asked wrongly"):
            client._ask(name, **parameters)
    with pytest.raises(ValueError, match=r"a message of \d+ bytes"):
        client.register_dispatcher(0, "x" * messages.LONGEST)
    assert client.is_running()


def test_who_stops_waiting_is_forgotten(monkeypatch):
    with running() as (server, client):
        monkeypatch.setattr(client_module, "_SECONDS", 0.2)
        # The service would wait for ever, the client does not.
        with pytest.raises(ConnectionError, match="timed out"):
            client._ask("wait_for_dispatcher", dispatcher=0, timeout=3600.0)
        begin = time.monotonic()
        while server._answering:
            assert time.monotonic() - begin < SECONDS
            time.sleep(0.01)


def test_bad_services_are_refused():
    for arguments, text in (
        ((0, 1, KEY), "dispatchers is 0"),
        ((1, 0, KEY), "workers_per_dispatcher is 0"),
        ((1, 1, b""), "the key is empty"),
        ((1, 1, KEY, ["nosuch0"]), "nosuch0 has no address here; .*lo"),
    ):
        with pytest.raises(ValueError, match=text):
            ComputeService(*arguments)


def test_named_interfaces():
    with running(nics=["lo"]) as (server, client):
        assert list(server.addresses()) == ["lo"]
        assert client.own_address == "127.0.0.1"


def test_others_find_what_is_told_of_here():
    """A client is known by an address that other hosts can reach, if there is one."""
    with running() as (server, client):
        outer = [
            place[0]
            for places in server.addresses().values()
            for place in places
            if not place[0].startswith("127.")
        ]
        assert client.own_address in (outer or ["127.0.0.1"])


def test_horovods_names(monkeypatch):
    monkeypatch.setattr(sys, "path", [ALIAS, *sys.path])
    module = importlib.import_module("horovod.runner.common.service.compute_service")
    assert (module.ComputeService, module.ComputeClient) == (ComputeService, ComputeClient)
    timeout = importlib.import_module("horovod.runner.common.util.timeout")
    assert timeout.TimeoutException is TimeoutException
    with pytest.raises(ModuleNotFoundError, match="find each other without such a service"):
        importlib.import_module("horovod.runner.common.service.driver_service")


def test_addresses_that_other_hosts_reach_come_first(monkeypatch):
    every = {"bmc0": "127.0.0.3", "eth0": "127.0.0.2"}
    monkeypatch.setattr(service, "present_interfaces", lambda: [*every])
    monkeypatch.setattr(service, "addresses_of", lambda names: {n: every[n] for n in names})
    monkeypatch.setattr(service, "reachable", lambda: {"eth0": every["eth0"]})
    with running() as (server, _):
        assert [*server.addresses()] == ["eth0", "bmc0"]
