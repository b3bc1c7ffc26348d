"""Jobs on executors of their own, elastic ones too, and what they need of Spark."""

from __future__ import annotations

import contextlib
import io
import selectors
import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed")
pytest.importorskip("pyarrow", reason="PyArrow is not installed")

from support import spark_programs

from hvdtune.launch import placed
from hvdtune.launch.elastic.driver.driver import Driver
from hvdtune.launch.elastic.exclusion import Exclusion
from hvdtune.launch.elastic.limits import Limits
from hvdtune.launch.elastic.membership import Membership
from hvdtune.launch.remote.frames import Frame, Kind
from hvdtune.launch.remote.link import Link, Listener, Peer
from hvdtune.spark import conf
from hvdtune.spark.course import Output
from hvdtune.spark.elastic.hosts import Hosts, _Attempt
from hvdtune.spark.order import order_for
from hvdtune.spark.task import own_gpus

KEY = "00" * 32
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a program with three executors has found."""
    return spark_programs.run("spark_executors", tmp_path_factory.mktemp("spark"))


def test_gpus_of_executors(found: dict[str, Any]) -> None:
    for one in found["devices"]:
        assert one["places"] == [[0, 0, 0], [1, 1, 0]]
        # Each executor has been given its worker's first GPU; all are on one machine here.
        assert one["visible"] == "0"
        assert one["mine"] == ["0"]
    assert [one["visible"] for one in found["ignored"]] == [None, None]


def test_executors_that_are_lost_and_ranks_that_fail_come_back(found: dict[str, Any]) -> None:
    for how in ("kill", "raise"):
        results = found[how]
        assert [one["rank"] for one in results] == [0, 1, 2]
        for one in results:
            assert one["size"] == 3
            assert one["changes"] == [3, 2, 3]
            assert one["step"] == results[0]["step"] >= 10
    assert "generation 2 has 2 processes" in found["said"]
    assert "generation 3 has 3 processes" in found["said"]
    assert "[1]<stderr>:ValueError: rank 1 has a reason" in found["said"]
    assert found["failure"].startswith("The job has failed: ")
    assert "number of resets during elastic job exceeded limit: 0" in found["failure"]
    assert "rank 1 (pid " in found["failure"]
    assert "ValueError: rank 1 has a reason" in found["failure"]
    assert found["count"] == 10


def test_settings_have_keys_that_spark_reads() -> None:
    pairs = {
        value
        for name, value in vars(conf).items()
        if name.startswith("SPARK_CONF_") and isinstance(value, tuple)
    }
    assert len(pairs) == 17
    assert {key for key, _ in pairs} == set(conf.SPARK_CONF_DEFAULT_VALUES)
    assert not any("blacklist" in key for key, _ in pairs)
    assert ("spark.task.maxFailures", str(2**31 - 1)) in pairs


class Program:
    """What a listener tells."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.left = threading.Event()

    def join(self, task: int, facts: dict[str, Any], peer: Any) -> bool:
        self.heard.append((task, facts))
        self.peer = peer
        return task == 7

    def take(self, task: int, frame: Frame) -> None:
        self.heard.append((task, frame))

    def leave(self, task: int) -> None:
        self.heard.append((task, "left"))
        self.left.set()


def test_a_task_is_heard_and_answered() -> None:
    program = Program()
    listener = Listener(KEY, program.join, program.take, program.leave)
    try:
        link = Link.open(["127.0.0.1"], listener.port, KEY, 7, {"hostname": "here"})
        assert link is not None
        program.peer.send(Kind.SIGNAL, 3, b"15")
        assert next(link.frames()) == Frame(Kind.SIGNAL, 3, b"15")
        link.send(Kind.STDOUT, 3, b"words\n")
        link.close()
        assert program.left.wait(10)
        told = [(7, {"hostname": "here"}), (7, Frame(Kind.STDOUT, 3, b"words\n")), (7, "left")]
        assert program.heard == told
        with pytest.raises(RuntimeError, match="task 8 has been started before"):
            Link.open(["127.0.0.1"], listener.port, KEY, 8, {})
    finally:
        listener.close()
    assert Link.open(["127.0.0.1"], listener.port, KEY, 7, {}) is None


def test_nobody_waits_for_a_task_that_left_before_its_welcome() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    peer = Peer(ours)
    with ours, pytest.raises(OSError, match="Broken pipe"):
        peer.welcome()
    sending = threading.Thread(target=peer.send, args=(Kind.SIGNAL, 3, b"15"), daemon=True)
    sending.start()
    sending.join(10)
    assert not sending.is_alive()


def test_strangers_are_not_heard() -> None:
    program = Program()
    listener = Listener(KEY, program.join, program.take, program.leave)
    try:
        assert Link.open(["127.0.0.1"], listener.port, "11" * 32, 7, {}) is None
        with socket.create_connection(("127.0.0.1", listener.port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.0\r\n\r\n" + bytes(100))
            with contextlib.suppress(ConnectionResetError):
                while stranger.recv(100):
                    pass
        silent = socket.create_connection(("127.0.0.1", listener.port))
    finally:
        listener.close()  # does not wait for who is silent
    silent.close()
    assert program.heard == []


def test_a_stream_that_fails_is_given_up() -> None:
    class Full(io.StringIO):
        writes = 0

        def write(self, text: str) -> int:
            self.writes += 1
            raise OSError("no space left")

    full, other = Full(), io.BytesIO()
    output = Output(full, other)
    for _ in range(3):
        output.write(Kind.STDOUT, b"a line\n")
        output.write(Kind.STDERR, "ü\n".encode())
    assert full.writes == 1
    assert other.getvalue() == 3 * "ü\n".encode()


def test_a_task_that_is_a_host_gives_its_own_gpus(monkeypatch):
    monkeypatch.delenv("HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX", raising=False)
    given = {"gpu": SimpleNamespace(addresses=["2", "3"])}
    order = order_for(b"", {}, {}, [], "", [], 1, KEY, "")
    assert own_gpus(order, given) == {"CUDA_VISIBLE_DEVICES": "2,3", "HVDTUNE_SPARK_GPUS": "0,1"}
    assert own_gpus(order, {}) == {"HVDTUNE_SPARK_GPUS": ""}
    left = order._replace(environment={"HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX": "1"})
    assert own_gpus(left, given) == {"HVDTUNE_SPARK_GPUS": "2,3"}


def test_the_first_tasks_have_more_time_than_lost_ones_later():
    sent = []
    peer = SimpleNamespace(send=lambda kind, number, payload: sent.append((kind, number)))
    limits = Limits(2, 1, 2, None, 0.05, 30.0)
    with selectors.DefaultSelector() as selector:
        driver = Driver(
            selector,
            Membership(limits, Exclusion(None)),
            job="j",
            secret="00",
            heartbeat=0.0,
            say=lambda text: None,
        )
        hosts = Hosts(driver, Output(), False, (), "127.0.0.1", lambda text: None, 2)
        driver.starter = hosts
        task = _Attempt(placed.this_process(address="127.0.0.1"), peer)
        try:
            hosts._add(0, task)
            time.sleep(0.1)
            driver.next_due()
            driver.advance(time.monotonic())
            assert driver.end is None
            hosts._add(1, task)
            assert sorted(sent) == [(Kind.START, 0), (Kind.START, 1)]
        finally:
            driver.close()


def test_a_character_that_a_stream_lacks_does_not_end_its_output():
    raw = io.BytesIO()
    output = Output(io.TextIOWrapper(raw, encoding="latin-1"))
    output.write(Kind.STDOUT, "50 % █ ü\n".encode())
    output.write(Kind.STDOUT, b"next\n")
    assert raw.getvalue() == b"50 % \\u2588 \xfc\nnext\n"
