"""What the driver of an elastic job decides: the scenarios of Horovod's tests, its known faults."""

from __future__ import annotations

import random

import pytest
from elastic_job import Job
from elastic_world import World
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hvdtune import _native
from hvdtune.core.driver import messages
from hvdtune.core.driver.changes import HostUpdateResult
from hvdtune.launch.elastic.actions import Cancel, End, Kill, Leave, News, Place, Start
from hvdtune.launch.elastic.limits import MOST_PROCESSES, Limits
from hvdtune.launch.elastic.membership import GRACE_SECONDS, PROBATION_SECONDS, STRIKES
from hvdtune.launch.elastic.suspicion import Lateness
from hvdtune.launch.errors import LaunchError

FAILED = "Horovod detected that one or more processes exited with non-zero status"
ADDED, REMOVED = HostUpdateResult.added, HostUpdateResult.removed


# The scenarios of Horovod's integration tests.


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


# The behaviours of Horovod's tests of its driver.


def test_ranks_and_sizes():
    job = Job(4, 2)
    job.hosts("a:2 b:2")
    job.ready("b[1]", "a[1]", "b[0]", "a[0]")
    assert job.ranks() == ["a[0]", "a[1]", "b[0]", "b[1]"]
    assert job.newcomers() == job.ranks()
    slots = [member.slot for member in job.one(Place).members]
    assert [(slot.local_rank, slot.local_size) for slot in slots] == [(0, 2), (1, 2)] * 2
    assert [(slot.cross_rank, slot.cross_size) for slot in slots] == [(0, 2)] * 2 + [(1, 2)] * 2


def test_a_host_that_fails_before_it_is_ready():
    job = Job(4, 2)
    job.hosts("a:2 b:2")
    job.ready("a[0]", "a[1]")
    job.exited("b[0]", 1)
    assert job.whom(Kill) == ["b[1]"]
    assert job.ranks() == ["a[0]", "a[1]"]
    assert job.one(Place).members[0].slot.cross_size == 1


def test_old_processes_keep_rank_and_local_rank_when_a_host_is_added():
    job = Job(2, 2)
    job.train("a:2")
    job.hosts("b:2 a:2")
    job.ready("b[1]", "b[0]")
    job.ready("a[1]", "a[0]", reason=messages.INTERRUPT)
    assert job.ranks() == ["a[0]", "a[1]", "b[0]", "b[1]"]
    assert {member.slot.cross_size for member in job.one(Place).members} == {2}


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


def test_who_trains_on_after_the_success_of_one_may_take_its_time():
    job = Job(4, 2)
    job.train("a:2 b:2")
    assert job.exited("a[0]", 0) == []
    assert job.hosts("a:2 b:2 c:2") == []  # no more growth
    assert job.membership.due() is None
    assert job.wait(100_000) == []
    for name in ("a[1]", "b[0]"):
        assert job.exited(name, 0) == []
    assert job.exited("b[1]", 0) == [End(0, "")]


def test_who_is_on_its_way_at_the_success_of_one_may_take_its_time():
    job = Job(3, 2)
    job.hosts("a:3")
    job.ready("a[0]", "a[1]", "a[2]")
    job.joined("a[0]", "a[1]")
    job.exited("a[0]", 0)
    assert job.membership.due() is None
    assert job.joined("a[2]") == []
    assert job.membership.due() is None


def test_the_end_of_what_was_broken_before_the_success_of_one_has_a_limit():
    job = Job(3, 1, elastic_timeout=50)
    job.train("a:1 b:1 c:1")
    job.exited("c[0]", 1)
    job.wait(20)
    job.exited("a[0]", 0)
    assert job.wait(29) == []
    job.wait(1)
    assert job.whom(Kill) == ["b[0]"]
    assert "b[0] is ended: the job has ended, and it did not within 50 s" in job.said()
    assert job.end().status == 1
    assert "b[0] was ended: the job has ended, and it did not within 50 s" in job.end().text


def test_a_failure_after_the_success_of_one_is_told_to_those_that_train():
    job = Job(4, 1)
    job.train("a:1 b:1 c:1 d:1")
    job.finished("d[0]")
    job.exited("a[0]", 0)
    job.exited("b[0]", 1)
    assert (job.whom(Cancel), job.one(Cancel).why) == (["c[0]"], "b[0] exited with code 1")
    assert "excluded" not in job.said()
    job.ready("c[0]")
    assert job.left() == ["c[0]"]
    job.exited("c[0]", 0)
    job.exited("d[0]", 0)
    assert job.end().status == 1


def test_who_has_finished_may_take_its_time():
    job = Job(4, 2)
    job.train("a:2 b:2")
    job.finished("a[0]", "a[1]", "b[0]", "b[1]")
    for name in ("b[1]", "b[0]", "a[1]"):
        assert job.exited(name, 0) == []
    assert job.membership.due() is None
    assert job.exited("a[0]", 0) == [End(0, "")]


def test_members_that_fail_at_the_end_count():
    job = Job(2, 1)
    job.train("a:1 b:1")
    job.finished("a[0]", "b[0]")
    job.exited("b[0]", 0)
    job.exited("a[0]", 3)
    assert job.end().status == 1
    assert FAILED in job.end().text
    assert "a[0] exited with code 3" in job.end().text


def test_a_survivor_is_told_to_leave_if_the_others_are_done():
    job = Job(2, 1)
    job.train("a:1 b:1")
    job.finished("a[0]")
    job.exited("a[0]", 0)
    assert job.whom(Leave) == []
    job.ready("b[0]")
    assert job.left() == ["b[0]"]
    assert job.exited("b[0]", 0) == [End(0, "")]


def test_newcomers_and_spares_leave_at_the_end():
    job = Job(1, 1, 1, spares=2)
    job.hosts("a:2")
    job.ready("a[0]", "a[1]")
    assert (job.ranks(), job.left()) == (["a[0]"], [])
    job.joined("a[0]")
    job.hosts("a:2 b:1")
    job.exited("a[0]", 0)
    assert (job.left(), job.whom(Kill)) == (["a[1]"], ["b[0]"])
    assert "b[0] is ended: the job has ended." in job.said()
    assert job.exited("a[1]", 0) == [End(0, "")]


def test_programs_that_never_ask_for_a_place():
    job = Job(2, 1)
    job.hosts("a:2")
    job.exited("a[0]", 0)
    assert job.membership.due() is None  # the other may take as long as it likes
    assert job.exited("a[1]", 0) == [End(0, "")]


def test_news_are_told_once_to_all_members():
    job = Job(2, 1, 8)
    job.train("a:2")
    job.hosts("a:2 b:1")
    assert job.all(News) == []  # not before somebody is ready
    job.ready("b[0]")
    assert (job.news().number, job.news().change, job.whom(News)) == (1, ADDED, ["a[0]", "a[1]"])
    assert job.hosts("a:2 b:1") == []
    job.hosts("a:1 b:1")
    assert (job.news().number, job.news().change) == (2, REMOVED)
    assert job.hosts("b:1")[1:] == []


def test_below_the_least_is_a_change_too():
    job = Job(2, 2, 8)
    job.train("a:2")
    job.hosts("a:1")
    assert job.news().change == REMOVED
    job.ready("a[0]", "a[1]", reason=messages.INTERRUPT)
    assert "2 slots are needed, 1 is there (a:1)" in job.said()
    assert job.left() == []
    job.hosts("a:1 b:1")
    assert job.started() == ["b[0]"]
    job.ready("b[0]")
    assert (job.ranks(), job.left()) == (["a[0]", "b[0]"], ["a[1]"])
    assert job.one(Place).synchronise  # somebody is new


def test_the_first_failure_of_discovery_ends_the_job():
    job = Job(2, 2)
    answer = job.tell("discovery_failed", "discover.sh ended with exit code 3")
    assert answer == [End(1, "host discovery failed: discover.sh ended with exit code 3.")]
    assert job.tell("discovery_failed", "again") == []


def test_later_failures_of_discovery_are_said_once():
    job = Job(2, 2)
    job.train("a:2")
    for words in (["the hosts stay", "exit code 3."], []):
        job.tell("discovery_failed", "exit code 3.")
        assert all(word in job.said() for word in words)
        assert bool(job.answer) == bool(words)
    job.hosts("a:2")
    assert job.said() == "host discovery answers again."


# Faults of elastic Horovod that people reported.


def test_whoever_is_new_makes_all_synchronise():
    """#3494: a host leaves, too few are left, others come later."""
    job = Job(2, 2)
    job.train("a:1 b:1")
    job.hosts("a:1")
    job.ready("a[0]", "b[0]", reason=messages.INTERRUPT)
    job.hosts("a:1 c:1")
    job.ready("c[0]")
    assert job.ranks() == ["a[0]", "c[0]"]
    assert job.one(Place).synchronise


def test_a_pod_that_is_deleted_while_others_finish():
    """#3852: the end is not the end of two, but of all."""
    job = Job(3, 1)
    job.train("a:1 b:1 c:1")
    job.exited("a[0]", -15)
    job.finished("b[0]", "c[0]")
    assert job.exited("b[0]", 0) == []
    job.exited("c[0]", 0)
    assert job.end().status == 1
    assert "a[0] was killed by SIGTERM" in job.end().text


def test_the_end_of_a_process_of_a_removed_host_excludes_nobody():
    """#2483: pods come back with the same name."""
    job = Job(2, 1)
    job.train("a:1 b:1")
    job.hosts("a:1")
    job.exited("b[0]", -15)
    assert "excluded" not in job.said()
    job.hosts("a:1 b:1")
    assert job.started() == ["b[0]"]


def test_a_process_of_a_removed_host_may_end_with_0():
    """Pods that are deleted end as their programs like; it is not the end of training."""
    job = Job(2, 1)
    job.train("a:1 b:1")
    job.hosts("a:1")
    job.exited("b[0]", 0)
    assert job.whom(Cancel) == ["a[0]"]
    job.ready("a[0]")
    assert job.ranks() == ["a[0]"]
    job.joined("a[0]")
    job.finished("a[0]")
    assert job.exited("a[0]", 0) == [End(0, "")]


def test_the_driver_acts_on_the_first_end():
    """PR 1965: it does not wait until all have noticed."""
    job = Job(2, 1, 4)
    job.train("a:1 b:1")
    job.hosts("a:1 b:1")
    job.exited("a[0]", -9)
    assert job.whom(Cancel) == ["b[0]"]
    assert job.exited("a[0]", -9) == []  # known


def test_a_host_that_returns_within_the_same_reset():
    job = Job(4, 4, cooldown=(1, 1))
    job.train("a:2 b:2")
    job.exited("b[0]", 1)
    job.exited("b[1]", -15)
    old = job.identities["b[0]"]
    job.ready("a[0]", "a[1]")
    job.wait(2)
    assert job.started() == ["b[0]", "b[1]"]
    assert job.identities["b[0]"] != old
    assert job.exited(old, 1) == []
    job.ready("b[0]", "b[1]")
    assert job.ranks() == ["a[0]", "a[1]", "b[0]", "b[1]"]
    assert job.newcomers() == ["b[0]", "b[1]"]


def test_a_slot_is_free_only_after_the_end_of_its_process():
    job = Job(2, 1)
    job.train("a:1 b:1")
    job.hosts("a:1")
    job.ready("a[0]", "b[0]", reason=messages.INTERRUPT)
    job.joined("a[0]")
    assert job.hosts("a:1 b:1")[1:] == []
    old = job.identities["b[0]"]
    job.exited("b[0]", 0)
    assert job.started() == ["b[0]"]
    assert job.ready(old) == [Leave(old, "the job goes on without it")]
    assert job.exited(old, 1) == []


def test_news_wait_for_the_generation_to_come_together():
    """The reference drops a change if rank 0 is not listening yet."""
    job = Job(2, 2)
    job.hosts("a:2")
    job.ready("a[0]", "a[1]")
    job.hosts("a:2 b:1")
    job.ready("b[0]")
    assert job.all(News) == []
    job.joined("a[0]")
    assert job.all(News) == []
    job.joined("a[1]")
    assert job.news().change == ADDED


# What Horovod has no tests for.


def test_news_wait_for_all_that_one_change_started():
    job = Job(1, 1, 8, start_timeout=30)
    job.train("a:1")
    job.hosts("a:1 b:2")
    job.ready("b[0]")
    assert job.all(News) == []
    job.hosts("a:1 b:2 c:1")
    job.ready("c[0]")
    assert job.news().change == ADDED  # all of c, although one of b is late
    job.wait(30)
    late = "30 s after the first process that was started with it (--start-timeout)"
    assert job.said() == f"b[1] (started as rank 2) was not ready {late}."
    assert job.whom(Kill) == ["b[1]"]
    job.exited("b[1]", -15)
    assert job.started() == ["b[1]"]


def test_newcomers_that_are_late_cost_their_slot_in_the_end():
    job = Job(1, 1, 8, start_timeout=30)
    job.train("a:1")
    job.hosts("a:1 b:2")
    job.ready("b[0]")
    for count, seconds in enumerate((30, 600, 600), start=1):
        job.wait(seconds)
        assert job.whom(Kill) == ["b[1]"]
        words = f"b[1] (started as rank {count + 1}) was not ready within 600 s (--elastic-timeout)"
        assert (words in job.said()) == (count > 1)
        assert ("b[1] is excluded for ever" in job.said()) == (count == STRIKES)
        job.exited("b[1]", -15)
        assert job.started() == (["b[1]"] if count < STRIKES else [])


def test_before_the_first_generation_all_are_waited_for():
    job = Job(3, 2, start_timeout=4, elastic_timeout=60)
    job.hosts("a:2 b:1")
    job.ready("a[0]", "b[0]")
    assert job.wait(59) == []
    job.ready("a[1]")
    assert job.ranks() == ["a[0]", "a[1]", "b[0]"]
    job = Job(3, 2, start_timeout=4, elastic_timeout=60)
    job.hosts("a:2 b:1")
    job.ready("a[0]", "b[0]")
    job.wait(60)
    assert "a[1] (started as rank 1) was not ready within 60 s (--elastic-timeout)." in job.said()
    assert "a[1] is excluded for ever" in job.said()
    assert (job.ranks(), job.whom(Kill), job.started()) == (["a[0]", "b[0]"], ["a[1]"], [])


def test_newcomers_that_fail_cost_no_member():
    job = Job(2, 1, 8)
    job.train("a:2")
    job.hosts("a:4")
    job.tell("not_started", job.identities["a[2]"], "no route to host")
    assert "a[2] (started as rank 2) could not be started: no route to host." in job.said()
    assert job.whom(Kill) == ["a[3]"]
    assert job.exited("a[3]", -15) == []
    assert job.hosts("a:4") == []


def test_survivors_do_not_wait_for_newcomers_unless_too_few():
    job = Job(2, 1, 8)
    job.train("a:1 b:1")
    job.hosts("a:1 b:1 c:2")
    job.ready("c[0]")
    job.exited("b[0]", 1)
    job.ready("a[0]")
    assert job.ranks() == ["a[0]", "c[0]"]
    few = Job(2, 2, 8)
    few.train("a:1 b:1")
    few.exited("b[0]", 1)
    few.hosts("a:1 b:1 c:2")
    few.ready("a[0]", "c[0]")
    assert "processes are starting" in few.said() or few.all(Place) == []
    few.ready("c[1]")
    assert few.ranks() == ["a[0]", "c[0]", "c[1]"]


def test_too_few_give_up_if_newcomers_fail_again_and_again():
    job = Job(2, 2, 2, cooldown=(1, 1), elastic_timeout=20)
    job.train("a:1 b:1")
    job.exited("b[0]", 1)
    job.ready("a[0]")
    while not job.all(End) and job.now < 100:
        job.wait(1)
        for name in job.started():
            job.exited(name, 1)
    assert "after 20 s (--elastic-timeout), 2 slots are needed" in job.end().text


def test_a_member_that_dies_before_all_have_joined():
    job = Job(3, 1)
    job.hosts("a:1 b:1 c:1")
    job.ready("a[0]", "b[0]", "c[0]")
    job.exited("b[0]", -9)
    assert job.one(Cancel).generation == 1
    assert job.one(Cancel).why.startswith("b[0] was killed by SIGKILL")
    assert job.whom(Cancel) == ["a[0]", "c[0]"]
    job.ready("a[0]", "c[0]")
    assert job.ranks() == ["a[0]", "c[0]"]
    assert job.newcomers() == ["a[0]", "c[0]"]  # they have never come together


def test_a_newcomer_that_was_never_synchronised_stays_one():
    job = Job(2, 1, 8)
    job.train("a:2")
    job.hosts("a:2 b:1 c:1")
    job.ready("b[0]", "c[0]")
    job.ready("a[0]", "a[1]", reason=messages.INTERRUPT)
    job.joined("a[0]", "a[1]", "b[0]")
    job.exited("c[0]", 1)
    assert job.whom(Kill) == []
    job.ready("a[0]", "a[1]", "b[0]", reason=messages.INTERRUPT)
    assert (job.ranks(), job.newcomers()) == (["a[0]", "a[1]", "b[0]"], ["b[0]"])


def test_a_member_keeps_its_place_even_if_a_newcomer_was_started_before_it():
    job = Job(1, 1, 2, spares=1)
    job.train("a:1")
    job.hosts("a:1 b:2")
    assert job.started() == ["b[0]", "b[1]"]
    job.ready("b[1]")  # b[0] is late
    job.ready("a[0]")
    assert job.ranks() == ["a[0]", "b[1]"]
    job.ready("b[0]", "b[1]", "a[0]")  # that one did not come together
    assert job.ranks() == ["a[0]", "b[1]"]


def test_states_that_differ_are_synchronised_even_if_the_first_attempt_was_cancelled():
    job = Job(3, 1)
    job.train("a:1 b:1 c:1")
    job.exited("c[0]", 1)
    job.ready("a[0]", "b[0]")
    assert job.one(Place).synchronise
    for name in ("a[0]", "b[0]"):  # one comes back without a failure of its own
        job.ready(name, reason=messages.INTERRUPT)
    assert job.one(Place).synchronise
    job.joined("a[0]", "b[0]")
    job.ready("a[0]", "b[0]", reason=messages.INTERRUPT)
    assert not job.one(Place).synchronise


def test_nobody_goes_on_without_the_state():
    job = Job(1, 1, 8)
    job.train("a:1")
    job.hosts("a:1 b:1")
    job.ready("b[0]")
    job.exited("a[0]", -9)
    assert job.end().status == 1
    assert "none is left that could go on" in job.end().text
    job = Job(1, 1, 8)
    job.train("a:1")
    job.hosts("a:1 b:1")
    job.ready("b[0]")
    job.ready("a[0]", reason=messages.INTERRUPT)
    job.joined("b[0]")
    job.exited("a[0]", -9)  # before both are known to have come together
    assert "none is left that could go on" in job.end().text


def test_the_start_is_tried_on_all_hosts():
    job = Job(2, 1, 2)
    job.hosts("a:1 b:1 c:1 d:2")
    job.tell("not_started", job.identities["a[0]"], "no route to host")
    assert job.started() == ["c[0]"]
    for name, then in (("b[0]", ["d[0]"]), ("c[0]", ["d[1]"]), ("d[1]", [])):
        assert not job.all(End)
        job.exited(name, 1)
        assert job.started() == then
    assert job.end().status == 1
    job = Job(2, 1, 2)
    job.hosts("a:2 b:2")
    job.exited("a[0]", 1)
    assert (job.whom(Kill), job.started()) == (["a[1]"], ["b[0]", "b[1]"])


def test_all_hosts_are_replaced_at_once():
    job = Job(2, 2, 4)
    job.train("a:2")
    job.hosts("b:2")
    job.ready("a[0]", "a[1]", reason=messages.INTERRUPT)
    assert (job.all(Place), job.left()) == ([], [])
    job.ready("b[0]", "b[1]")
    assert job.ranks() == ["a[0]", "b[0]", "b[1]"]
    assert job.left() == ["a[1]"]
    job.joined("a[0]", "b[0]", "b[1]")
    assert job.news().change == REMOVED
    job.ready("b[0]", "b[1]", "a[0]", reason=messages.INTERRUPT)
    assert (job.ranks(), job.left()) == (["b[0]", "b[1]"], ["a[0]"])


def test_the_state_is_handed_over_even_if_the_first_attempt_fails():
    job = Job(1, 1, 4)
    job.train("a:1")
    job.hosts("b:2")
    job.ready("b[0]", "b[1]")
    job.ready("a[0]", reason=messages.INTERRUPT)
    assert job.ranks() == ["a[0]", "b[0]", "b[1]"]
    job.joined("b[0]", "b[1]")
    job.ready("a[0]", "b[0]", "b[1]")
    assert job.ranks() == ["a[0]", "b[0]", "b[1]"]


def test_the_only_process_cannot_be_replaced():
    job = Job(1, 1, 1)
    job.train("a:1")
    job.hosts("b:1")
    job.ready("b[0]")
    job.ready("a[0]", reason=messages.INTERRUPT)
    assert "No hosts from previous set remaining, unable to broadcast state" in job.end().text


def test_hosts_that_vanish_for_one_answer():
    job = Job(2, 2)
    job.train("a:2")
    job.hosts("")
    assert job.news().change == REMOVED
    job.ready("a[0]", "a[1]", reason=messages.INTERRUPT)
    assert job.left() == []
    job.hosts("a:2")
    assert job.ranks() == ["a[0]", "a[1]"]
    assert not job.one(Place).synchronise


def test_hosts_that_vanish_before_the_first_place():
    job = Job(2, 1)
    job.hosts("a:2")
    job.ready("a[0]")
    job.hosts("")
    assert (job.left(), job.whom(Kill)) == (["a[0]"], ["a[1]"])
    job.hosts("b:1")
    assert job.started() == []  # the start needs two
    job.hosts("b:2")
    assert job.started() == ["b[0]", "b[1]"]


def test_fewer_slots_cost_the_highest():
    job = Job(2, 1)
    job.train("a:4")
    job.hosts("a:2")
    names = job.whom(News)
    job.ready(*names, reason=messages.INTERRUPT)
    assert (job.ranks(), job.left()) == (["a[0]", "a[1]"], ["a[2]", "a[3]"])


def test_a_silent_process_is_lost_and_told_to_leave_if_it_returns():
    job = Job(2, 1)
    job.train("a:1 b:1")
    job.silent("b[0]")
    assert (job.whom(Kill), job.whom(Cancel)) == (["b[0]"], ["a[0]"])
    assert job.one(Cancel).why == "b[0] has not answered for 5 s"
    assert "b[0] (started as rank 1) has not answered for 5 s." in job.said()
    job.ready("a[0]")
    assert job.ranks() == ["a[0]"]
    job.ready("b[0]")
    assert job.left() == ["b[0]"]
    assert job.silent("b[0]") == []


def test_a_member_that_does_not_come_to_the_others_is_lost():
    job = Job(3, 1, elastic_timeout=60)
    job.train("a:1 b:1 c:1")
    job.ready("a[0]")
    assert job.whom(Cancel) == ["b[0]", "c[0]"]
    job.ready("b[0]")
    job.wait(59)
    assert job.answer == []
    job.wait(1)
    assert job.whom(Kill) == ["c[0]"]
    assert job.ranks() == ["a[0]", "b[0]"]


def test_a_generation_that_does_not_come_together_is_called_back():
    job = Job(3, 1, elastic_timeout=60)
    job.hosts("a:1 b:1 c:1")
    job.ready("a[0]", "b[0]", "c[0]")
    job.joined("a[0]")
    job.wait(60)
    assert job.whom(Cancel) == ["a[0]", "b[0]", "c[0]"]
    late = "generation 1 did not come together within 60 s (--elastic-timeout)"
    assert job.one(Cancel).why == late
    assert job.whom(Kill) == []
    job.ready("a[0]", "b[0]")
    job.wait(60)
    assert job.whom(Kill) == ["c[0]"]
    assert job.ranks() == ["a[0]", "b[0]"]


def test_a_member_that_joins_what_has_ended_already():
    job = Job(3, 1, elastic_timeout=60)
    job.hosts("a:1 b:1 c:1")
    job.ready("a[0]", "b[0]", "c[0]")
    job.exited("c[0]", 1)
    job.ready("b[0]")
    assert job.joined("a[0]") == []  # said before it heard of the end; then nothing more
    job.wait(60)
    assert job.whom(Kill) == ["a[0]"]
    assert job.ranks() == ["b[0]"]


def test_a_question_after_a_cancel_counts_whatever_its_generation():
    job = Job(3, 1)
    job.hosts("a:1 b:1 c:1")
    job.ready("a[0]", "b[0]", "c[0]")
    job.exited("c[0]", 1)
    job.ready("a[0]")
    job.tell("ready", job.identities["b[0]"], 0, messages.START, "")
    assert job.ranks() == ["a[0]", "b[0]"]


def test_a_question_that_was_under_way_when_the_place_was_told():
    job = Job(2, 2)
    job.train("a:2")
    job.ready("a[0]", "a[1]")
    assert job.one(Place).generation == 2
    assert job.tell("ready", job.identities["a[0]"], 1, messages.FAILURE, "") == []
    job.joined("a[0]", "a[1]")
    assert job.membership.due() is None


def test_words_of_an_earlier_generation():
    job = Job(2, 2)
    job.train("a:2")
    job.ready("a[0]", "a[1]")
    for name in ("a[0]", "a[1]"):
        assert job.tell("joined", job.identities[name], 1) == []
    job.hosts("a:3")
    job.ready("a[2]")
    assert job.all(News) == []  # generation 2 has not come together
    assert job.tell("ready", "nobody", 0, messages.START, "") == [
        Leave("nobody", "the job goes on without it")
    ]
    assert job.tell("joined", "nobody", 2) == job.tell("finished", "nobody") == []


def test_a_spare_takes_the_place_of_the_lost():
    job = Job(2, 1, 2, spares=1)
    job.hosts("a:1 b:1 c:2")
    assert job.started() == ["a[0]", "b[0]", "c[0]"]
    job.ready("a[0]", "b[0]", "c[0]")
    assert job.ranks() == ["a[0]", "b[0]"]
    assert job.joined("a[0]", "b[0]") == []
    assert job.membership.due() is None
    job.exited("a[0]", -9)
    assert job.started() == ["c[1]"]
    job.ready("b[0]")
    assert (job.ranks(), job.newcomers()) == (["b[0]", "c[0]"], ["c[0]"])


def test_a_spare_is_younger_than_who_trains_although_it_was_started_earlier():
    job = Job(1, 1, 3, spares=1)
    job.train("a:1")
    job.hosts("a:1 b:3")
    b = job.started()
    assert len(b) == 3
    job.ready(*b)
    job.ready("a[0]", reason=messages.INTERRUPT)
    assert job.ranks() == ["a[0]", "b[0]", "b[1]"]
    job.joined("a[0]", "b[0]", "b[1]")
    job.hosts("a:1 b:1 c:1")  # b[1] and the spare lose their slots
    assert (job.left(), job.started()) == (["b[2]"], ["c[0]"])


def test_too_many_newcomers_are_let_go():
    job = Job(2, 1, 2)
    job.train("a:2")
    job.hosts("b:2")
    job.ready("b[0]")
    job.hosts("b:2 a:2")
    assert (job.left(), job.whom(Kill)) == (["b[0]"], ["b[1]"])


def test_hosts_beyond_the_most_change_nothing():
    job = Job(2, 2, 2)
    job.train("a:2")
    job.hosts("b:2 a:2")
    assert (job.started(), job.all(News)) == ([], [])


def test_local_ranks_are_the_numbers_of_their_slots():
    job = Job(4, 1, replaces_failed=True, cooldown=(1, 1))
    job.train("a:4")
    job.exited("a[1]", 1)
    job.ready("a[0]", "a[2]", "a[3]")
    slots = [member.slot for member in job.one(Place).members]
    local = [slot.local_rank for slot in slots]
    assert (job.ranks(), local) == (["a[0]", "a[2]", "a[3]"], [0, 2, 3])
    assert {(slot.size, slot.local_size) for slot in slots} == {(3, 4)}
    job.joined("a[0]", "a[2]", "a[3]")
    job.wait(2)
    assert job.started() == ["a[1]"]
    assert job.one(Start).start_rank == 4  # the output of its predecessor stays
    assert (job.one(Start).planned.rank, job.one(Start).planned.local_rank) == (3, 1)
    job.ready("a[1]")
    job.ready("a[0]", "a[2]", "a[3]", reason=messages.INTERRUPT)
    local = [member.slot.local_rank for member in job.one(Place).members]
    assert (job.ranks(), local) == (["a[0]", "a[2]", "a[3]", "a[1]"], [0, 2, 3, 1])


def test_a_replacement_has_the_local_rank_of_nobody_else():
    job = Job(4, 1, start_timeout=5, replaces_failed=True)
    job.train("a:3 b:1")
    job.exited("a[0]", 1)
    for _ in range(STRIKES - 1):  # the slot stays empty
        job.exited("a[0]", 1)
    job.ready("a[1]", "a[2]", "b[0]")
    job.joined("a[1]", "a[2]", "b[0]")
    job.exited("a[2]", 1)
    assert (job.started(), job.one(Start).planned.local_rank) == (["a[2]"], 2)
    job.ready("a[1]", "b[0]")
    slots = {member.identity[:4]: member.slot for member in job.one(Place).members}
    # A host has as many processes as the job: that is by chance, and the other host there.
    assert (slots["a[1]"].local_rank, slots["a[1]"].local_size) == (1, 2)
    assert (slots["a[1]"].cross_size, slots["b[0]"].cross_size, slots["b[0]"].size) == (1, 1, 2)


def test_a_failed_process_is_replaced_at_once_on_request():
    job = Job(2, 1, 2, replaces_failed=True)
    job.train("a:2")
    job.exited("a[1]", -9)
    assert job.started() == ["a[1]"]
    job.ready("a[0]")
    assert job.ranks() == ["a[0]"]


def test_a_slot_where_no_process_starts_is_given_up():
    job = Job(2, 1, 2, replaces_failed=True)
    job.train("a:2")
    job.wait(PROBATION_SECONDS)
    job.exited("a[1]", 1)
    for count in range(1, STRIKES + 1):
        assert job.started() == ["a[1]"]
        job.exited("a[1]", 1)
        assert ("a[1] is excluded for ever" in job.said()) == (count == STRIKES)
    assert job.started() == []


@pytest.mark.parametrize("seconds", [0.0, PROBATION_SECONDS - 1, PROBATION_SECONDS])
def test_a_slot_whose_processes_fail_soon_after_they_have_joined_is_given_up(seconds):
    job = Job(2, 1, 2, replaces_failed=True)
    job.train("a:2")
    for count in range(1, 3 * STRIKES):
        job.wait(seconds)
        job.exited("a[1]", 1)
        given_up = "a[1] is excluded for ever (" in job.said()
        assert given_up == (count == STRIKES and seconds < PROBATION_SECONDS)
        assert "--replace-failed" not in job.said()
        if given_up:
            break
        job.ready("a[1]", "a[0]")
        job.joined("a[0]", "a[1]")


def test_failures_with_a_success_between_them_are_not_in_a_row():
    job = Job(2, 1, 2, replaces_failed=True)
    job.train("a:2")
    for seconds in (1, 1, PROBATION_SECONDS, 1, 1):
        job.wait(seconds)
        job.exited("a[1]", 1)
        assert "excluded" not in job.said()
        job.ready("a[1]", "a[0]")
        job.joined("a[0]", "a[1]")


@pytest.mark.parametrize(
    ("replaces", "cooldown", "names_flag"),
    [(None, None, False), (False, None, True), (False, (1, 9), True)],
)
def test_the_flag_that_spares_the_host_is_named_to_those_who_have_it(
    replaces, cooldown, names_flag
):
    job = Job(3, 1, replaces_failed=replaces, cooldown=cooldown)
    job.train("a:1 b:1 c:1")
    words = "With --replace-failed only that process would be replaced."
    job.exited("c[0]", 1)
    assert (words in job.said()) == names_flag
    job.exited("b[0]", 1)
    assert "b is excluded" in job.said()
    assert words not in job.said()  # once is enough


# Stragglers.


def test_a_straggler_is_replaced_as_a_failed_process_on_request():
    job = Job(3, 2, straggler_seconds=20, replaces_failed=True)
    job.train("a:2 b:1")
    assert job.late(1, looks=2) == []
    assert (job.late(1), job.whom(Kill), job.whom(Cancel)) == (
        job.answer,
        ["a[1]"],
        ["a[0]", "b[0]"],
    )
    assert (
        "a[1] (started as rank 1) is late: the others wait for it 30 ms a step, 30% of the time, "
        "and have done so through 20 s of steps; it is ended (--replace-stragglers)."
    ) in job.said()
    assert "a[1] is excluded for ever" in job.said()
    assert "failed" not in job.said()
    assert job.late(1, looks=9) == [], "of a generation that is over"
    job.ready("a[0]", "b[0]")
    assert job.ranks() == ["a[0]", "b[0]"]
    job.joined("a[0]", "b[0]")
    assert job.exited("a[1]", -15) == []
    job.hosts("a:3 b:1")
    assert job.started() == ["a[2]"], "beside the slot that is excluded"


def test_a_straggler_costs_its_host_as_a_failed_process_does():
    job = Job(4, 2, straggler_seconds=20)
    job.train("a:2 b:2")
    job.late(0, looks=3)
    assert job.whom(Kill) == ["a[0]", "a[1]"]
    assert "a[1] is ended: a[0] was late, and its host is excluded." in job.said()
    job.ready("b[0]", "b[1]")
    assert job.ranks() == ["b[0]", "b[1]"]


def test_nobody_is_replaced_who_is_late_now_and_then():
    job = Job(3, 1, straggler_seconds=20, replaces_failed=True)
    job.train("a:3")
    for _ in range(5):
        assert job.late(1, looks=2) == []
        assert job.late(looks=1) == []
        assert job.late(2, looks=2) == [], "another one"
    seldom = Lateness((1,), 0.5, 0.3, 0.59, 10_000, 0.1)
    for _ in range(9):
        seldom = seldom._replace(steps=seldom.steps + 300)
        assert job.tell("measured", job.identities["a[0]"], 1, seldom) == []


def test_time_without_steps_says_nothing():
    job = Job(3, 1, straggler_seconds=20, replaces_failed=True)
    job.train("a:3")
    job.late(1)
    for _ in range(10):
        job.wait(100)
        assert job.late(1, steps=0) == []
    few = Lateness((1,), 30.0, 0.3, 0.9, job.steps + 39, 60.0)
    assert job.tell("measured", job.identities["a[0]"], 1, few) == [], "the same steps, nearly"


def test_who_is_not_rank_0_and_generations_that_are_over_are_not_believed():
    job = Job(3, 1, straggler_seconds=1, replaces_failed=True)
    job.train("a:3")
    assert job.late(1, looks=9, rank0="a[1]") == []
    assert job.late(3, looks=9) == job.late(-1, looks=9) == [], "no rank"
    old = job.identities["a[0]"], 1
    job.exited("a[2]", 1)
    job.ready("a[0]", "a[1]")
    job.joined("a[0]", "a[1]")
    assert job.membership.generation == 2
    for steps in range(100, 1000, 100):
        assert job.tell("measured", *old, Lateness((1,), 0.1, 0.5, 1.0, steps, 0.1)) == []


def test_without_the_flag_nobody_is_replaced():
    job = Job(3, 1, replaces_failed=True)
    job.train("a:3")
    assert job.late(1, looks=99) == []
    assert not job.membership.measures


def test_a_straggler_stays_if_too_few_would_be_left():
    job = Job(2, 2, 3, straggler_seconds=20, replaces_failed=True)
    job.train("a:2")
    job.late(1, looks=3)
    assert "it stays: too few would be left without it (--min-np)." in job.said()
    assert not job.all(Kill)
    assert job.late(1, looks=9) == [], "said once"
    job.hosts("a:2 b:1")
    job.ready("b[0]")
    job.ready("a[0]", "a[1]", reason=messages.INTERRUPT)
    job.joined("a[0]", "a[1]", "b[0]")
    job.late(1, looks=3)
    assert job.whom(Kill) == ["a[1]"]


def test_a_spare_counts_among_those_who_are_left_and_a_host_with_the_state():
    job = Job(2, 2, 2, spares=1, straggler_seconds=20, replaces_failed=True)
    job.hosts("a:2 b:1")
    job.ready("a[0]", "a[1]", "b[0]")
    job.joined("a[0]", "a[1]")
    job.late(1, looks=3)
    assert job.whom(Kill) == ["a[1]"]
    job.ready("a[0]")
    assert job.ranks() == ["a[0]", "b[0]"]
    alone = Job(2, 1, 2, spares=1, straggler_seconds=20)
    alone.hosts("a:2 b:1")
    alone.ready("a[0]", "a[1]", "b[0]")
    alone.joined("a[0]", "a[1]")
    alone.late(1, looks=3)
    assert not alone.all(Kill), "nobody on b has the state"
    assert "without its host" in alone.said()


def test_a_host_that_is_late_as_a_whole_is_named_and_stays():
    job = Job(4, 2, straggler_seconds=20, replaces_failed=True)
    job.train("a:2 b:2")
    job.late(2, 3, looks=3)
    assert "host b as a whole (2 processes) is late" in job.said()
    assert "its processes stay" in job.said()
    assert not job.all(Kill)
    assert job.late(2, 3, looks=9) == [], "said once"


def test_a_straggler_stays_while_others_come_or_the_job_may_not_form_anew():
    job = Job(3, 1, 4, straggler_seconds=20, replaces_failed=True, resets=1)
    job.train("a:3")
    job.hosts("a:4")
    assert job.late(1, looks=9) == [], "one is starting"
    job.ready("a[3]")
    assert job.late(1, looks=9) == [], "the others have been told of it"
    job.ready("a[0]", "a[1]", "a[2]", reason=messages.INTERRUPT)
    assert job.late(1, looks=9) == [], "they come together"
    job.joined("a[0]", "a[1]", "a[2]", "a[3]")
    assert job.late(1, looks=9) == [], "another reset would end the job"


def test_members_that_finish_may_train_again():
    """Programs may call several elastic functions, one after the other."""
    job = Job(2, 1, 4)
    job.train("a:1 b:1")
    job.finished("a[0]", "b[0]")
    job.hosts("a:1 b:1 c:1")
    assert job.started() == []
    job.exited("b[0]", 1)
    assert job.whom(Cancel) == []
    job.ready("a[0]")
    assert (job.ranks(), job.started()) == (["a[0]"], ["c[0]"])
    job.joined("a[0]")
    job.ready("c[0]")
    assert job.news().change == ADDED


def test_a_finished_member_is_waited_for_without_a_limit():
    job = Job(3, 1)
    job.train("a:1 b:1 c:1")
    job.finished("a[0]")
    job.exited("b[0]", 1)
    job.ready("c[0]")
    assert job.wait(10_000) == []
    job.exited("a[0]", 0)
    assert job.left() == ["c[0]"]
    job.wait(GRACE_SECONDS)
    assert job.whom(Kill) == ["c[0]"]
    assert job.end().status == 1


def test_why_members_have_lost_each_other_is_said_once():
    job = Job(2, 1)
    job.train("a:1 b:1")
    for name, words in (("b[0]", "generation 1 has ended for b[0]: no route to a."), ("a[0]", "")):
        job.tell("ready", job.identities[name], 1, messages.FAILURE, "no route to a.")
        assert words in job.said()
        assert ("has ended" in job.said()) == bool(words)
        assert [f"{cancel.why}." for cancel in job.all(Cancel)] == [words][: len(words)]


def test_who_has_finished_may_resume():
    """It is waited for without a limit no more, and is told what it has missed."""
    job = Job(3, 1, elastic_timeout=60)
    job.train("a:1 b:1 c:1")
    job.finished("a[0]", "b[0]")
    for name in ("a[0]", "b[0]"):
        assert job.tell("resumed", job.identities[name]) == []
    assert job.membership.due() is None
    job.finished("a[0]")
    job.exited("c[0]", 1)
    assert job.whom(Cancel) == ["b[0]"]
    job.ready("b[0]")
    assert job.wait(1_000) == []
    job.tell("resumed", job.identities["a[0]"])
    assert (job.whom(Cancel), job.one(Cancel).why) == (["a[0]"], "c[0] exited with code 1")
    job.wait(60)
    assert (job.whom(Kill), job.ranks()) == (["a[0]"], ["b[0]"])
    assert job.tell("resumed", job.identities["b[0]"]) == job.tell("resumed", "nobody") == []


def test_who_resumes_after_others_have_left_for_news_has_a_limit():
    job = Job(2, 1, elastic_timeout=60)
    job.train("a:1 b:1")
    job.finished("a[0]")
    job.ready("b[0]", reason=messages.INTERRUPT)
    assert job.tell("resumed", job.identities["a[0]"]) == []  # its engine tells it
    job.ready("a[0]")
    assert job.ranks() == ["a[0]", "b[0]"]


def test_one_process_is_no_processes():
    job = Job(2, 1)
    job.train("a:1 b:1")
    job.exited("b[0]", 1)
    job.ready("a[0]")
    assert job.said() == "generation 2 has 1 process: a:1."


def test_who_does_not_leave_is_killed():
    job = Job(2, 1)
    job.train("a:1 b:1")
    job.hosts("a:1")
    job.ready("a[0]", "b[0]", reason=messages.INTERRUPT)
    assert job.left() == ["b[0]"]
    job.joined("a[0]")
    job.wait(GRACE_SECONDS)
    assert job.whom(Kill) == ["b[0]"]
    assert job.said() == f"b[0] is ended: it did not end within {GRACE_SECONDS:g} s."
    job.exited("b[0]", -9)
    assert job.exited("a[0]", 0) == [End(0, "")]


def test_who_has_a_rank():
    job = Job(2, 1)
    job.train("a:1 b:1")
    ask = job.membership.identity_at
    assert ask(1, 1) == job.identities["b[0]"]
    assert [ask(1, 2), ask(1, -1), ask(0, 0), ask(2, 0)] == [None] * 4


def test_nothing_follows_the_end():
    job = Job(2, 1)
    job.train("a:2")
    job.exited("a[0]", 1)
    assert job.end().status == 1
    job.exited("a[1]", -15)
    assert job.answer == []
    assert job.hosts("b:2") == job.ready("a[1]") == job.tell("tick") == []
    assert job.membership.due() is None


def test_many_hosts_are_not_all_named():
    job = Job(1, 1, 1)
    job.train("a:1")
    job.hosts(" ".join(f"node{index}:1" for index in range(10_000)))
    assert "node7:1, and 9992 more." in job.said()


def test_many_hosts_and_processes():
    job = Job(256, 2, 256)
    job.hosts(" ".join(f"node{index}:1" for index in range(10_000)))
    names = job.started()
    assert len(names) == 256
    job.ready(*names)
    assert len(job.one(Place).members) == 256


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ((2, 0), ["--min-np 0", "1 or more"]),
        ((2, 3), ["-np 2", "--min-np 3"]),
        ((4, 2, 3), ["--max-np 3", "4 processes"]),
        ((4, 2, None, -1), ["--reset-limit -1"]),
        ((2000, 2), ["2000", "1024"]),
        ((2, 2, 2000), ["2000", "1024"]),
    ],
)
def test_limits_that_contradict_each_other(limits, words):
    with pytest.raises(LaunchError) as caught:
        Limits(*limits).check()
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(("spares", "words"), [(-1, "--spares -1"), (1, "--max-np")])
def test_spares_need_a_most(spares, words):
    with pytest.raises(LaunchError, match=words):
        Limits(2, 2, spares=spares).check()


def test_the_most_processes_are_those_the_engine_connects():
    assert MOST_PROCESSES == _native.MAX_RANKS


# Whatever happens.

QUIETLY = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))


@st.composite
def fates(draw):
    """Limits, a cool-down, a number of events, and a seed for what they are."""
    least = draw(st.integers(1, 4))
    processes = least + draw(st.integers(0, 3))
    most = draw(st.one_of(st.none(), st.integers(processes, processes + 4)))
    limits = Limits(
        processes,
        least,
        most,
        resets=draw(st.sampled_from([None, None, None, 0, 1, 3])),
        elastic_timeout=draw(st.sampled_from([20.0, 60.0])),
        start_timeout=draw(st.sampled_from([5.0, 15.0])),
        spares=draw(st.integers(0, 2)) if most else 0,
        replaces_failed=draw(st.booleans()),
        straggler_seconds=draw(st.sampled_from([None, 5.0])),
    )
    cooldown = draw(st.sampled_from([None, (1, 2), (2, 20)]))
    return limits, cooldown, draw(st.integers(0, 200)), draw(st.integers(0, 2**32))


def live(fate) -> None:
    limits, cooldown, steps, seed = fate
    world = World(random.Random(seed), limits, cooldown)
    try:
        for _ in range(steps):
            if world.end is None:
                world.step()
        world.calm_down()
    except Exception:
        print(limits, cooldown, "\n".join(world.log), sep="\n")
        raise


@settings(QUIETLY, max_examples=150, derandomize=True)
@given(fates())
def test_any_history(fate):
    live(fate)


@pytest.mark.long
@settings(QUIETLY, max_examples=4_000)
@given(fates())
def test_many_histories(fate):
    live(fate)
