"""Another host of an elastic job, which the test plays: what is started there, and what fails."""

from __future__ import annotations

import json
import os
import re
import selectors
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from io import FileIO
from types import SimpleNamespace
from typing import Any

import pytest

from hvdtune.core.driver import messages
from hvdtune.core.libraries import network
from hvdtune.launch.allocation.hosts import Host, Slot
from hvdtune.launch.elastic.driver.driver import Driver
from hvdtune.launch.elastic.driver.errands import Outcome, _Errand
from hvdtune.launch.elastic.driver.processes import Processes, Program, Reach
from hvdtune.launch.elastic.exclusion import Exclusion
from hvdtune.launch.elastic.limits import Limits
from hvdtune.launch.elastic.membership import Membership
from hvdtune.launch.local.relay import Relay
from hvdtune.launch.remote import connection as remote
from hvdtune.launch.remote import identity
from hvdtune.launch.remote.frames import MARK, FrameReader, Kind, encode
from hvdtune.launch.remote.interfaces import Interfaces
from hvdtune.launch.remote.ssh import Ssh
from hvdtune.launch.worker import Worker
from hvdtune.launch.workers import Workers

FAR = "192.0.2.1"  # no host has this address
REFUSED = f"{FAR}[0] (started as rank 0) could not be started: "


class Client:
    """An ssh client of the launcher's: three pipes, with the test at the host's ends."""

    def __init__(self) -> None:
        (hears, stdin), (stdout, says), (stderr, complains) = (os.pipe() for _ in range(3))
        self.stdin, self.stdout, self.stderr = FileIO(stdin, "w"), FileIO(stdout), FileIO(stderr)
        self._hears, self._says = FileIO(hears), FileIO(says, "w")
        self._complains = FileIO(complains, "w")
        self._reader = FrameReader()
        os.set_blocking(hears, False)

    def introduce(self, **changes: object) -> None:
        facts = {**identity.facts(), "machine": "another", **changes}
        self._says.write(MARK + encode(Kind.FACTS, 0, json.dumps(facts).encode()))

    def identities(self) -> list[str]:
        """The processes that it has been told to start since this was last called."""
        frames = self._reader.feed(self._hears.read(2**20) or b"")
        orders = [json.loads(frame.payload) for frame in frames if frame.kind == Kind.START]
        return [place[messages.IDENTITY] for order in orders for place in order["places"].values()]

    def complain_for_ever(self) -> None:
        """The connection ends, but not the output on stderr."""
        self._complains.write(b"x")
        self._says.close()

    def kill(self) -> None:
        self._says.close()
        self._complains.close()

    def close(self) -> None:
        self.kill()
        for file in (self.stdin, self.stdout, self.stderr, self._hears):
            file.close()


class Job:
    """A job on FAR, and later perhaps others; a failure costs the process, not the host."""

    def __init__(self, slots: int, reach: Reach) -> None:
        self.clients: list[Client] = []
        self.errands: list[SimpleNamespace] = []
        self.said: list[str] = []
        self._selector = selectors.DefaultSelector()
        self._driver = Driver(
            self._selector, Membership(Limits(slots, 1, replaces_failed=True), Exclusion()),
            job="j", secret="s", heartbeat=0.0, say=self.said.append,
        )  # fmt: skip
        processes = Processes(
            Program(["train"], {}, None, "--output-filename", 1, (), False),
            reach,
            SimpleNamespace(run=self._run_errand),
            self._driver,
            self.said.append,
            lambda worker: None,
        )
        self._driver.starter = processes
        relay = Relay(self._selector, lambda: False, lambda: None)
        self.workers = processes.workers = Workers(self._selector, relay, processes, False)

    def start(self, slots: int, *others: Host) -> None:
        self._driver.hosts([Host(FAR, slots), *others])

    def popen(self, *_words: object, **_options: object) -> Client:
        self.clients.append(Client())
        return self.clients[-1]

    def _run_errand(
        self, _name: str, command: list[str], _seconds: float, done: Any, _environment: Any
    ) -> None:
        self.errands.append(SimpleNamespace(command=command, done=done))

    def until(self, condition: Callable[[], Any]) -> Any:
        """Serve everybody until the condition is true; its value."""
        deadline = time.monotonic() + 20
        while not (value := condition()):
            assert time.monotonic() < deadline, self.said
            self.workers.register_input()
            for key, _ in self._selector.select(0.02):
                key.data()
        return value

    def refusals(self) -> list[str]:
        """What has been said of processes that could not be started."""
        return [line for line in self.said if "could not be started" in line]

    def second_client(self) -> Client:
        """The one that the launcher starts when the first has ended."""
        self.until(lambda: len(self.clients) == 2)
        return self.clients[1]

    def close(self) -> None:
        self._driver.close()
        self._selector.close()
        for client in self.clients:
            client.close()


@pytest.fixture
def job_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def make(slots: int, health_check: str | None = None, variable: Sequence[str] = ()) -> Job:
        named = Interfaces(variable, network.INTERFACES)
        job = Job(slots, Reach(Ssh(), named, health_check, 10.0))
        jobs.append(job)
        clients = SimpleNamespace(Popen=job.popen, PIPE=subprocess.PIPE)
        monkeypatch.setattr(remote, "subprocess", clients)
        job.start(slots)
        return job

    yield make
    for job in jobs:
        job.close()


def test_after_a_connection_is_lost_processes_start_over_another(job_of):
    job = job_of(2)
    [first] = job.clients
    first.introduce()
    assert job.until(first.identities) == [f"{FAR}[0].0", f"{FAR}[1].1"]
    first.kill()
    second = job.second_client()
    second.introduce()
    assert job.until(second.identities) == [f"{FAR}[0].2", f"{FAR}[1].3"]
    assert [line.partition(" ")[0] for line in job.said] == [f"{FAR}[0]", f"{FAR}[1]"]


def test_a_connection_that_fails_is_one_failure(job_of):
    job = job_of(1)
    job.clients[0].kill()
    second = job.second_client()
    second.introduce()
    assert job.until(second.identities) == [f"{FAR}[0].1"]
    assert job.said == [f"{REFUSED}ssh has ended without a message."]


def test_a_host_that_is_unfit_is_one_failure(job_of):
    job = job_of(1)
    job.clients[0].introduce(version="9.9")
    second = job.second_client()
    second.introduce()
    assert job.until(second.identities) == [f"{FAR}[0].1"]
    [said] = job.said
    assert said.startswith(f"{REFUSED}host {FAR} has hvdtune 9.9, this one ")


@pytest.mark.parametrize(
    ("there", "words"),
    [
        ("eth0", f"host {FAR} has no interface 'eth77'; it has eth0."),
        ("eth77", f"on host {FAR} none of eth77 has an address that other hosts can use."),
    ],
)
def test_a_host_without_an_interface_is_told_what_has_named_it(job_of, there, words):
    job = job_of(1, variable=["eth77"])
    job.clients[0].introduce(interfaces=[there], addresses={})
    job.second_client()
    assert job.said == [f"{REFUSED}HOROVOD_GLOO_IFACE: {words}"]


HERE = Host("localhost", 1)
APART = (
    r"\[0\] \(started as rank \d\) could not be started: HOROVOD_GLOO_IFACE: the launcher's host "
    r"has no interface 'eth77'; it has .*; it cannot share a job with other hosts\.$"
)


def test_a_launchers_host_without_an_interface_gets_nothing_while_others_train(job_of):
    job = job_of(1, variable=["eth77"])
    [far] = job.clients
    far.introduce(interfaces=["eth77"], addresses={"eth77": FAR})
    assert job.until(far.identities) == [f"{FAR}[0].0"]
    job.start(1, HERE)
    assert re.match(f"localhost{APART}", job.refusals()[0])
    assert [worker.slot.hostname for worker in job.workers.running()] == [FAR]


def test_others_get_nothing_while_a_launchers_host_without_an_interface_trains(job_of, monkeypatch):
    job = job_of(1, variable=["eth77"])

    def start(number: int, slot: Slot, *_: object) -> None:
        job.workers.all[number] = Worker(number, slot)

    monkeypatch.setattr(job.workers, "start", start)
    job.start(1, HERE)
    [far] = job.clients
    far.introduce(interfaces=["eth77"], addresses={"eth77": FAR})
    refused = job.until(job.refusals)
    assert re.match(f"{re.escape(FAR)}{APART}", refused[0])
    assert far.identities() == []
    assert [worker.slot.hostname for worker in job.workers.running()] == ["localhost"]


def test_a_health_check_that_fails_is_one_failure(job_of):
    job = job_of(1, "exit 3")
    failure = "ended with exit status 3"
    job.errands[0].done(Outcome(3, b"", "", failure))
    assert job.said == [f"{REFUSED}its health check {failure}."]
    assert len(job.errands) == 2
    job.errands[1].done(Outcome(0, b"", "", ""))
    assert len(job.clients) == 1


def test_a_health_check_runs_in_the_home_directory_if_the_folder_is_not_there(
    job_of, tmp_path, monkeypatch
):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    job = job_of(1, 'echo "$HOROVOD_HOSTNAME"; pwd')
    command = ["/bin/sh", "-c", job.errands[0].command[-1]]

    def run() -> tuple[int, str, str]:
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return ran.returncode, ran.stdout, ran.stderr

    assert run() == (0, f"{FAR}\n{here}\n", "")
    here.rmdir()
    assert run() == (0, f"{FAR}\n{tmp_path}\n", "")


def test_endless_output_on_sshs_stderr_does_not_hold_the_launcher_up(job_of, monkeypatch):
    looks = []

    def complaints(connection: remote.Connection) -> tuple[bytes, bool]:
        looks.append(connection)
        assert len(looks) < 1000, "the launcher reads for ever"
        return b"", True

    monkeypatch.setattr(remote.Connection, "complaints", complaints)
    monkeypatch.setattr("hvdtune.launch.workers.COMPLAINT_SECONDS", 0.0)
    job = job_of(1)
    job.clients[0].complain_for_ever()
    job.second_client()


def test_an_errand_that_may_not_be_killed_is_left_alone(monkeypatch):
    """It runs as another user, as with sudo."""

    def refuse(*_words: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "killpg", refuse)
    errand = _Errand(SimpleNamespace(pid=2**30, stdout=None, stderr=None), 1.0, print)
    errand.end("took too long")
    assert errand.ended == "took too long"


@pytest.mark.parametrize("check", [None, "true"])
def test_a_folder_that_is_gone_costs_newcomers_and_not_the_job(
    job_of, tmp_path, monkeypatch, check
):
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    job = job_of(1, check)
    if check:
        job.errands[0].done(Outcome(0, b"", "", ""))
    [first] = job.clients
    first.introduce()
    assert job.until(first.identities) == [f"{FAR}[0].0"]
    folder.rmdir()
    job.start(2)
    assert "the folder that the launcher was started in is gone" in job.refusals()[0]
    assert [worker.slot.rank for worker in job.workers.running()] == [0]


@pytest.mark.parametrize("name", ["worker-0..ns", "x" * 64])
def test_a_name_that_no_resolver_takes_is_another_hosts(capsys, name):
    from hvdtune.launch.elastic.driver import lookup

    assert lookup.main([name]) == 0
    assert json.loads(capsys.readouterr().out) == {name: os.uname().nodename}
