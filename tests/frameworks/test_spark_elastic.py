"""Jobs on executors of their own, elastic ones too, and what they need of Spark."""

from __future__ import annotations

import contextlib
import io
import socket
import threading
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed")
pytest.importorskip("pyarrow", reason="PyArrow is not installed")

from support import spark_programs

from hvdtune.launch.remote.frames import Frame, Kind
from hvdtune.launch.remote.link import Link, Listener, Peer
from hvdtune.spark import conf
from hvdtune.spark.course import Output

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
