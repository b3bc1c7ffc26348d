"""Processes that make the others wait, and what becomes of them if that is wanted."""

from __future__ import annotations

from elastic_job import Job

from hvdtune.core.driver import messages
from hvdtune.launch.elastic.actions import Cancel, Kill
from hvdtune.launch.elastic.suspicion import Lateness


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


def test_a_spare_in_another_function_is_none_of_those_who_are_left():
    job = Job(2, 2, 2, spares=1, straggler_seconds=20, replaces_failed=True)
    job.hosts("a:3")
    job.ready("a[0]", "a[1]", "a[2]", function="")
    job.joined("a[0]", "a[1]")
    job.begun("a[0]", "a[1]", function="m.tune")
    job.ready("a[2]", function="m.train")
    assert "a[2] waits: it is in m.train(), the others are in m.tune()." in job.said()
    job.late(1, looks=3)
    assert "it stays: too few would be left without it" in job.said()
    assert not job.all(Kill)
