"""A simulated world for `Membership`: hosts, processes and connections that are slow, or break.

Messages of a process arrive in order, those of different processes in any, and the news of a
process's end may overtake its last words. Every answer of the driver is checked against what must
always hold.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from hvdtune.core.driver import messages
from hvdtune.core.driver.changes import HostUpdateResult
from hvdtune.launch.allocation.hosts import Host
from hvdtune.launch.elastic.actions import (
    Cancel,
    End,
    Kill,
    Leave,
    News,
    Place,
    Prepare,
    Say,
    Start,
)
from hvdtune.launch.elastic.exclusion import Exclusion
from hvdtune.launch.elastic.limits import Limits
from hvdtune.launch.elastic.membership import Membership
from hvdtune.launch.elastic.suspicion import Lateness

STARTING, WAITING, JOINING, TRAINING = "starting", "waiting", "joining", "training"


@dataclass(eq=False)
class Worker:
    """A process as it really is."""

    start: Start
    phase: str = STARTING
    generation: int = 0  # of the last place it received
    alive: bool = True
    stuck: bool = False  # does nothing any more
    ended: bool = False  # the driver was told
    dismissed: bool = False
    prepared: bool = False  # the driver has told it to go on to its function
    killed: bool = False  # by the driver
    dismissing: bool = False  # the driver has told it to leave
    restored: bool = False  # it has gone back to its last commit since its last place
    finished: bool = False
    calls: int = 0  # of elastic functions, in the order of the program
    function: str = ""
    known: str = ""  # the same, as far as the driver has heard
    synced: bool = False
    has_state: bool = False  # the same, as far as the driver has heard
    asked: bool = False  # the driver has its question, and has not answered
    inbox: deque = field(default_factory=deque)
    outbox: deque = field(default_factory=deque)

    def ask(self, reason: str) -> None:
        """Leave the generation and ask for another place; or go, if told to."""
        if self.dismissed:
            self.end(0)
        else:
            self.phase, self.finished = WAITING, False
            self.outbox.append(("ready", self.generation, reason, "", self.function))

    def end(self, code: int) -> None:
        self.alive, self.code = False, code

    def hear(self, rng: random.Random) -> None:
        action = self.inbox.popleft()
        if isinstance(action, Place):
            if self.phase == WAITING:
                self.generation, self.phase = action.generation, JOINING
        elif isinstance(action, Prepare):
            if self.phase == WAITING and not self.function:
                self.phase, self.prepared = STARTING, True
        elif isinstance(action, Leave):
            self.dismissed = True
            if self.phase == WAITING:
                self.end(0)
        elif isinstance(action, Cancel):
            # In training, the engine may notice by itself, or not.
            notices = self.phase == JOINING or (
                self.phase == TRAINING
                and self.function and not self.finished and rng.random() < 0.5
            )  # fmt: skip
            if notices and action.generation == self.generation:
                self.ask(messages.FAILURE)


class World:
    """Runs a job whose fate `rng` decides."""

    def __init__(self, rng: random.Random, limits: Limits, cooldown=None) -> None:
        self.rng, self.limits, self.now = rng, limits, 0.0
        self.exclusion = Exclusion(cooldown, uniform=rng.random)
        self.membership = Membership(limits, self.exclusion)
        self.workers: dict[str, Worker] = {}
        self.members: dict[int, list[Worker]] = {}  # by generation
        self.met: dict[int, set[Worker]] = {}  # who joined, by generation, as the driver knows
        self.since: dict[Worker, int] = {}  # who has the job's state, from which generation on
        self.differ = False  # whether states of members may
        self.interrupted: set[int] = set()
        self.hosts: list[Host] = []
        self.news = 0
        self.end: End | None = None
        self.log: list[str] = []
        self.closed_well = False  # a member has exited with 0
        self.told_hosts = False
        self.is_finishing = False  # there are no more elastic functions
        self.goes_on = False  # nobody ends with the function that has returned
        self.parts = rng.randint(0, 2)  # so often it returns in peace
        others = rng.choice(["f", "fg"])  # that the program calls after the first
        self.program = ["f", *rng.choices(others, k=8)]
        self.input = ""  # what the driver is told now
        self.is_quiet = False  # nothing has gone wrong since the present generation was placed
        self.is_whole = False  # and with its members

    # What the driver says.

    def tell(self, what: str, *arguments) -> None:
        """An input, and all that follows from it."""
        self.log.append(f"{self.now:.1f} {what}{arguments}")
        self.input = what
        if what in ("ready", "silent", "not_started") or (what == "exited" and arguments[1]):
            self.is_quiet = False
            generation = self.members[max(self.members)] if self.members else []
            self.is_whole &= self.workers.get(arguments[0]) not in generation
        actions = getattr(self.membership, what)(*arguments, self.now)
        for action in actions:
            self.log.append(f"      {action}")
            assert self.end is None, "something after the end"
            getattr(self, f"_{type(action).__name__.lower()}")(action)
        due = self.membership.due()
        assert due is None or due > self.now, "a deadline that has passed and is kept"
        self._check_nobody_waits_for_ever()
        self._check_nobody_is_forgotten()

    def _start(self, action: Start) -> None:
        assert action.identity not in self.workers
        slots = dict(self.hosts)
        assert action.local_rank < slots[action.host]
        assert not self.exclusion.excludes(action.host, self.now)  # (g)
        for other in self.workers.values():
            seat = other.start.host, other.start.local_rank
            assert other.ended or seat != (action.host, action.local_rank), "two in a slot"
            assert other.start.start_rank != action.start_rank
        assert action.planned.hostname == action.host
        self.workers[action.identity] = Worker(action)

    def _kill(self, action: Kill) -> None:
        worker = self.workers[action.identity]
        assert not worker.ended
        if self.is_quiet and self.input == "tick" and not worker.dismissing:  # (i)
            assert worker not in self.members[max(self.members)], "a healthy member is killed"
        worker.killed = True
        if worker.alive:
            worker.end(-9)
        if self.input == "measured":
            self._check_eviction(worker)

    def _check_eviction(self, worker: Worker) -> None:
        """Of a healthy generation one process is taken, or its host; enough are left."""
        assert worker in self.members[max(self.members)] or not self.limits.replaces_failed
        assert self.is_whole or not self.limits.replaces_failed, "two at once"
        left = [one for one in self.workers.values() if self._is_part(one)]
        assert len(left) >= self.limits.least
        assert any(one in self.since for one in left)

    def _place(self, action: Place) -> None:
        members = [self.workers[member.identity] for member in action.members]
        assert action.generation == max(self.members, default=0) + 1
        slots = [member.slot for member in action.members]
        assert [slot.rank for slot in slots] == list(range(len(slots)))  # (b)
        assert self.limits.least <= len(slots) <= (self.limits.most or 1024)  # (d)
        resets = self.limits.resets
        assert resets is None or action.generation - 1 <= resets  # (h)
        self._check_slots(members, slots)
        assert len(set(members)) == len(members)
        for member, worker in zip(action.members, members, strict=True):
            assert worker.asked
            assert not worker.ended
            worker.asked = False
            worker.inbox.append(action)
            assert member.newcomer == (worker not in self.since)
        if self.since:  # (j): whoever comes does what the others do
            old = [one for one in members if one in self.since or one.has_state]
            assert all({one.known for one in old} == {new.known} != {""}
                       for new in members if new not in old and not self._is_old(new))  # fmt: skip
            for new in members:
                new.calls = max(new.calls, *(one.calls for one in old))
        ages = [
            (not one.has_state, self.since.get(one, 10**9), one.start.start_rank) for one in members
        ]
        if self.since:
            assert members[0] in self.since or members[0].has_state, "rank 0 has no state"  # (a)
            assert members[0].has_state == any(one.has_state for one in members)
        self._check_order(members, ages)  # (c)
        restored = any(worker.restored for worker in members)
        self.differ |= restored or any(member.newcomer for member in action.members)
        assert action.synchronise == self.differ
        for worker in members:
            worker.restored = False
        self.is_quiet = self.is_whole = True
        self.members[action.generation] = members
        self.met[action.generation] = set()

    def _is_old(self, worker: Worker) -> bool:
        """Whether it was in the last generation, although that has not come together."""
        return worker in self.members[max(self.members)]

    def _prepare(self, action: Prepare) -> None:
        worker = self.workers[action.identity]
        assert self.since
        assert worker.asked
        assert not worker.known
        assert not any(worker in members for members in self.members.values())
        worker.asked = False
        worker.inbox.append(action)

    @staticmethod
    def _check_order(members, ages) -> None:
        """Oldest first, by host."""
        assert ages[0] == min(ages)
        by_host: dict[str, list] = {}
        for worker, age in zip(members, ages, strict=True):
            by_host.setdefault(worker.start.host, []).append(age)
        assert [age for of_host in by_host.values() for age in of_host] == ages
        assert all(of_host == sorted(of_host) for of_host in by_host.values())
        oldest = [of_host[0] for of_host in by_host.values()]
        assert oldest == sorted(oldest)

    @staticmethod
    def _check_slots(members, slots) -> None:
        by_host: dict[str, list] = {}
        for worker, slot in zip(members, slots, strict=True):
            assert slot.hostname == worker.start.host
            assert slot.size == len(slots)
            assert slot.local_rank == worker.start.local_rank  # it has its GPU by that
            by_host.setdefault(slot.hostname, []).append(slot)
        for of_host in by_host.values():
            numbers = {slot.local_rank for slot in of_host}
            assert len(numbers) == len(of_host)
            assert {slot.local_size for slot in of_host} == {max(numbers) + 1}
        for local_rank in {slot.local_rank for slot in slots}:
            peers = [slot for slot in slots if slot.local_rank == local_rank]
            assert {slot.cross_size for slot in peers} == {len(peers)}
            assert sorted(slot.cross_rank for slot in peers) == list(range(len(peers)))

    def _cancel(self, action: Cancel) -> None:
        assert action.generation == max(self.members)
        assert action.why
        assert not action.why.endswith(".")
        self.is_quiet = self.is_whole = False
        for identity in action.identities:
            assert not self.workers[identity].ended
            self.workers[identity].inbox.append(action)

    def _news(self, action: News) -> None:
        assert action.number == self.news + 1
        assert action.change in (1, 2, 3)
        assert isinstance(action.change, HostUpdateResult)
        self.news = action.number
        current = self.members[max(self.members)]
        assert [self.workers[one] for one in action.identities] == current
        if action.change & HostUpdateResult.added:  # (k): for somebody who can join them
            comers = [one for one in self.workers.values() if one.asked and one not in current]
            assert any({one.known} == {member.known for member in current} for one in comers)
        for worker in current:
            worker.inbox.append(action)
        self.interrupted.add(max(self.members))

    def _leave(self, action: Leave) -> None:
        worker = self.workers[action.identity]
        worker.asked, worker.dismissing = False, True
        worker.inbox.append(action)

    def _say(self, action: Say) -> None:
        assert action.text
        assert "\n" not in action.text

    def _end(self, action: End) -> None:
        self.end = action
        assert self.input != "measured"
        if action.status == 0:
            assert self.closed_well
        else:
            assert action.text
        if "none is left" in action.text:
            counts = self.since or self.members.get(max(self.members, default=0), ())
            assert not any(self._is_part(worker) for worker in counts)

    def _check_nobody_waits_for_ever(self) -> None:
        """(f): whoever waits for a place, other than for one to be free, has a deadline."""
        if self.end or self.membership.due() is not None or not self.members:
            return
        current = self.members[max(self.members)]
        for worker in self.workers.values():
            waits = worker.alive and worker.phase == WAITING
            if waits and not worker.inbox and not worker.outbox and worker in current:
                finished = [one for one in current if one.finished and not one.ended]
                assert finished, "a member waits without a deadline"
            if waits and worker.asked and not worker.inbox and self.since:  # (l)
                assert worker in current or worker.known, "a newcomer waits in init"

    def _check_nobody_is_forgotten(self) -> None:
        """(e): who has the job's state is in its generation, was told to leave, or killed."""
        for worker in self.since if self.end is None else ():
            assert worker in self.members[max(self.members)] or not self._is_part(worker)

    # What the world does.

    def step(self) -> None:
        """One event."""
        choices = [self._act] * 6 + [self._deliver] * 12 + [self._hear] * 12 + [self._report] * 4
        choices += [self._pass_time] * 2 + [self._change_hosts, self._disturb, self._stop_short]
        choices += [self._measure]
        self.rng.choice(choices)()

    def _pick(self, workers) -> Worker | None:
        workers = list(workers)
        return self.rng.choice(workers) if workers else None

    def _deliver(self) -> bool:
        worker = self._pick(one for one in self.workers.values() if one.outbox and not one.ended)
        if worker:
            self._deliver_one(worker)
        return bool(worker)

    def _deliver_one(self, worker: Worker) -> None:
        what, *arguments = worker.outbox.popleft()
        if what == "ready":
            worker.asked, worker.restored = True, arguments[1] == messages.FAILURE
            worker.known = arguments[3]
        if what == "synchronised":
            worker.has_state = True
        if what == "begun":
            worker.known = arguments[0]
        if what == "joined" and arguments[0] == max(self.members):
            self._note_joined(worker, arguments[0])
        self.tell(what, worker.start.identity, *arguments)

    def _note_joined(self, worker: Worker, generation: int) -> None:
        if not self._is_part(worker):
            return
        self.met[generation].add(worker)
        if self.met[generation] == set(self.members[generation]):
            self.differ = False
            for member in self.members[generation]:
                self.since.setdefault(member, generation)

    def _is_part(self, worker: Worker) -> bool:
        """Whether the driver counts on it: it was neither killed nor dismissed, as far as known."""
        return not (worker.ended or worker.killed or worker.dismissing)

    def _hear(self) -> bool:
        worker = self._pick(
            one for one in self.workers.values() if one.inbox and one.alive and not one.stuck
        )
        if worker:
            worker.hear(self.rng)
        return bool(worker)

    def _report(self) -> bool:
        worker = self._pick(one for one in self.workers.values() if not one.alive and not one.ended)
        if worker:
            if self.rng.random() < 0.7 and not worker.stuck:  # its last words come first, mostly
                while worker.outbox and self.end is None:
                    self._deliver_one(worker)
            if worker.code == 0 and self._is_part(worker):
                self.closed_well = True
            worker.ended = True
            if self.end is None:
                self.tell("exited", worker.start.identity, worker.code)
        return bool(worker)

    def _act(self) -> bool:
        """A process goes on by itself."""
        able = [one for one in self.workers.values() if self._can_act(one)]
        worker = self._pick(able)
        if worker is None:
            return False
        generation = self.members.get(worker.generation, [])
        if worker.phase == STARTING:
            if worker.prepared:
                worker.function = self.program[worker.calls]
            worker.ask(messages.START)
        elif worker.phase == JOINING:
            if self._together(worker.generation):
                worker.phase = TRAINING
                worker.outbox.append(("joined", worker.generation))
            else:  # somebody did not come
                worker.ask(messages.FAILURE)
        elif not worker.function:
            self._begin(worker)
        elif not worker.synced:
            worker.synced = True
            worker.outbox.append(("synchronised",))
        elif worker.finished:
            fate = self.rng.random()
            if fate < 0.7 and not self.goes_on:
                worker.end(0)
            elif (fate < 0.8 or self.goes_on) and not self.is_finishing:  # another function
                worker.finished, worker.calls = False, min(worker.calls + 1, 8)
                self._begin(worker)
        elif not all(self._is_in(one, worker.generation) for one in generation):
            worker.ask(
                messages.FAILURE if not self._all_interrupted(worker) else messages.INTERRUPT
            )
        elif worker.generation in self.interrupted:
            worker.ask(messages.INTERRUPT)
        return True

    def _begin(self, worker: Worker) -> None:
        worker.function = self.program[worker.calls]
        worker.outbox.append(("begun", worker.function))

    def _can_act(self, worker: Worker) -> bool:
        if not worker.alive or worker.stuck or worker.phase == WAITING:
            return False
        generation = self.members.get(worker.generation, [])
        if worker.phase == JOINING:
            lost = not all(one.alive and one.generation <= worker.generation for one in generation)
            return lost or self._together(worker.generation)
        if worker.phase == TRAINING and worker.synced and not worker.finished:
            whole = all(self._is_in(one, worker.generation) for one in generation)
            return not whole or worker.generation in self.interrupted
        return True

    def _together(self, generation: int) -> bool:
        return all(
            one.alive and one.generation == generation and one.phase in (JOINING, TRAINING)
            for one in self.members[generation]
        )

    def _is_in(self, worker: Worker, generation: int) -> bool:
        return (
            worker.alive and worker.generation == generation and worker.phase in (JOINING, TRAINING)
        )

    def _all_interrupted(self, worker: Worker) -> bool:
        generation = self.members[worker.generation]
        return worker.generation in self.interrupted and all(one.alive for one in generation)

    def _pass_time(self, far: bool = False) -> None:
        due = self.membership.due()
        if due is not None and (far or self.rng.random() < 0.3):
            self.now = max(self.now, due)
        else:
            self.now += self.rng.random() * 3
        if self.end is None:
            self.tell("tick")

    def _change_hosts(self) -> None:
        if self.rng.random() < 0.15 and self.told_hosts:
            self.tell("discovery_failed", self.rng.choice(["exit code 1.", "no answer in 10 s."]))
            return
        names = self.rng.sample("abcdef", self.rng.randint(0, 5))
        if self.rng.random() < 0.5:  # a small change
            kept = [host for host in self.hosts if self.rng.random() < 0.8]
            names = [name for name in names if name not in dict(kept)][:1]
        else:
            kept = []
        self.hosts = kept + [Host(name, self.rng.randint(0, 3)) for name in names]
        self.told_hosts = True
        self.tell("hosts", self.hosts)

    def _disturb(self) -> None:
        worker = self._pick(one for one in self.workers.values() if one.alive)
        if worker is None:
            return
        fate = self.rng.random()
        if fate < 0.5:
            worker.end(self.rng.choice([1, -9, -11, 134]))
        elif fate < 0.6:
            worker.stuck = True
        elif fate < 0.7 and not worker.ended:
            self.tell("silent", worker.start.identity, "has not answered for 5 s")
        elif fate < 0.75 and worker.phase == STARTING:
            worker.end(0)
            worker.ended = True
            self.tell("not_started", worker.start.identity, "no route to host")
        elif fate < 0.8 and worker.phase == WAITING:
            question = "ready", worker.generation, messages.FAILURE, "", worker.function
            worker.outbox.append(question)  # once more

    def _measure(self) -> None:
        """Rank 0 answers whom its generation waits for, a few times in a row, perhaps too late."""
        generation = self.rng.choice([*self.members, 0])
        if not generation:
            return
        size, identity = len(self.members[generation]), self.members[generation][0].start.identity
        rank = self.rng.randrange(size)
        ranks = (rank, (rank + 1) % size) if self.rng.random() < 0.1 else (rank,)
        for step in range(self.rng.choice([1, 3])):
            found = Lateness(ranks, 0.1, 0.5, 1.0, 100 * step, 0.1)
            if self.end is None:
                self.tell("measured", identity, generation, found)

    def _stop_short(self) -> None:
        """Training is over, now and then."""
        if self.rng.random() < 0.1 and self.members:
            generation = max(self.members)
            workers = self.members[generation]
            trains = all(one.phase == TRAINING and one.synced for one in workers)
            if self._together(generation) and trains:
                for worker in workers:
                    worker.finished = True
                    worker.outbox.append(("finished",))

    # How it goes on after the last disturbance.

    def calm_down(self) -> None:
        """Enough hosts appear that never failed; who hangs stays so, or dies."""
        if self.end:
            return
        for worker in self.workers.values():
            if worker.stuck and worker.alive and (worker.finished or self.rng.random() < 0.5):
                worker.end(-9)
        self.hosts = [*self.hosts, Host("new1", 4), Host("new2", 4)]
        self.told_hosts = True
        self.tell("hosts", self.hosts)
        may_end = ("limit: ", "none is left", "No hosts from previous set", "the others are in")
        for _ in range(20_000):
            if self.end:
                text = self.end.text
                assert any(words in text for words in may_end) or self.closed_well, text
                return
            moves = [self._act, self._deliver, self._hear, self._report]
            self.rng.shuffle(moves)
            if not any(move() for move in moves):
                if self.is_settled():
                    if not self._go_on():
                        self._finish()
                        return
                    continue
                self._wait_or_evict()
        raise AssertionError("the job does not come to rest")

    def _wait_or_evict(self) -> None:
        """Nobody does anything: time passes, or others tell who hangs in the middle of training."""
        if self.membership.due() is not None:
            self._pass_time(far=True)
            return
        hang = [one for one in self.workers.values() if one.stuck and one.alive]
        # Once a member has ended well, nobody waits for any other.
        hang = [one for one in hang if one.phase == TRAINING or self.closed_well]
        assert hang, "nobody does anything any more"
        self.tell("silent", hang[0].start.identity, "has not announced anything for 60 s")

    def _go_on(self) -> bool:
        """The function returns on all members, which begin the next; others come and die then."""
        current = self.members[max(self.members)]
        if self.parts == 0 or self.closed_well or any(one.stuck for one in current):
            return False
        self.parts -= 1
        self.goes_on = True
        for worker in current:
            worker.finished = True
            worker.outbox.append(("finished",))
        while any(one.finished or one.outbox for one in current):
            assert self._act() or self._deliver()
        self.goes_on = False
        if self.rng.random() < 0.7:
            self.hosts = [*self.hosts, Host(f"later{self.parts}", 4)]
            self.tell("hosts", self.hosts)
            if self.rng.random() < 0.5:
                self.rng.choice(current).end(-9)  # which may cost the host
        return True

    def _finish(self) -> None:
        """All members come to their end."""
        current = self.members[max(self.members)]
        self.is_finishing = True
        if not any(one.stuck for one in current):
            for worker in current:
                worker.finished = True
                worker.outbox.append(("finished",))
            while self.end is None:
                moves = [self._act, self._deliver, self._hear, self._report]
                self.rng.shuffle(moves)
                if not any(move() for move in moves):
                    self._pass_time(far=True)
            assert self.end.status == 0, self.end

    def is_settled(self) -> bool:
        """Whether a generation of all that can be is training."""
        if not self.members:
            return False
        current = self.members[max(self.members)]
        if not all(one.alive and one.phase == TRAINING for one in current):
            return False
        most = self.limits.most or 1024
        waiting = [one for one in self.workers.values() if one.alive and one not in current]
        if not all(self._has_slot(one) for one in current):
            return False
        if len(current) == most:  # (e)
            return len(waiting) <= self.limits.spares
        has_room = len(current) + len(waiting) < most + self.limits.spares
        elsewhere = (one.phase == WAITING and one.known != current[0].known for one in waiting)
        return all(elsewhere) and not (has_room and self._free_slots())

    def _has_slot(self, worker: Worker) -> bool:
        return worker.start.local_rank < dict(self.hosts).get(worker.start.host, 0)

    def _free_slots(self) -> list:
        taken = {
            (one.start.host, one.start.local_rank) for one in self.workers.values() if not one.ended
        }
        return [
            (host, number)
            for host, slots in self.hosts
            for number in range(slots)
            if (host, number) not in taken
            and not self.exclusion.excludes(host, self.now)
            and not self.exclusion.excludes(f"{host}[{number}]", self.now)
        ]
