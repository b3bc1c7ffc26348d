"""A process's connection to an elastic job's driver, which the test plays."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from support.elastic_driver import ElasticDriver
from support.recordings.live_samples import sample_status

from hvdtune.core.driver import lateness, member, messages
from hvdtune.core.driver.connection import Connection, Gone, Left
from hvdtune.elastic import HostUpdateResult

WHY = "a test"


@pytest.fixture
def driver() -> Iterator[ElasticDriver]:
    with ElasticDriver() as found:
        yield found


def connect(
    driver: ElasticDriver, heard: list[Any] | None = None, identity: str = "p0"
) -> Connection:
    def hear(*news: int) -> None:
        if heard is not None:
            heard.append(news)

    return Connection(hear, driver.address, identity, driver.secret)


def test_a_place_is_asked_for_and_given(driver):
    connection, _ = connect(driver), connect(driver, identity="p1")
    answer = ask_in_thread(connection)
    asked = driver.wait_for("ready", "p0")[0]
    assert asked == {
        "kind": "ready", "generation": 2, "reason": messages.FAILURE, "why": WHY,
        "function": "m.train",
    }  # fmt: skip
    driver.place(3, ["p1", "p0"], newcomers=["p1"], synchronise=False, HOROVOD_GLOO_IFACE=None)
    place = answer()
    assert (place.generation, place.newcomers, place.synchronise) == (3, {0}, False)
    assert place.environment["HOROVOD_RANK"] == "1"
    assert place.environment["HOROVOD_GLOO_IFACE"] is None
    connection.say_joined(3)
    connection.say_finished()
    assert driver.wait_for("joined", "p0")[0]["generation"] == 3
    driver.wait_for("finished", "p0")


def ask_in_thread(connection: Connection, generation: int = 2, function: str = "m.train") -> Any:
    """Ask; the result is a function that waits for the answer, and raises what `ask` has raised."""
    found: list[Any] = []

    def ask() -> None:
        try:
            found.append(connection.ask(generation, messages.FAILURE, WHY, function))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=ask)
    thread.start()

    def answer() -> Any:
        thread.join(60)
        assert found, "no answer has come"
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]

    return answer


def test_a_generation_may_be_cancelled_before_its_place_is_taken(driver):
    connection = connect(driver)
    answer = ask_in_thread(connection)
    driver.wait_for("ready", "p0")
    driver.place(4, ["p0"])
    driver.send("p0", "cancel", generation=4)
    assert answer().generation == 4
    called = threading.Event()
    connection.on_cancel(4, lambda why: called.set())
    assert called.wait(60)
    assert connection.is_cancelled(4)
    assert not connection.is_cancelled(5)


def test_what_is_under_way_is_cancelled(driver):
    connection = connect(driver)
    calls: list[str] = []
    called = threading.Event()

    def cancel(why: str) -> None:
        calls.append(why)
        called.set()

    connection.on_cancel(2, lambda why: pytest.fail("another generation"))
    connection.on_cancel(1, cancel)
    driver.send("p0", "cancel", generation=1)
    assert called.wait(60)
    connection.on_cancel(1, cancel)
    assert len(calls) == 2, "at once, if it has been cancelled before"
    assert all("driver has ended" in why for why in calls)
    called.clear()
    connection.on_cancel(2, cancel)
    driver.send("p0", "cancel", generation=2, why="p3 has died")
    assert called.wait(60)
    assert calls[2:] == ["p3 has died"]
    connection.on_cancel(3, lambda why: pytest.fail("another generation"))


def test_the_driver_asks_whom_the_ranks_wait_for(driver):
    answers = [None, {"generation": 2, "ranks": [1]}]
    Connection(lambda *_: None, driver.address, "p0", driver.secret, measure=lambda: answers.pop(0))
    driver.send("p0", "measure")
    driver.send("p0", "measure")
    assert driver.wait_for("lateness", "p0")[0] == {
        "kind": "lateness",
        "generation": 2,
        "ranks": [1],
    }
    assert not answers


def test_whom_the_ranks_wait_for_is_of_the_jobs_status():
    assert lateness.of_status(json.dumps(sample_status())) == {
        "ranks": [], "late_s": 0.0, "share": 0.0, "last_share": 0.0, "steps": 500, "step_s": 0.25,
    }  # fmt: skip
    named = lateness.of_status(json.dumps(sample_status(straggler=1, step_s=None)))
    assert named == {
        "ranks": [1], "late_s": 0.03, "share": 0.12, "last_share": 0.8, "steps": 500, "step_s": 0.0,
    }  # fmt: skip
    whole = lateness.of_status(json.dumps(sample_status(straggler=1, straggler_host=0)))
    assert whole["ranks"] == [0, 1]
    assert lateness.of_status("{}")["ranks"] == [], "of another rank than 0"


def test_news_counts_from_the_last_place_on(driver):
    heard: list[Any] = []
    connection = connect(driver, heard)
    driver.send("p0", "news", number=1, change=int(HostUpdateResult.added))
    answer = ask_in_thread(connection)
    driver.wait_for("ready", "p0")
    driver.place(1, ["p0"])
    answer()
    assert heard == [(1, 2)]
    assert connection.news() == (0, 0), "the place takes account of it"
    driver.send("p0", "news", number=2, change=int(HostUpdateResult.added))
    driver.send("p0", "news", number=3, change=int(HostUpdateResult.removed))
    driver.send("p0", "leave", why="the end")
    with pytest.raises(Left, match="the end"):
        ask_in_thread(connection)()
    assert connection.news() == (3, int(HostUpdateResult.mixed))


def test_leaving_and_a_driver_that_goes_are_told_apart(driver):
    leaving, left_alone = connect(driver), connect(driver, identity="p1")
    answers = ask_in_thread(leaving), ask_in_thread(left_alone)
    driver.wait_for("ready", "p0", "p1")
    driver.send("p0", "leave", why="its host is gone")
    driver.drop("p1")
    with pytest.raises(Left, match="its host is gone"):
        answers[0]()
    with pytest.raises(Gone, match=f"driver of this elastic job at {driver.address} has gone"):
        answers[1]()
    with pytest.raises(Gone):
        ask_in_thread(left_alone)()
    left_alone.say_finished()  # nobody hears it, and nothing is raised


def test_both_prove_that_they_know_the_secret(driver):
    with pytest.raises(Gone, match="does not answer: the connection was closed"):
        Connection(int, driver.address, "p0", "another")
    with pytest.raises(
        ValueError, match=r"failed: the process that listens at .* does not know the job's secret"
    ):
        Connection(
            int, *stranger(messages.encode("challenge", nonce="1"), messages.encode("welcome"))
        )
    for line in (b"SSH-2.0\r\n", b"[]\n", b"x" * 2**21):
        with pytest.raises(Gone, match="its message cannot be read"):
            Connection(int, *stranger(line))


def stranger(*lines: bytes) -> tuple[str, str, str]:
    """Somebody who says these lines, as arguments of a connection to him."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        client, _ = listener.accept()
        with listener, client, contextlib.suppress(OSError):
            client.sendall(b"".join(lines))
            while client.recv(65536):
                pass

    threading.Thread(target=serve, daemon=True).start()
    return f"127.0.0.1:{listener.getsockname()[1]}", "p0", "secret"


def test_another_process_of_the_same_name_is_refused(driver):
    connection = connect(driver)
    with pytest.raises(ValueError, match=f"failed: process {os.getpid()} has this place in the"):
        connect(driver)
    connection.say_joined(1)
    driver.wait_for("joined", "p0")
    assert "p0" not in driver.ended


def test_addresses_and_nobody_there():
    for address in ("", "127.0.0.1", ":80", "host:", "host:0", "host:99999", "host:x"):
        with pytest.raises(ValueError, match=f"{messages.DRIVER}={address!r} is no address"):
            Connection(int, address, "p0", "secret")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(Gone, match=f"at 127.0.0.1:{port} does not answer"):
        Connection(int, f"127.0.0.1:{port}", "p0", "secret")


def test_beats_come_and_a_fork_has_no_connection(driver, monkeypatch):
    monkeypatch.setattr(messages, "BEAT_SECONDS", 0.02)
    connection = connect(driver)
    own = os.readlink(f"/proc/self/fd/{connection._socket.fileno()}")
    assert len(descriptors_of(own)) == 2  # the beats have one of their own
    child = os.fork()
    if child == 0:
        connection.forget()  # the fork still refers to it, as it does to all that a thread had
        os._exit(len(descriptors_of(own)))
    assert os.waitpid(child, 0)[1] == 0
    connection.say_joined(1)
    driver.wait_for("joined", "p0")
    with driver._changed:
        assert driver._changed.wait_for(lambda: driver.beats.get("p0", 0) > 3, 60)
    assert "p0" not in driver.ended


def descriptors_of(file: str) -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the folder itself
            if os.readlink(f"/proc/self/fd/{name}") == file:
                found.append(name)
    return found


# ---- the process as a member ---------------------------------------------------------------------


@pytest.fixture
def alone(monkeypatch, driver) -> ElasticDriver:
    """This process is the driver's "p0" until the test ends."""
    fresh = {
        "_connection": None, "_place": None, "_has_finished": False, "_joins_late": False,
        "_function": "", "_comes_back": False, "_reason": messages.START, "_why": WHY,
        "_before": {},
    }  # fmt: skip
    for name, value in fresh.items():
        monkeypatch.setattr(member, name, value)
    for name in ("RANK", "SIZE", "GLOO_RENDEZVOUS_ADDR", "GLOO_RENDEZVOUS_PORT"):
        monkeypatch.setenv(f"HOROVOD_{name}", "of the generation before")
    for name, value in driver.environment("p0").items():
        monkeypatch.setenv(name, value)
    return driver


def answering(driver: ElasticDriver, *answers: Any) -> threading.Thread:
    """A thread that answers the next times that p0 is ready by these calls."""

    def answer() -> None:
        for call in answers:
            driver.wait_for("ready", "p0")
            call()

    thread = threading.Thread(target=answer)
    thread.start()
    return thread


def test_a_place_is_set_in_the_environment(alone):
    assert member.is_elastic()
    assert not member.is_connected()
    connect(alone, identity="p1")
    thread = answering(alone, lambda: alone.place(1, ["p1", "p0"], newcomers=["p0"]))
    place = member.take_place()
    thread.join()
    assert place is member.place()
    assert os.environ["HOROVOD_RANK"] == "1"
    assert os.environ["HVDTUNE_JOB_ID"] == f"{alone.job}-1"
    for name in ("GLOO_RENDEZVOUS_ADDR", "GLOO_RENDEZVOUS_PORT"):
        assert f"HOROVOD_{name}" not in os.environ
    assert not member.joins_late()
    member.has_finished()
    member.has_finished()
    assert member.take_place() is place, "who has finished asks no more"
    alone.wait_for("finished", "p0")
    assert not alone.said("finished")
    assert member.is_finished()


@pytest.mark.parametrize("own", ["eth7", None])
def test_what_a_meeting_sets_is_afterwards_as_the_user_had_it(alone, monkeypatch, own):
    name = "NCCL_SOCKET_IFNAME"
    monkeypatch.setenv(name, "")  # restored after the test
    if own is None:
        del os.environ[name]
    else:
        os.environ[name] = own
    for generation, told in enumerate((None, "ib0", None, "ib0", None), 1):
        thread = answering(alone, partial(alone.place, generation, ["p0"], **{name: told}))
        member.take_place()
        thread.join()
        assert os.environ.get(name) == (told or own)


def test_an_elastic_function_that_begins_again_is_told(alone):
    connect(alone, identity="p1")
    thread = answering(alone, lambda: alone.place(1, ["p0"]), lambda: alone.place(2, ["p0"]))
    assert member.take_place().generation == 1
    member.has_begun("m.train")
    member.has_finished()
    member.has_begun("m.tune")
    alone.wait_for("begun", "p0", function="m.train")
    alone.wait_for("begun", "p0", function="m.tune")
    assert not member.is_finished()
    assert member.take_place().generation == 2, "it asks again"
    thread.join()
    member.has_finished()
    alone.wait_for("finished", "p0")


def test_who_comes_to_a_job_that_runs_gets_its_place_in_its_function(alone):
    thread = answering(
        alone, *[lambda: alone.send("p0", "prepare")] * 2, lambda: alone.place(3, ["p0"], ["p0"])
    )
    assert member.take_place() is None
    assert member.take_place() is None, "before the function the answer is the same"
    assert os.environ["HOROVOD_RANK"] == "of the generation before", "the expected place stays"
    assert member.joins_late()
    member.has_begun("m.train")
    place = member.take_place()
    thread.join()
    assert place.generation == 3
    assert not alone.said("begun"), "the question has said it"


def test_a_question_in_the_function_is_answered_by_a_place_only(driver):
    connection = connect(driver)
    answer = ask_in_thread(connection, 0, "")
    driver.wait_for("ready", "p0", function="")
    driver.send("p0", "prepare")
    assert answer() is None
    answer = ask_in_thread(connection, 0)
    driver.wait_for("ready", "p0", function="m.train")
    driver.send("p0", "prepare")
    driver.place(2, ["p0"])
    assert answer().generation == 2


def test_a_fork_that_asks_for_a_place_is_refused(alone):
    thread = answering(alone, lambda: alone.place(1, ["p0"]))
    member.take_place()
    thread.join()
    said, child = os.pipe(), os.fork()
    if child == 0:
        try:
            member.take_place()
        except ValueError as error:
            os.write(said[1], str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(said[1])
    with open(said[0], "rb") as text:
        assert f"process {os.getpid()} has this place" in text.read().decode()
    member.has_finished()
    alone.wait_for("finished", "p0")


def test_a_process_that_leaves_ends_with_0(alone):
    answering(alone, lambda: alone.send("p0", "leave", why="too many"))
    with pytest.raises(SystemExit) as caught:
        member.take_place()
    assert caught.value.code == 0


def test_without_a_driver_a_process_ends_with_a_sentence(alone):
    answering(alone, lambda: alone.drop("p0"))
    with pytest.raises(SystemExit, match=r"hvdtune: the driver of this elastic job at .* has gone"):
        member.take_place()


@pytest.mark.parametrize("name", [messages.IDENTITY, "HVDTUNE_SECRET"])
def test_a_variable_is_missing(alone, monkeypatch, name):
    monkeypatch.delenv(name)
    with pytest.raises(ValueError, match=f"{messages.DRIVER} is set, but {name} is not"):
        member.take_place()
