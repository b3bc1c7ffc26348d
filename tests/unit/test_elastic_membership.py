"""What the driver of an elastic job decides in the scenarios of Horovod's tests of jobs."""

from __future__ import annotations

import pytest
from elastic_job import ADDED, FAILED, REMOVED, Job

from hvdtune.core.driver import messages
from hvdtune.launch.elastic.actions import Cancel, End, Kill, News, Place, Start


@pytest.mark.parametrize("slots", [1, 2])
def test_hosts_added_and_removed(slots: int):
    job = Job(slots, slots, 2 * slots)
    old, new = ([f"{host}[{number}]" for number in range(slots)] for host in "ab")
    job.train(f"a:{slots}")
    job.hosts(f"a:{slots} b:{slots}")
    assert job.started() == new
    assert [start.start_rank for start in job.all(Start)] == list(range(slots, 2 * slots))
    job.ready(*new)
    assert (job.news().change, job.whom(News)) == (ADDED, old)
    job.ready(*old, reason=messages.INTERRUPT)
    assert (job.one(Place).generation, job.ranks(), job.newcomers()) == (2, old + new, new)
    assert job.one(Place).synchronise
    job.joined(*old, *new)
    job.hosts(f"b:{slots}")
    assert (job.news().change, job.whom(News)) == (REMOVED, old + new)
    job.ready(*old, *new, reason=messages.INTERRUPT)
    assert (job.one(Place).generation, job.ranks(), job.left()) == (3, new, old)
    assert "a[0] leaves the job" in job.said()
    assert not job.one(Place).synchronise


@pytest.mark.parametrize("code", [1, -9])
@pytest.mark.parametrize("polled", [False, True], ids=["script", "fixed hosts"])
def test_a_failure_costs_its_host(code: int, polled: bool):
    job = Job(4, 2, 4)
    job.train("a:2 b:2")
    job.exited("a[0]", code)
    assert job.whom(Kill) == ["a[1]"]
    assert job.whom(Cancel) == ["b[0]", "b[1]"]
    assert "a is excluded for ever (there is no --blacklist-cooldown-range)" in job.said()
    if polled:
        assert job.hosts("a:2 b:2") == []
    job.ready("b[0]", "b[1]")
    assert (job.ranks(), job.one(Place).synchronise) == (["b[0]", "b[1]"], True)
    job.joined("b[0]", "b[1]")
    assert job.exited("a[1]", -15) == []
    assert job.hosts("a:2 b:2") == []


def test_all_ranks_fail():
    job = Job(4, 2, 4)
    job.train("a:2 b:2")
    for name in ("a[0]", "a[1]", "b[0]"):
        job.exited(name, 1)
    assert job.end().status == 1
    assert FAILED in job.end().text
    assert "a[0] exited with code 1" in job.end().text


def test_all_hosts_are_excluded():
    job = Job(4, 2, 4)
    job.train("a:2 b:2")
    assert not job.exited("a[0]", 1)[0:0]
    job.exited("b[0]", -9)
    assert job.end().status == 1
    assert FAILED in job.end().text
    assert "b[0] was killed by SIGKILL" in job.end().text


def test_too_few_are_left_for_too_long():
    job = Job(4, 4, 4, elastic_timeout=25)
    job.train("a:2 b:2")
    job.exited("a[0]", 1)
    job.ready("b[0]", "b[1]")
    line = "4 slots are needed, 2 are there (b:2), 2 are missing"
    assert job.said() == f"waiting, for at most 25 s: {line}."
    job.wait(20)
    assert job.said().splitlines() == [
        f"waiting, for at most 15 s: {line}.",
        f"waiting, for at most 5 s: {line}.",
    ]
    job.wait(5)
    assert job.end().status == 1
    assert f"after 25 s (--elastic-timeout), {line}. {FAILED}: a[0] exited" in job.end().text


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_reset_limit(limit: int):
    job = Job(1, 1, 4, resets=limit)
    job.train("a:1")
    for count, hosts in enumerate(["a:1 b:1", "a:1 b:1 c:1", "a:1 b:1 c:1 d:1"][: limit + 1]):
        job.hosts(hosts)
        (new,) = job.started()
        job.ready(new)
        names = job.whom(News)
        job.ready(*names, reason=messages.INTERRUPT)
        if count < limit:
            job.joined(*names, new)
    assert job.end().status == 1
    assert job.end().text == (
        f"Horovod was shutdown because number of resets during elastic job exceeded limit: {limit}."
    )


def test_an_excluded_host_returns_after_its_cooldown():
    job = Job(4, 2, 4, cooldown=(1, 2))
    job.train("a:2 b:2")
    job.exited("b[1]", 1)
    assert "b is excluded for 2.0 s" in job.said()
    job.exited("b[0]", -15)
    job.ready("a[0]", "a[1]")
    assert job.ranks() == ["a[0]", "a[1]"]
    job.joined("a[0]", "a[1]")
    job.wait(1.9)
    assert job.hosts("a:2 b:2") == []
    job.wait(0.2)
    assert job.started() == ["b[0]", "b[1]"]
    job.ready("b[0]", "b[1]")
    assert job.news().change == ADDED


def test_the_start_waits_for_slots_of_any_number_of_hosts():
    job = Job(16, 2)
    assert job.hosts("a:0")[0].text.startswith("waiting, for at most 600 s: 16 slots are needed")
    for hosts in ("a:4", "a:4 b:8"):
        job.hosts(hosts)
        assert job.started() == []
    job.hosts("a:4 b:8 c:4")
    assert len(job.started()) == 16
    one = Job(4, 2)
    one.hosts("a:4")
    assert len(one.started()) == 4


def test_the_start_uses_all_slots_up_to_the_most():
    job = Job(2, 2, 3)
    job.hosts("a:2 b:2")
    assert job.started() == ["a[0]", "a[1]", "b[0]"]


def test_no_slots_for_the_start():
    job = Job(3, 1, elastic_timeout=12)
    job.hosts("a:2")
    job.wait(12)
    assert job.end() == End(
        1,
        "after 12 s (--elastic-timeout), 3 slots are needed, 2 are there (a:2), 1 is missing.",
    )
