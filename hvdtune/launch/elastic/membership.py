"""The members of an elastic job: every decision of the driver, and nothing else.

`Membership` has no clock, no thread and no process. The driver tells it what happened and when, and
carries out what it returns. An event only changes what it knows (`Roster`). Then it compares that
with the desired state, always in the same order (`_settle`). So a message that arrives late, twice
or not at all does no lasting harm.

A job passes from generation to generation. One ends if a member is lost or asks for another place.
As soon as all its surviving members have asked, the next is placed: those members, the oldest
first, and any other process that is ready. Generation 0 is the time before the first place.

Once a generation has come together, the job has a state, and its members soon reach their elastic
function. A newcomer gets no place before it has reached it as well. However long its script takes
until then, the members train on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

from hvdtune.core.driver import messages
from hvdtune.core.driver.changes import HostUpdateResult
from hvdtune.launch.allocation.hosts import Host
from hvdtune.launch.elastic import discovery, placing, wording
from hvdtune.launch.elastic.actions import (
    Action,
    Cancel,
    Leave,
    Member,
    News,
    Place,
    Prepare,
    Start,
)
from hvdtune.launch.elastic.exclusion import Blame, Exclusion
from hvdtune.launch.elastic.limits import Limits
from hvdtune.launch.elastic.orders import GRACE_SECONDS, Orders
from hvdtune.launch.elastic.patience import Patience
from hvdtune.launch.elastic.process import Process, State
from hvdtune.launch.elastic.roster import Roster
from hvdtune.launch.elastic.suspicion import Lateness, Suspicion
from hvdtune.launch.errors import FAILED
from hvdtune.launch.local.endings import cause_of_end

PROBATION_SECONDS = 30.0  # as a member, until a process has proved itself


class Membership:
    """Decides what the driver of an elastic job does.

    Each input takes `now`, in seconds of a clock that only goes forward, and returns what the
    driver must do, in this order. `due` says when to call `tick`. No action follows an `End`. Each
    process has an identity from its `Start` on: a text that no other process of the job has.
    """

    def __init__(self, limits: Limits, exclusion: Exclusion) -> None:
        limits.check()
        self._limits = limits
        self._roster = Roster(limits)
        self._orders = Orders()
        self._blame = Blame(limits, exclusion, self._roster, self._orders)
        self._next_return: float | None = None  # when the next exclusion ends
        self._patience = Patience(limits.elastic_timeout)
        self._discovery_fault = ""
        self._starts = 0
        self._news = 0
        # The state of the job:
        self._begun = False  # there were enough slots to start
        self._succeeded = False  # a member has succeeded
        self._closed = False  # and the processes that asked have been told
        # The state of this generation:
        self._broken = False  # it has ended: its members have to ask for another place
        self._cancelled = ""  # what its members were told of its end
        self._announced = HostUpdateResult.no_update
        self._owes_sync = False  # its members may have different states
        self._suspicion = Suspicion()  # the processes that they wait for

    # Events.

    def hosts(self, found: Sequence[Host], now: float) -> list[Action]:
        """Discovery has found these hosts."""
        previous = self._roster.hosts or {}
        if self._discovery_fault:
            self._orders.say("host discovery answers again.")
            self._discovery_fault = ""
        changed = discovery.difference(map(Host._make, previous.items()), found)
        if changed and self._begun and not self._succeeded:
            self._orders.say(f"hosts now: {wording.listed(found) or 'none'}.")
        self._roster.hosts = dict(discovery.ordered(previous, found))
        return self._settle(now)

    def discovery_failed(self, why: str, now: float) -> list[Action]:
        """Discovery gave no answer; the hosts stay as they are. `why` ends a sentence."""
        if self._roster.hosts is None:
            self._orders.end(1, f"host discovery failed: {why}")
        elif why != self._discovery_fault:
            self._orders.say(
                f"host discovery failed, the hosts stay as they are: {why.rstrip('.')}."
            )
        self._discovery_fault = why
        return self._settle(now)

    def not_started(self, identity: str, why: str, now: float) -> list[Action]:
        """A `Start` could not be carried out; no process is left from it."""
        return self._gone(identity, f"could not be started: {why}", now)

    def exited(self, identity: str, code: int, now: float) -> list[Action]:
        """A process has ended; `code` is its exit code, or -N if signal N killed it."""
        process = self._roster.processes.get(identity)
        if process and code == 0 and self._ends_the_job(process):
            self._succeed(process, now)
        return self._gone(identity, cause_of_end(code), now)

    def ready(
        self, identity: str, generation: int, reason: str, why: str, function: str, now: float
    ) -> list[Action]:
        """A process asks for a place, and waits.

        `generation` is that of the last place it was told, 0 if none; `reason`, `why` and
        `function` are those of `hvdtune.core.driver.messages`.
        """
        process = self._roster.processes.get(identity)
        if process is None or not process.lives:
            self._orders.add(Leave(identity, "the job goes on without it"))
        elif self._succeeded:
            self._orders.let_go(process, "the job has ended", now)
        elif process.trains and generation < process.generation and not self._cancelled:
            pass  # the process sent it before it heard of its place
        elif self._roster.trained and not function and not process.generation:
            self._prepare(process, now)
        else:
            was, process.state = process.state, State.WAITING
            process.reason, process.deadline, process.finished = reason, None, False
            process.function = function
            if was is State.STARTING:
                self._hurry_companions(process, now)
            elif was is not State.WAITING:
                words = f"generation {self.generation} has ended for {process.name}: {why}"
                if reason == messages.FAILURE and not self._cancelled:
                    self._orders.say(words)
                self._break_up(now, words if reason == messages.FAILURE else "")
        return self._settle(now)

    def joined(self, identity: str, generation: int, now: float) -> list[Action]:
        """A process has joined the others of its generation."""
        process = self._roster.processes.get(identity)
        if process and process.state is State.JOINING and generation == process.generation:
            process.state, process.joined = State.TRAINING, generation
            if not self._broken:
                process.deadline = None
            if all(member.joined == generation for member in self._roster.crew):
                self._complete(now)
        return self._settle(now)

    def begun(self, identity: str, function: str, now: float) -> list[Action]:
        """A process begins an elastic function, in the generation in which it is."""
        process = self._roster.processes.get(identity)
        if process and process.trains:
            process.function = function
            if process.finished:
                process.finished = False
                if self._broken:
                    process.deadline = now + self._limits.elastic_timeout
                if self._cancelled:
                    self._orders.add(Cancel(self.generation, (identity,), self._cancelled))
        return self._settle(now)

    def synchronised(self, identity: str, now: float) -> list[Action]:
        """A process has the job's state: if others are lost, this one passes it on."""
        process = self._roster.processes.get(identity)
        if process:
            process.has_state = True
        return self._settle(now)

    def finished(self, identity: str, now: float) -> list[Action]:
        """A process's elastic function has returned; the rest of its program has no time limit.

        If its generation ends meanwhile, the process is not told: it may not need the others any
        more.
        """
        process = self._roster.processes.get(identity)
        if process and process.trains:
            process.finished, process.deadline = True, None
        return self._settle(now)

    def silent(self, identity: str, why: str, now: float) -> list[Action]:
        """A process does not answer; `why` ends a sentence."""
        process = self._roster.processes.get(identity)
        if process and process.lives:
            self._lose(process, why, now)
        return self._settle(now)

    def measured(self, identity: str, generation: int, found: Lateness, now: float) -> list[Action]:
        """Rank 0, which alone can know it, has measured whom its generation waits for."""
        limit = self._limits.straggler_seconds
        if limit is not None and identity == self.identity_at(generation, 0):
            seconds = self._suspicion.note(found)
            if seconds >= limit and self._is_at_rest():
                ended = self._blame.replace_late(found, seconds, self._suspicion, now)
                if ended:
                    self._break_up(now, f"{ended.name} was ended because it was late")
        return self._settle(now)

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        return self._settle(now)

    # Questions.

    @property
    def generation(self) -> int:
        """The number of the last generation that was placed; 0 before the first."""
        return self._roster.generation

    @property
    def measures(self) -> bool:
        """Whether the driver asks rank 0 which ranks the others wait for."""
        return self._limits.straggler_seconds is not None and not self._succeeded

    def due(self) -> float | None:
        """When to call `tick` if nothing else happens before; None: not at all."""
        if self._orders.ended:
            return None
        times = [process.deadline for process in self._roster.processes.values()]
        times += [self._patience.due, self._next_return]
        return min((time for time in times if time is not None), default=None)

    def identity_at(self, generation: int, rank: int) -> str | None:
        """The process with this rank; None if that generation has passed, or has no such rank."""
        crew = self._roster.crew
        if not 0 < generation == self.generation or not 0 <= rank < len(crew):
            return None
        return crew[rank].identity

    # What follows from events, always in this order.

    def _settle(self, now: float) -> list[Action]:
        if self._closed:
            return []
        self._patience.pause()
        steps = [self._keep_deadlines]
        if self._succeeded:
            steps += [self._end_with_the_last]
        elif self._roster.hosts is not None:
            steps += [
                self._check_survivors,
                self._dismiss,
                self._start,
                self._announce,
                self._place,
            ]
        for step in steps:
            if not self._orders.ended:
                step(now)
        self._closed = self._orders.ended
        self._next_return = self._blame.next_end(now)
        return self._orders.take()

    def _keep_deadlines(self, now: float) -> None:
        for process in list(self._roster.processes.values()):
            if process.deadline is None or now < process.deadline:
                continue
            seconds = f"{self._limits.elastic_timeout:g} s (--elastic-timeout)"
            if process.state is State.LEAVING:
                self._orders.end_overdue(process, f"it did not end within {GRACE_SECONDS:g} s")
            elif self._succeeded:
                self._orders.end_overdue(
                    process, f"the job has ended, and it did not within {seconds}"
                )
            elif process.state is State.STARTING:
                self._give_up(process, seconds, now)
            elif process.state is State.JOINING and not self._cancelled:
                # Nobody knows yet which process is missing.
                self._break_up(
                    now, f"generation {self.generation} did not come together within {seconds}"
                )
            else:
                self._lose(process, f"did not come to the other processes within {seconds}", now)

    def _end_with_the_last(self, now: float) -> None:
        roster = self._roster
        if all(process.state is State.KILLED for process in roster.processes.values()):
            failed = any(member.failed for member in roster.crew)
            self._orders.end(int(failed), FAILED if failed else "")

    def _check_survivors(self, now: float) -> None:
        """End the job if no process has its state any more; if it has none yet, start over."""
        if not self._begun or any(map(self._roster.carries, self._roster.crew)):
            return
        if self.generation or (self._orders.failures and not any(self._blame.free_seats(now))):
            self._orders.end(1, f"{FAILED}, and none is left that could go on")
        else:
            self._begun, self._roster.crew = False, []

    def _dismiss(self, now: float) -> None:
        """Let go of processes without a place that have lost their slot or are too many."""
        for process in self._roster.unplaced():
            if not self._roster.has_slot(process):
                self._orders.let_go(process, "its slot is gone", now)
        too_many = -self._roster.room()
        if too_many > 0:
            for process in self._roster.unplaced()[-too_many:]:
                self._orders.let_go(process, "there are enough without it", now)

    def _start(self, now: float) -> None:
        """Start a process in each free slot, as long as there is room."""
        roster = self._roster
        room = roster.room()
        if room <= 0 or any(member.finished for member in roster.survivors()):
            return
        seats = list(islice(self._blame.free_seats(now), room))
        if not self._begun:
            if len(seats) < self._limits.processes:
                self._wait(self._limits.processes, _hosts_of(seats), now)
                return
            self._begun = True
            self._patience.stop()
        others = sorted(roster.expected(), key=lambda one: one.age)
        planned = placing.planned([other.seat for other in others], seats, roster.most)
        batch, deadline = self._starts, now + self._limits.elastic_timeout
        for (host, number), slot in zip(seats, planned, strict=True):
            identity = f"{host}[{number}].{self._starts}"
            process = Process(identity, host, number, self._starts, batch, deadline)
            self._starts += 1
            roster.processes[identity] = process
            if roster.is_member(process):
                roster.crew.append(process)
            self._orders.add(Start(identity, host, number, process.start_rank, slot))

    def _announce(self, now: float) -> None:
        """Tell the members of a complete generation if the next one would be different."""
        roster = self._roster
        if any(one.state is not State.TRAINING or one.finished for one in roster.crew):
            return
        change = HostUpdateResult.no_update
        if not all(map(roster.has_slot, roster.crew)):
            change |= HostUpdateResult.removed
        unready = {one.batch for one in roster.newcomers() if one.state is State.STARTING}
        has_room = len(roster.crew) < roster.most
        if has_room and any(one.batch not in unready for one in roster.comers()):
            change |= HostUpdateResult.added
        for one in roster.elsewhere():
            if not one.is_named:
                one.is_named = True
                text = wording.elsewhere(one.name, one.function, roster.function())
                self._orders.say(f"{text}.")
        change &= ~self._announced
        if change:
            self._news += 1
            self._announced |= change
            self._orders.add(News(self._news, change, _identities(roster.crew)))

    def _place(self, now: float) -> None:
        """Place the next generation if all surviving members of this one wait for it."""
        roster, survivors = self._roster, self._roster.survivors()
        if not survivors or any(member.state is not State.WAITING for member in survivors):
            return
        if self._limits.resets is not None and self.generation > self._limits.resets:
            self._orders.end(1, wording.too_many_resets(self._limits.resets))
            return
        ready = roster.comers()
        starting = any(one.state is State.STARTING for one in roster.newcomers())
        staying = [member for member in survivors if roster.has_slot(member)]
        if not any(map(roster.carries, staying)) and (staying or ready):
            # All hosts are new: one process hands the state over and then leaves.
            staying.append(min(survivors, key=lambda member: member.age))
        staying.sort(key=lambda one: one.age)
        crew = sorted([*staying, *ready][: roster.most], key=lambda one: one.age)
        if len(staying) < self._limits.least and starting:
            self._wait(self._limits.least, roster.in_use(), now, starting=True)
        elif len(crew) < self._limits.least:
            self._wait(self._limits.least, roster.in_use(), now)
        elif not any(map(roster.has_slot, crew)):
            self._orders.end(1, wording.NO_STATE)
        else:
            self._patience.stop()
            self._form(crew, now)
            for member in survivors:
                if not roster.has_slot(member) and not roster.is_member(member):
                    self._orders.let_go(member, "its slot is gone", now)
                    self._orders.say(f"{member.name} leaves the job: its slot is gone.")

    def _form(self, crew: Sequence[Process], now: float) -> None:
        slots = placing.place([process.seat for process in crew])
        ranked = sorted(zip(crew, slots, strict=True), key=lambda pair: pair[1].rank)
        members = tuple(
            Member(process.identity, slot, process.since is None) for process, slot in ranked
        )
        restored = any(process.reason == messages.FAILURE for process in crew)
        self._owes_sync |= restored or any(member.newcomer for member in members)
        self._broken, self._cancelled = False, ""
        self._announced = HostUpdateResult.no_update
        self._suspicion = Suspicion()
        self._roster.generation += 1
        self._roster.crew = [process for process, _ in ranked]
        for process in crew:
            process.generation, process.state = self.generation, State.JOINING
            process.deadline = now + self._limits.elastic_timeout
        self._orders.add(Place(self.generation, members, self._owes_sync))
        if self.generation > 1:
            there = _hosts_of(process.seat for process in crew)
            self._orders.say(wording.generation(self.generation, len(crew), there))

    # Shared by events and steps.

    def _complete(self, now: float) -> None:
        """This generation has come together."""
        self._roster.trained, self._owes_sync = True, False
        for member in self._roster.crew:
            if member.since is None:
                member.since, member.proved_at = self.generation, now + PROBATION_SECONDS
        for other in self._roster.newcomers():
            if other.state is State.WAITING and not other.function:
                self._prepare(other, now)

    def _prepare(self, process: Process, now: float) -> None:
        """Send a newcomer that waits in init on to its function: the job runs already."""
        process.state = State.STARTING
        process.deadline = now + self._limits.elastic_timeout
        if process.ready_by is not None:
            process.deadline = min(process.deadline, process.ready_by)
        self._orders.add(Prepare(process.identity))

    def _break_up(self, now: float, cancel: str) -> None:
        """This generation has ended: its members have to ask for another place.

        They are told the reason, `cancel`; if that is "", they notice by themselves.
        """
        self._broken = True
        left = [one for one in self._roster.crew if one.trains and not one.finished]
        for member in left:
            if member.deadline is None or member.deadline <= now:
                member.deadline = now + self._limits.elastic_timeout
        if cancel and not self._cancelled:
            self._cancelled = cancel.rstrip(".")
            if left:
                self._orders.add(Cancel(self.generation, _identities(left), self._cancelled))

    def _hurry_companions(self, process: Process, now: float) -> None:
        """A newcomer is ready in its function: those started with it have limited time to follow.

        Before a generation has come together there is no hurry: nobody trains yet.
        """
        if not self._roster.trained:
            return
        last = now + self._limits.start_timeout
        for other in self._roster.processes.values():
            if other.batch == process.batch and other.state is State.STARTING:
                other.ready_by = min(last, other.ready_by or last)
                other.deadline = min(last, other.deadline or last)

    def _give_up(self, process: Process, seconds: str, now: float) -> None:
        """A process was not ready in time; its host is not blamed for that."""
        why = f"was not ready within {seconds}"
        if process.ready_by is not None and now >= process.ready_by:
            why = (
                f"was not ready {self._limits.start_timeout:g} s after the first process that was "
                "started with it (--start-timeout)"
            )
        self._orders.kill(process)
        self._fail(process, why, now, is_slow=True)

    def _gone(self, identity: str, how: str, now: float) -> list[Action]:
        """A process has ended."""
        process = self._roster.processes.pop(identity, None)
        if process:
            expected, process.state = not process.lives, State.GONE
            if not expected:
                self._fail(process, how, now)
        return self._settle(now)

    def _ends_the_job(self, process: Process) -> bool:
        """Whether the process, if it exits successfully, shows that the job has done its work.

        Processes may also exit successfully because their host is taken away.
        """
        is_member = process.lives and self._roster.is_member(process)
        return is_member and (process.finished or self._roster.has_slot(process))

    def _succeed(self, process: Process, now: float) -> None:
        """A member has succeeded: the job ends with the others."""
        process.state = State.LEAVING
        if self._succeeded:
            return
        self._succeeded = True
        for other in self._roster.processes.values():
            if not self._roster.is_member(other) or other.state is State.WAITING:
                if other.lives:
                    self._orders.let_go(other, "the job has ended", now)
            elif other.lives and not self._broken:
                other.deadline = None  # it may have more work left than the first one

    def _lose(self, process: Process, why: str, now: float) -> None:
        self._orders.kill(process)
        self._fail(process, why, now)

    def _fail(self, process: Process, why: str, now: float, is_slow: bool = False) -> None:
        """A process has failed."""
        process.failed = True
        self._orders.failures.append(f"{process.name} {why}")
        self._orders.say(f"{process.name} (started as rank {process.start_rank}) {why}.")
        if self._roster.has_slot(process) and not self._succeeded:
            if is_slow or self._limits.replaces_failed:
                self._blame.note_failure_of(process, now, is_slow)
            else:
                self._blame.exclude_host_of(process, "failed", now)
        if self.generation and self._roster.is_member(process):
            self._break_up(now, self._orders.failures[-1])

    def _is_at_rest(self) -> bool:
        """Whether this generation trains, the next would be the same, and there may be a next."""
        resets = self._limits.resets
        return (
            not self._broken
            and not self._announced
            and not self._succeeded
            and (resets is None or self.generation <= resets)
            and all(one.state is State.TRAINING and not one.finished for one in self._roster.crew)
            and all(
                one.lives and one.state is not State.STARTING
                for one in self._roster.processes.values()
            )
        )

    def _wait(self, needed: int, there: Sequence[Host], now: float, starting: bool = False) -> None:
        """Slots are missing, or their processes are still `starting`: say so; finally give up."""
        what = wording.too_few(needed, there, starting)
        for one in self._roster.elsewhere():
            what += f"; {wording.elsewhere(one.name, one.function, self._roster.function())}"
        line = self._patience.wait(now, may_end=not starting)
        if line is None:
            self._orders.end(
                1, f"after {self._limits.elastic_timeout:g} s (--elastic-timeout), {what}"
            )
        elif line:
            self._orders.say(f"{line}: {what}.")


def _identities(processes: Iterable[Process]) -> tuple[str, ...]:
    return tuple(process.identity for process in processes)


def _hosts_of(seats: Iterable[tuple[str, int]]) -> list[Host]:
    return [Host(*pair) for pair in Counter(host for host, _ in seats).items()]
