"""Who gets which rank and slot: hosts that come and go, spares, local ranks, the most of all."""

from __future__ import annotations

from elastic_job import Job

from hvdtune.core.driver import messages
from hvdtune.launch.elastic.actions import Kill, Leave, News, Place, Start
from hvdtune.launch.elastic.exclusion import STRIKES


def test_ranks_and_sizes():
    job = Job(4, 2)
    job.hosts("a:2 b:2")
    job.ready("b[1]", "a[1]", "b[0]", "a[0]")
    assert job.ranks() == ["a[0]", "a[1]", "b[0]", "b[1]"]
    assert job.newcomers() == job.ranks()
    slots = [member.slot for member in job.one(Place).members]
    assert [(slot.local_rank, slot.local_size) for slot in slots] == [(0, 2), (1, 2)] * 2
    assert [(slot.cross_rank, slot.cross_size) for slot in slots] == [(0, 2)] * 2 + [(1, 2)] * 2


def test_old_processes_keep_rank_and_local_rank_when_a_host_is_added():
    job = Job(2, 2)
    job.train("a:2")
    job.hosts("b:2 a:2")
    job.ready("b[1]", "b[0]")
    job.ready("a[1]", "a[0]", reason=messages.INTERRUPT)
    assert job.ranks() == ["a[0]", "a[1]", "b[0]", "b[1]"]
    assert {member.slot.cross_size for member in job.one(Place).members} == {2}


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


def test_fewer_slots_cost_the_highest():
    job = Job(2, 1)
    job.train("a:4")
    job.hosts("a:2")
    names = job.whom(News)
    job.ready(*names, reason=messages.INTERRUPT)
    assert (job.ranks(), job.left()) == (["a[0]", "a[1]"], ["a[2]", "a[3]"])


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


def test_who_has_a_rank():
    job = Job(2, 1)
    job.train("a:1 b:1")
    ask = job.membership.identity_at
    assert ask(1, 1) == job.identities["b[0]"]
    assert [ask(1, 2), ask(1, -1), ask(0, 0), ask(2, 0)] == [None] * 4


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
