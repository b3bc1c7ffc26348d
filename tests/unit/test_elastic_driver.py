"""The driver of an elastic job, without processes: whom it lets in, who is silent, what it says."""

from __future__ import annotations

import select
import selectors
import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from hvdtune.core.driver import messages
from hvdtune.launch.allocation.hosts import Host, assign_ranks
from hvdtune.launch.elastic.actions import Member, Place
from hvdtune.launch.elastic.driver.control import Control, endpoint
from hvdtune.launch.elastic.driver.driver import Driver
from hvdtune.launch.elastic.exclusion import Exclusion
from hvdtune.launch.elastic.limits import Limits
from hvdtune.launch.elastic.membership import Membership
from hvdtune.launch.local.environment import without_place

SECRET = "the job's"


class Client:
    """A process's end of a connection to the driver at `port`."""

    def __init__(self, port: int, identity: str) -> None:
        self.identity = identity
        self.socket = socket.create_connection(("127.0.0.1", port), 20)
        self._reader = messages.Reader()
        self._heard: list[Any] = []

    def introduce(self, secret: str = SECRET, pid: object = 1) -> None:
        nonces = self.hear()["nonce"], "mine"
        proof = messages.proof(secret, "process", self.identity, nonces)
        self.say("hello", id=self.identity, pid=pid, nonce="mine", proof=proof)
        self.expected = messages.proof(secret, "driver", self.identity, nonces)

    def say(self, kind: str, **fields: Any) -> None:
        self.socket.sendall(messages.encode(kind, **fields))

    def hear(self) -> Any:
        """The next message; None if the driver has hung up."""
        while not self._heard:
            data = self.socket.recv(65536)
            if not data:
                return None
            self._heard += self._reader.feed(data)
        return self._heard.pop(0)


@pytest.fixture
def served():
    """A control in a thread that serves it until the test ends; what it hears."""
    selector, heard, ended = selectors.DefaultSelector(), [], threading.Event()
    control = Control(selector, SECRET, lambda *words: heard.append(words))
    port = control.listen("127.0.0.1")

    lock = threading.Lock()  # the driver uses its control in one thread

    def serve() -> None:
        while not ended.is_set():
            for key, _ in selector.select(0.02):
                with lock:
                    key.data()

    class Locked:
        def __getattr__(self, name: str) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                with lock:
                    return getattr(control, name)(*args, **kwargs)

            return call

    thread = threading.Thread(target=serve)
    thread.start()
    yield SimpleNamespace(control=Locked(), port=port, heard=heard)
    ended.set()
    thread.join()
    control.close()
    selector.close()


def until(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_process_is_let_in_and_heard(served):
    served.control.expect("a")
    client = Client(served.port, "a")
    client.introduce()
    welcome = client.hear()
    assert welcome == {"kind": "welcome", "proof": client.expected}
    client.say("beat")
    client.say("finished")
    until(lambda: served.heard == [("a", {"kind": "finished"})])
    served.control.send("a", "leave", why="enough")
    assert client.hear() == {"kind": "leave", "why": "enough"}
    served.control.forget("a")
    assert client.hear() is None


@pytest.mark.parametrize("identity", ["a", "unknown"])
def test_who_does_not_belong_to_the_job_is_not_let_in(served, identity):
    served.control.expect("a")
    client = Client(served.port, identity)
    client.introduce(secret="another" if identity == "a" else SECRET)
    assert client.hear() is None
    served.control.send("a", "leave", why="nobody hears it")
    assert not served.heard


def test_a_second_connection_is_refused(served):
    served.control.expect("a")
    first, second, third = (Client(served.port, "a") for _ in range(3))
    first.introduce()
    assert first.hear()["kind"] == "welcome"
    second.introduce()
    assert second.hear() == {"kind": "refused", "pid": 1}
    assert second.hear() is None
    served.control.send("a", "cancel", generation=1)
    assert first.hear() == {"kind": "cancel", "generation": 1}
    first.socket.close()
    third.introduce()
    assert third.hear() == {"kind": "refused", "pid": 1}
    assert served.control.silence_due(5.0) is not None, "of the first"


@pytest.mark.parametrize("pid", [None, 0, "1"])
def test_a_process_without_a_pid_is_not_let_in(served, pid):
    served.control.expect("a")
    client = Client(served.port, "a")
    client.introduce(pid=pid)
    assert client.hear() is None


def test_strangers_are_dropped_in_time(served):
    stranger = Client(served.port, "")
    assert stranger.hear()["kind"] == "challenge"
    due = served.control.introductions_due()
    assert due is not None
    served.control.drop_strangers(due - 1)
    assert served.control.introductions_due() == due
    served.control.drop_strangers(due)
    assert stranger.hear() is None
    assert served.control.introductions_due() is None


def test_silence(served):
    served.control.expect("a")
    client = Client(served.port, "a")
    client.introduce()
    assert client.hear()["kind"] == "welcome"
    due = served.control.silence_due(5.0)
    assert due is not None
    assert served.control.silent(5.0, due - 0.1) == []
    served.control.excuse(3.0)
    assert served.control.silent(5.0, due + 2.9) == []
    assert served.control.silence_due(5.0) == due + 3.0
    assert served.control.silent(5.0, due + 3.0) == ["a"]
    assert served.control.silent(5.0, due + 30.0) == []


class HeldUp:
    """A control that is served only if the test says so, by the clock of the test."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self.now = 100.0
        self.selector = selector
        self.control = Control(selector, SECRET, lambda *_words: None)
        self._port = self.control.listen("127.0.0.1")

    def monotonic(self) -> float:
        return self.now

    def connected(self, identity: str) -> Client:
        """A process that has been asked to introduce itself."""
        self.control.expect(identity)
        client = Client(self._port, identity)
        self.serve_until_it_speaks_to(client)
        return client

    def serve_until_it_speaks_to(self, client: Client) -> None:
        def has_spoken() -> bool:
            for key, _ in self.selector.select(0.02):
                key.data()
            return bool(select.select([client.socket], [], [], 0)[0])

        until(has_spoken)

    def hold_up(self, seconds: float) -> None:
        """Let time pass once something has arrived, and read nothing."""
        until(lambda: self.selector.select(0))
        self.now += seconds


@pytest.fixture
def held_up(monkeypatch):
    with selectors.DefaultSelector() as selector:
        found = HeldUp(selector)
        monkeypatch.setattr("hvdtune.launch.elastic.driver.control.time", found)
        yield found
        found.control.close()


def test_who_has_spoken_is_not_silent_although_nobody_has_listened(held_up):
    clients = {name: held_up.connected(name) for name in ("a", "b")}
    for client in clients.values():
        client.introduce()
        held_up.serve_until_it_speaks_to(client)
        assert client.hear()["kind"] == "welcome"
    clients["a"].say("beat")
    held_up.hold_up(6.0)
    assert held_up.control.silent(5.0, held_up.now) == ["b"]
    assert held_up.control.silence_due(5.0) == held_up.now + 5.0


def test_an_introduction_that_nobody_has_read_is_in_time(held_up):
    client = held_up.connected("a")
    client.introduce()
    held_up.hold_up(3600.0)
    held_up.control.drop_strangers(held_up.now)
    assert client.hear()["kind"] == "welcome"


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.0.0.1", "10.0.0.1:7"), ("node", "node:7"),
        ("fd00::1", "[fd00::1]:7"), ("fe80::1%eth0", "[fe80::1%eth0]:7"),
    ],
)  # fmt: skip
def test_addresses(address, expected):
    assert endpoint(address, 7) == expected


class Starter:
    """Starts clients in threads, which do as processes would."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.places: list[tuple[str, str, str]] = []
        self.threads: list[threading.Thread] = []

    def start(self, order) -> None:
        variables = self.driver.variables(order)
        self.threads.append(threading.Thread(target=self._live, args=(variables,)))
        self.threads[-1].start()

    def kill(self, identity: str, at_once: bool) -> None:
        raise AssertionError("nobody is to be killed")

    def meeting(self, hosts):
        return {"HOROVOD_GLOO_RENDEZVOUS_ADDR": hosts[0], "HOROVOD_GLOO_RENDEZVOUS_PORT": "7"}

    def _live(self, variables: dict[str, str]) -> None:
        assert variables["HOROVOD_ELASTIC"] == "1"
        port = int(variables[messages.DRIVER].rpartition(":")[2])
        client = Client(port, variables[messages.IDENTITY])
        client.introduce()
        assert client.hear()["kind"] == "welcome"
        client.say("ready", generation=0, reason=messages.START, why="", function="")
        place = client.hear()
        assert "HOROVOD_GLOO_IFACE" not in place["environment"], "what the user has set stays"
        names = ("HOROVOD_RANK", "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HVDTUNE_JOB_ID")
        self.places.append(tuple(place["environment"][name] for name in names))
        client.say("joined", generation=1)
        client.say("finished")
        client.socket.close()
        self.driver.post(lambda: self.driver.exited(client.identity, 0))


def test_a_job_whose_processes_others_start():
    said: list[str] = []
    with selectors.DefaultSelector() as selector:
        driver = Driver(
            selector, Membership(Limits(3, 2), Exclusion()), job="j", secret=SECRET,
            heartbeat=5.0, say=said.append,
        )  # fmt: skip
        starter = driver.starter = Starter(driver)
        later = threading.Timer(
            0.05, driver.post, [lambda: driver.hosts([Host("x", 2), Host("y", 1)])]
        )
        later.start()
        end = driver.run()
        for thread in (later, *starter.threads):
            thread.join()
        driver.close()
    assert (end.status, end.text, said) == (0, "", [])
    assert sorted(starter.places) == [("0", "x", "j-1"), ("1", "x", "j-1"), ("2", "x", "j-1")]


def test_a_place_unsets_what_only_earlier_meetings_have_set():
    name = "HOROVOD_GLOO_IFACE"
    meetings: list[dict[str, str]] = [{}, {name: "ib0"}, {}]
    sent: list[dict[str, Any]] = []
    [slot] = assign_ranks([Host("x", 1)], 1)
    with selectors.DefaultSelector() as selector:
        driver = Driver(
            selector, Membership(Limits(1, 1), Exclusion()), job="j", secret=SECRET,
            heartbeat=0.0, say=print,
        )  # fmt: skip
        driver.starter = SimpleNamespace(meeting=lambda hosts: meetings.pop(0))
        driver._control.send = lambda *_words, **fields: sent.append(fields["environment"])
        for generation in (1, 2, 3):
            driver._place(Place(generation, (Member("a", slot, False),), False))
        driver.close()
    assert name not in sent[0]
    assert [environment[name] for environment in sent[1:]] == ["ib0", None]


class OneFails(Starter):
    """The process on y fails after the other, which had finished, has `begun` again."""

    resumed: threading.Event

    def _live(self, variables: dict[str, str]) -> None:
        port = int(variables[messages.DRIVER].rpartition(":")[2])
        client, code = Client(port, variables[messages.IDENTITY]), 1
        try:
            client.introduce()
            client.hear()
            client.say("ready", generation=0, reason=messages.START, why="", function="")
            assert client.hear()["kind"] == "place"
            client.say("joined", generation=1)
            if variables["HOROVOD_HOSTNAME"] == "x":
                client.say("finished")
                client.say("begun", function="m.train")
                self.heard = client.hear()
                client.say("ready", generation=1, reason=messages.FAILURE, why="", function="")
                assert client.hear()["kind"] == "place"
                code = 0
            else:
                self.resumed.wait(20)
        finally:
            client.socket.close()
            self.driver.post(lambda: self.driver.exited(client.identity, code))


def test_who_has_resumed_is_told_of_the_end_of_its_generation_and_why():
    said: list[str] = []
    resumed = threading.Event()

    class Watched(Membership):
        def begun(self, identity, function, now):
            resumed.set()
            return super().begun(identity, function, now)

    with selectors.DefaultSelector() as selector:
        driver = Driver(
            selector, Watched(Limits(2, 1), Exclusion()), job="j", secret=SECRET,
            heartbeat=5.0, say=said.append,
        )  # fmt: skip
        starter = driver.starter = OneFails(driver)
        starter.resumed = resumed
        driver.hosts([Host("x", 1), Host("y", 1)])
        end = driver.run()
        for thread in starter.threads:
            thread.join()
        driver.close()
    why = "y[0] exited with code 1"
    assert starter.heard == {"kind": "cancel", "generation": 1, "why": why}
    assert end.status == 0
    assert "generation 2 has 1 process: x:1." in said


def test_a_job_within_a_job_is_its_own():
    variables = {"HOROVOD_ELASTIC": "1", messages.DRIVER: "x:1", messages.IDENTITY: "a", "A": "b"}
    assert without_place(variables) == {"A": "b"}
