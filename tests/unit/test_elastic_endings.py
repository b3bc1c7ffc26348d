"""How an elastic job ends: who has finished, who trains on, who is told to leave and when."""

from __future__ import annotations

from elastic_job import ADDED, FAILED, Job

from hvdtune.core.driver import messages
from hvdtune.launch.elastic.actions import Cancel, End, Kill, Leave
from hvdtune.launch.elastic.orders import GRACE_SECONDS


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


def test_who_has_finished_may_resume():
    """It is waited for without a limit no more, and is told what it has missed."""
    job = Job(3, 1, elastic_timeout=60)
    job.train("a:1 b:1 c:1")
    job.finished("a[0]", "b[0]")
    for name in ("a[0]", "b[0]"):
        assert job.begun(name) == []
    assert job.membership.due() is None
    job.finished("a[0]")
    job.exited("c[0]", 1)
    assert job.whom(Cancel) == ["b[0]"]
    job.ready("b[0]")
    assert job.wait(1_000) == []
    job.begun("a[0]")
    assert (job.whom(Cancel), job.one(Cancel).why) == (["a[0]"], "c[0] exited with code 1")
    job.wait(60)
    assert (job.whom(Kill), job.ranks()) == (["a[0]"], ["b[0]"])
    assert job.begun("b[0]") == job.tell("begun", "nobody", "m.train") == []


def test_who_resumes_after_others_have_left_for_news_has_a_limit():
    job = Job(2, 1, elastic_timeout=60)
    job.train("a:1 b:1")
    job.finished("a[0]")
    job.ready("b[0]", reason=messages.INTERRUPT)
    assert job.begun("a[0]") == []  # its engine tells it
    job.ready("a[0]")
    assert job.ranks() == ["a[0]", "b[0]"]


def test_one_process_is_no_processes():
    job = Job(2, 1)
    job.train("a:1 b:1")
    job.exited("b[0]", 1)
    job.ready("a[0]")
    assert job.said() == "generation 2 has 1 process: a:1."


def test_nothing_follows_the_end():
    job = Job(2, 1)
    job.train("a:2")
    job.exited("a[0]", 1)
    assert job.end().status == 1
    job.exited("a[1]", -15)
    assert job.answer == []
    assert job.hosts("b:2") == job.ready("a[1]") == job.tell("tick") == []
    assert job.membership.due() is None
