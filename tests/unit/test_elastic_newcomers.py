"""Newcomers between init and their function, and in scripts with several functions."""

from __future__ import annotations

from elastic_job import ADDED, FAILED, Job

from hvdtune.core.driver import messages
from hvdtune.launch.elastic.actions import Kill, News, Place, Prepare, Start

# Newcomers on their way from init to their function.


def test_a_newcomer_disturbs_nobody_before_its_function():
    job = Job(2, 1, 8, elastic_timeout=60)
    job.train("a:2")
    job.hosts("a:3")
    job.wait(50)
    job.ready("a[2]", function="")
    assert (job.whom(Prepare), job.all(News)) == (["a[2]"], [])
    job.ready("a[2]", function="")  # init again
    assert (job.whom(Prepare), job.all(News)) == (["a[2]"], [])
    job.ready("a[0]", "a[1]")  # a failure: it is not waited for
    assert job.ranks() == ["a[0]", "a[1]"]
    job.joined("a[0]", "a[1]")
    assert job.wait(59) == []
    job.ready("a[2]")
    assert (job.news().change, job.whom(News)) == (ADDED, ["a[0]", "a[1]"])
    job.ready("a[0]", "a[1]", reason=messages.INTERRUPT)
    assert (job.ranks(), job.newcomers()) == (["a[0]", "a[1]", "a[2]"], ["a[2]"])


def test_before_a_generation_has_come_together_all_get_places_from_init():
    job = Job(2, 1, 8, replaces_failed=True)
    job.hosts("a:2")
    job.ready("a[0]", "a[1]", function="")
    assert job.ranks() == ["a[0]", "a[1]"]
    job.hosts("a:3")
    assert job.ready("a[2]", function="") == []  # perhaps the first generation has to be repeated
    job.ready("a[0]", "a[1]", function="")
    assert job.ranks() == ["a[0]", "a[1]", "a[2]"]
    job.hosts("a:5")
    job.ready("a[3]", function="")
    job.joined("a[0]", "a[1]", "a[2]")
    assert job.whom(Prepare) == ["a[3]"]
    assert job.ready("a[4]", function="") == [Prepare(job.identities["a[4]"])]


def test_a_newcomer_has_as_long_to_its_function_as_it_had_to_init():
    job = Job(1, 1, 8, elastic_timeout=60, start_timeout=10)
    job.train("a:1")
    job.hosts("a:3")
    job.wait(59)
    job.ready("a[1]", "a[2]", function="")
    assert job.wait(59) == []
    job.ready("a[1]")
    assert job.all(News) == []  # the other one was started with it
    job.wait(1)  # less than --start-timeout
    assert job.whom(Kill) == ["a[2]"]
    assert "a[2] (started as rank 2) was not ready within 60 s" in job.said()
    assert job.whom(News) == ["a[0]"]


def test_who_is_hurried_before_init_has_no_longer_in_all():
    job = Job(1, 1, 8, elastic_timeout=60, start_timeout=10)
    job.train("a:1")
    job.hosts("a:3")
    job.ready("a[1]", function="")
    job.ready("a[1]")
    job.wait(9)
    job.ready("a[2]", function="")
    assert job.whom(Prepare) == ["a[2]"]
    job.wait(1)
    assert job.whom(Kill) == ["a[2]"]
    assert "a[2] (started as rank 2) was not ready 10 s after the first process" in job.said()


def test_a_spare_waits_in_its_function():
    job = Job(1, 1, 1, spares=1)
    job.hosts("a:2")
    job.ready("a[0]", "a[1]", function="")
    assert job.ranks() == ["a[0]"]
    job.joined("a[0]")
    assert job.whom(Prepare) == ["a[1]"]
    job.begun("a[0]")
    assert job.ready("a[1]") == []
    assert job.membership.due() is None
    job = Job(2, 1, 2, spares=1, replaces_failed=True)
    job.hosts("a:3")
    job.ready("a[0]", "a[1]", "a[2]", function="")
    job.joined("a[0]", "a[1]")
    job.begun("a[0]", "a[1]")
    job.ready("a[2]")
    job.exited("a[0]", 1)
    job.ready("a[1]")
    assert (job.ranks(), job.newcomers()) == (["a[1]", "a[2]"], ["a[2]"])


def test_whoever_has_the_state_is_rank_0():
    """The old member dies while the newcomers get its state: only one of them has it."""
    job = Job(1, 1, 3)
    job.train("a:1")
    job.tell("synchronised", job.identities["a[0]"])
    job.hosts("a:1 b:2")
    job.ready("b[0]", "b[1]")
    job.ready("a[0]", reason=messages.INTERRUPT)
    job.joined("a[0]", "b[0]", "b[1]")
    job.tell("synchronised", job.identities["b[1]"])
    job.exited("a[0]", -9)
    job.ready("b[0]", "b[1]")
    assert job.ranks() == ["b[1]", "b[0]"]
    assert job.tell("synchronised", "nobody") == []


def test_newcomers_whose_sources_have_died_end_the_job_by_their_errors():
    job = Job(1, 1, 3, replaces_failed=True)
    job.train("a:1")
    job.tell("synchronised", job.identities["a[0]"])
    job.hosts("a:3")
    job.ready("a[1]", "a[2]")
    job.ready("a[0]", reason=messages.INTERRUPT)
    job.joined("a[0]", "a[1]", "a[2]")
    job.exited("a[0]", -9)  # another is started in its place
    job.ready("a[1]", "a[2]")
    assert job.ranks() == ["a[1]", "a[2]"]
    job.joined("a[1]", "a[2]")
    job.exited("a[1]", 1)  # the state is lost, says rank 0
    job.ready("a[0]", function="")
    job.ready("a[2]")
    assert job.ranks() == ["a[2]"]
    job.joined("a[2]")
    job.exited("a[2]", 1)
    assert "none is left that could go on" in job.end().text


def test_who_alone_has_the_state_stays_until_others_have_it():
    """Its host goes, and another process dies, while newcomers get the state from it."""
    job = Job(1, 1, 3, replaces_failed=True)
    job.train("a:1")
    job.tell("synchronised", job.identities["a[0]"])
    job.hosts("a:1 b:2")
    job.ready("b[0]", "b[1]")
    job.ready("a[0]", reason=messages.INTERRUPT)
    job.joined("a[0]", "b[0]", "b[1]")
    job.hosts("b:2")
    job.exited("b[1]", -9)
    job.ready("a[0]", "b[0]")
    assert job.ranks() == ["a[0]", "b[0]"]


def test_a_spare_expects_the_place_of_the_last():
    job = Job(2, 1, 2, spares=2)
    job.hosts("a:4")
    planned = [start.planned for start in job.all(Start)]
    assert [slot.rank for slot in planned] == [0, 1, 1, 1]
    assert {slot.size for slot in planned} == {2}


# Scripts with several functions.


def test_a_newcomer_waits_while_the_members_are_in_another_function():
    job = Job(2, 1, 8)
    job.train("a:2")
    job.finished("a[0]", "a[1]")
    job.begun("a[0]", function="__main__.tune")
    job.hosts("a:3")
    assert job.started() == []  # one of them may be at its end
    job.begun("a[1]")
    assert job.started() == ["a[2]"]
    job.finished("a[1]")
    job.ready("a[2]")
    assert job.all(News) == []  # the members are in no function that all are in
    job.begun("a[1]", function="__main__.tune")
    words = "a[2] waits: it is in m.train(), the others are in tune()."
    assert (job.all(News), job.said()) == ([], words)
    assert job.hosts("a:3") == []  # once is enough
    job.ready("a[0]", "a[1]", function="__main__.tune")
    assert job.ranks() == ["a[0]", "a[1]"]
    job.joined("a[0]", "a[1]")
    assert (job.all(News), job.said()) == ([], "")
    job.finished("a[0]", "a[1]")
    job.begun("a[0]", "a[1]")
    assert job.whom(News) == ["a[0]", "a[1]"]
    job.ready("a[0]", "a[1]", reason=messages.INTERRUPT)
    assert job.ranks() == ["a[0]", "a[1]", "a[2]"]


def test_news_that_members_hear_in_their_next_function_bring_nobody_in():
    job = Job(2, 1, 8)
    job.train("a:2")
    job.hosts("a:3")
    job.ready("a[2]")
    assert job.whom(News) == ["a[0]", "a[1]"]
    job.finished("a[0]", "a[1]")
    job.begun("a[0]", "a[1]", function="m.tune")
    assert job.said() == "a[2] waits: it is in m.train(), the others are in m.tune()."
    job.ready("a[0]", "a[1]", reason=messages.INTERRUPT, function="m.tune")
    assert (job.ranks(), job.one(Place).synchronise) == (["a[0]", "a[1]"], False)
    assert job.joined("a[0]", "a[1]") == []


def test_a_function_that_is_called_again_is_the_same():
    job = Job(2, 1, 8)
    job.train("a:2")
    for _ in range(3):
        job.finished("a[0]", "a[1]")
        job.begun("a[0]", "a[1]")
    job.hosts("a:3")
    job.ready("a[2]")
    assert job.whom(News) == ["a[0]", "a[1]"]


def test_a_newcomer_in_another_function_is_not_waited_for_without_a_limit():
    job = Job(2, 2, 2, replaces_failed=True, elastic_timeout=20)
    job.train("a:2")
    job.finished("a[0]", "a[1]")
    job.begun("a[0]", "a[1]", function="m.tune")
    job.exited("a[0]", 1)
    job.ready("a[1]", function="m.tune")
    job.ready("a[0]")
    words = "2 slots are needed, 1 is there (a:1), 1 is missing"
    where = "a[0] waits: it is in m.train(), the others are in m.tune()"
    job.wait(20)
    assert f"after 20 s (--elastic-timeout), {words}; {where}. {FAILED}" in job.end().text
