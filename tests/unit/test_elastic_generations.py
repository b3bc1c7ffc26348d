"""When processes come together anew, who is told of it, and whose state all go on with."""

from __future__ import annotations

from elastic_job import ADDED, REMOVED, Job

from hvdtune.core.driver import messages
from hvdtune.launch.elastic.actions import Cancel, End, Kill, Leave, News, Place
from hvdtune.launch.elastic.exclusion import STRIKES


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
    job.tell("ready", job.identities["b[0]"], 0, messages.START, "", "m.train")
    assert job.ranks() == ["a[0]", "b[0]"]


def test_a_question_that_was_under_way_when_the_place_was_told():
    job = Job(2, 2)
    job.train("a:2")
    job.ready("a[0]", "a[1]")
    assert job.one(Place).generation == 2
    assert job.tell("ready", job.identities["a[0]"], 1, messages.FAILURE, "", "m.train") == []
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
    assert job.tell("ready", "nobody", 0, messages.START, "", "m.train") == [
        Leave("nobody", "the job goes on without it")
    ]
    assert job.tell("joined", "nobody", 2) == job.tell("finished", "nobody") == []
