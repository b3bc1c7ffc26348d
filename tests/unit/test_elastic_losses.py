"""Processes that fail, fall silent or do not come, and hosts and slots that are given up for it."""

from __future__ import annotations

import pytest
from elastic_job import Job

from hvdtune.core.driver import messages
from hvdtune.launch.elastic.actions import Cancel, End, Kill, Place
from hvdtune.launch.elastic.exclusion import STRIKES
from hvdtune.launch.elastic.membership import PROBATION_SECONDS
from hvdtune.launch.elastic.orders import GRACE_SECONDS


def test_a_host_that_fails_before_it_is_ready():
    job = Job(4, 2)
    job.hosts("a:2 b:2")
    job.ready("a[0]", "a[1]")
    job.exited("b[0]", 1)
    assert job.whom(Kill) == ["b[1]"]
    assert job.ranks() == ["a[0]", "a[1]"]
    assert job.one(Place).members[0].slot.cross_size == 1


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


def test_why_members_have_lost_each_other_is_said_once():
    job = Job(2, 1)
    job.train("a:1 b:1")
    for name, words in (("b[0]", "generation 1 has ended for b[0]: no route to a."), ("a[0]", "")):
        job.tell("ready", job.identities[name], 1, messages.FAILURE, "no route to a.", "m.train")
        assert words in job.said()
        assert ("has ended" in job.said()) == bool(words)
        assert [f"{cancel.why}." for cancel in job.all(Cancel)] == [words][: len(words)]


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
