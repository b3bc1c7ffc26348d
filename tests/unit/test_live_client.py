"""Finding and asking a job, against a socket of our own that behaves as a job's or not."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.recordings.live_samples import sample_status

from hvdtune.core.observation import control
from hvdtune.live import client, top

NAME = f"hvdtune-control/{os.getuid()}/{{pid}}/test{os.getpid()}"


@contextmanager
def job(pid: int, *answers: bytes, status: dict | None = None) -> Iterator[client.Endpoint]:
    """A job that gives `answers` in turn; to "status", its status."""
    name = NAME.format(pid=pid)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind("\0" + name)
    listener.listen()
    left = list(answers)

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                question = connection.recv(4096)
                if not question:
                    return
                if question == b"status" and status is not None:
                    answer = b"+" + json.dumps(status).encode()
                else:
                    answer = left.pop(0)
                for at in range(0, len(answer), 1000):
                    connection.send(answer[at : at + 1000])

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield client.Endpoint(name, os.getuid(), pid)
    finally:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as last:
            last.connect("\0" + name)
        thread.join(60)
        listener.close()


def test_a_long_answer_is_put_together():
    with job(11, b"+" + b"x" * 4321) as endpoint:
        assert client.ask(endpoint, "stacks") == "x" * 4321


def test_a_refusal_is_the_jobs_own_sentence():
    with (
        job(11, b"-there is no rank 9") as endpoint,
        pytest.raises(ValueError, match=r"^there is no rank 9$"),
    ):
        client.ask(endpoint, "stacks 9")


def test_a_job_that_has_ended():
    gone = client.Endpoint(NAME.format(pid=12), os.getuid(), 12)
    with pytest.raises(client.JobError, match="the job of process 12 has ended"):
        client.ask(gone, "status")
    with job(11, b"") as endpoint, pytest.raises(client.JobError, match="has ended"):
        client.ask(endpoint, "it hangs up without a word")


def test_a_job_that_does_not_answer_is_given_up():
    name = NAME.format(pid=13)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind("\0" + name)
        listener.listen()
        with pytest.raises(client.JobError, match=r"not answered within 0\.05 s: is it stopped"):
            client.ask(client.Endpoint(name, os.getuid(), 13), "status", timeout_s=0.05)


def table(tmp_path, *names: str):
    file = tmp_path / "unix"
    rows = [
        f"00000000: 00000002 00000000 {flags} 0005 01 {number} {name}"
        for number, (flags, name) in enumerate((entry.split(" ", 1)) for entry in names)
    ]
    file.write_text("Num RefCount Protocol Flags Type St Inode Path\n" + "\n".join(rows) + "\n")
    return str(file)


def test_the_systems_table_is_read(tmp_path):
    file = table(
        tmp_path,
        "00010000 @hvdtune-control/1000/77/ab",
        "00010000 @hvdtune-control/0/9/cd",
        "00000000 @hvdtune-control/1000/77/ab",  # a connection to it
        "00010000 @hvdtune/1000/job/1",  # where ranks meet
        "00010000 @hvdtune-control/odd",
        "00010000 @hvdtune-control/x/77/ab",
        "00010000 @a\n0 0 0 z 0 0 0 @hvdtune-control/1/2/x",
        "00010000 @hvdtune-control/1000/²/ab",
        "00010000 /run/some.sock",
    )
    assert client.endpoints(file) == [
        client.Endpoint("hvdtune-control/0/9/cd", 0, 9),
        client.Endpoint("hvdtune-control/1000/77/ab", 1000, 77),
    ]


def test_a_job_is_found_by_pid_id_and_the_ids_beginning(monkeypatch):
    with (
        job(21, status=sample_status(job="abc1")) as one,
        job(22, status=sample_status(job="abd2", size=1)) as two,
    ):
        monkeypatch.setattr(client, "endpoints", lambda: [one, two])
        assert client.find("21") == one
        assert client.find("abd2") == two
        assert client.find("abd") == two
        with pytest.raises(ValueError, match=r"several jobs.*21 \(train.py, 3 ranks, job abc1\)"):
            client.find("ab")
        with pytest.raises(ValueError, match="several jobs"):
            client.find(None)
        with pytest.raises(client.JobError, match=r"no job 'x' of yours.*there are: 21 \("):
            client.find("x")
        monkeypatch.setattr(client, "endpoints", lambda: [two])
        assert client.find(None) == two
        monkeypatch.setattr(client, "endpoints", lambda: [])
        with pytest.raises(client.JobError, match="no job of yours is running on this host"):
            client.find(None)


def test_another_users_job_is_named_as_such(monkeypatch):
    theirs = client.Endpoint("hvdtune-control/4242/31/x", 4242, 31)
    monkeypatch.setattr(client, "endpoints", lambda: [theirs])
    with pytest.raises(client.JobError, match=r"job 31 belongs to another user \(uid 4242\)"):
        client.find("31")
    assert client.jobs() == []


def test_an_elastic_job_that_does_not_answer_is_not_looked_for_elsewhere(monkeypatch):
    here = client.Endpoint(NAME.format(pid=31), os.getuid(), 31)
    answers = iter([sample_status(elastic="e")])

    def status(_):
        for answer in answers:
            return answer
        raise client.SilentJobError("the job of process 31 has not answered within 10 s")

    monkeypatch.setattr(client, "status", status)
    monkeypatch.setattr(client, "next_generation", lambda *_: pytest.fail("it is there"))
    followed = top._Job(here)
    followed.status()
    with pytest.raises(client.SilentJobError, match="not answered"):
        followed.status()


def test_waiting_for_the_next_generation_is_said_once(monkeypatch):
    here = client.Endpoint(NAME.format(pid=os.getpid()), os.getuid(), os.getpid())
    there = client.Endpoint(NAME.format(pid=32), os.getuid(), 32)
    told = []
    looks = iter([[], [], [], [], [(there, {"elastic": "e"})]])
    monkeypatch.setattr(client, "REFORMING_S", 0.05)
    monkeypatch.setattr(client, "jobs", lambda: next(looks))
    assert client.next_generation(here, "e", told.append) == there
    assert len(told) == 1
    assert f"Process {os.getpid()} is in no job at present" in told[0]


def test_a_scripts_name_need_not_be_unicode(monkeypatch):
    monkeypatch.setattr("sys.argv", [os.fsdecode(b"/home/me/tr\xe9n.py")])
    assert control._program() == "tr?n.py"
