"""Who takes part in an elastic job: every decision of the driver, and nothing else.

`Membership` has no clock, no thread and no process. Whoever runs the job tells it what happened,
and when, and does what it answers. Whatever happens only changes what it knows; then it compares
that with what should be, always in the same way (`_settle`). So a message that comes late, twice or
not at all does no lasting harm.

A job goes from generation to generation. One ends if a member is lost or asks for another place;
if all its members that live have asked, the next is placed: those members, in the order of their
age, and whoever else is ready. Generation 0 is the time before the first place; its members are
all that were started.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence

from hvdtune.core.driver import messages
from hvdtune.core.driver.changes import HostUpdateResult
from hvdtune.launch.allocation.hosts import Host
from hvdtune.launch.elastic import discovery, placing
from hvdtune.launch.elastic.actions import (
    Action,
    Cancel,
    End,
    Kill,
    Leave,
    Member,
    News,
    Place,
    Say,
    Start,
)
from hvdtune.launch.elastic.exclusion import Exclusion
from hvdtune.launch.elastic.limits import Limits
from hvdtune.launch.elastic.patience import Patience
from hvdtune.launch.elastic.process import Process, State
from hvdtune.launch.local.endings import cause_of_end

GRACE_SECONDS = 30.0  # for processes that are to end by themselves
_STRIKES = 3  # so many processes in a row may fail in a slot before they take part

_FAILED = "Horovod detected that one or more processes exited with non-zero status"


class Membership:
    """Decides what the driver of an elastic job does.

    Each input takes `now`, in seconds of a clock that only goes forward, and returns what is to be
    done, in this order. `due` says when `tick` is to be called. After an `End` nothing more comes.
    Processes have identities: texts that no two processes of the job share, from their `Start`.
    """

    def __init__(self, limits: Limits, exclusion: Exclusion) -> None:
        limits.check()
        self.generation = 0
        self.ended = False
        self._limits = limits
        self._most = sys.maxsize if limits.most is None else limits.most
        self._exclusion = exclusion
        self._hosts: dict[str, int] | None = None  # slots, oldest host first; None: no answer yet
        self._silent_discovery = ""  # why it fails
        self._processes: dict[str, Process] = {}  # all whose end was not reported
        self._crew: list[
            Process
        ] = []  # of this generation, in the order of ranks; the lost ones, too
        self._begun = False  # there were slots enough to start
        self._trained = False  # a generation has come together
        self._succeeded = False  # a member has ended with 0
        self._cancelled = False  # this generation
        self._owes_sync = (
            False  # members may have different states, and have not come together since
        )
        self._news = 0
        self._announced = HostUpdateResult.no_update  # to this generation
        self._starts = 0
        self._batches = 0
        self._strikes: dict[tuple[str, int], int] = {}  # by slot
        self._failures: list[str] = []
        self._next_return: float | None = None  # when the next exclusion ends
        self._patience = Patience(limits.elastic_timeout)
        self._actions: list[Action] = []

    # What happens.

    def hosts(self, found: Sequence[Host], now: float) -> list[Action]:
        """Discovery has answered."""
        previous = [Host(*pair) for pair in (self._hosts or {}).items()]
        if self._silent_discovery:
            self._say("host discovery answers again.")
            self._silent_discovery = ""
        if self._begun and discovery.difference(previous, found):
            self._say(f"hosts now: {_listed(found) or 'none'}.")
        self._hosts = dict(discovery.ordered(self._hosts or (), found))
        return self._settle(now)

    def discovery_failed(self, why: str, now: float) -> list[Action]:
        """Discovery has not answered; `why` is a sentence. The hosts stay as they are."""
        if self._hosts is None:
            self._end(1, f"host discovery failed: {why}")
        elif why != self._silent_discovery:
            self._say(f"host discovery failed; the hosts stay as they are: {why}")
        self._silent_discovery = why
        return self._settle(now)

    def not_started(self, identity: str, why: str, now: float) -> list[Action]:
        """A `Start` could not be carried out; no process is left of it."""
        process = self._processes.pop(identity, None)
        if process:
            expected = process.lives
            process.state = State.GONE
            if expected:
                self._fail(process, f"could not be started: {why}", now)
        return self._settle(now)

    def ready(
        self, identity: str, generation: int, reason: str, why: str, now: float
    ) -> list[Action]:
        """A process asks for a place, and waits.

        `generation` is that of the last place it was told, 0 if none; `reason` and `why` are those
        of `hvdtune.core.driver.messages`.
        """
        process = self._processes.get(identity)
        if process is None or not process.lives:
            self._actions.append(Leave(identity, "the job goes on without it"))
        elif self._succeeded:
            self._let_go(process, now, "the job has ended")
        elif process.trains and generation < self.generation and not self._cancelled:
            pass  # sent before its place reached it
        else:
            was_in, process.state = process.trains, State.WAITING
            process.reason, process.deadline, process.finished = reason, None, False
            if was_in:
                self._break_up(now, cancel=reason == messages.FAILURE)
            self._hurry(process, now)
        return self._settle(now)

    def joined(self, identity: str, generation: int, now: float) -> list[Action]:
        """A process has come together with the others of its generation."""
        process = self._processes.get(identity)
        if process and process.state is State.JOINING and generation == self.generation:
            process.state, process.deadline, process.joined = State.TRAINING, None, generation
            if all(member.joined == generation for member in self._crew):
                self._complete()
        return self._settle(now)

    def finished(self, identity: str, now: float) -> list[Action]:
        """A process's elastic function has returned; it goes on to its end without a limit."""
        process = self._processes.get(identity)
        if process and process.trains:
            process.finished, process.deadline = True, None
        return self._settle(now)

    def silent(self, identity: str, why: str, now: float) -> list[Action]:
        """A process does not answer, or others say that it takes no part; `why` ends a sentence."""
        process = self._processes.get(identity)
        if process and process.lives:
            self._lose(process, why, now)
        return self._settle(now)

    def exited(self, identity: str, code: int, now: float) -> list[Action]:
        """A process has ended; `code` is its exit code, or -N if signal N killed it."""
        process = self._processes.pop(identity, None)
        if process:
            expected, process.state = not process.lives, State.GONE
            if expected:
                pass
            elif code:
                self._fail(process, cause_of_end(code), now)
            elif process in self._crew:
                self._succeed(now)
            else:
                self._fail(process, "ended before it took part", now)
        return self._settle(now)

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        return self._settle(now)

    def due(self) -> float | None:
        """When to call `tick` if nothing else happens before; None: not at all."""
        times = [process.deadline for process in self._processes.values()]
        times += [self._patience.due(), self._next_return]
        return (
            None if self.ended else min((time for time in times if time is not None), default=None)
        )

    def identity_at(self, generation: int, rank: int) -> str | None:
        """Who has a rank; None if that generation has passed, or has no such rank."""
        if generation != self.generation or not 0 <= rank < len(self._crew):
            return None
        return self._crew[rank].identity

    # What follows from it.

    def _settle(self, now: float) -> list[Action]:
        """Compare what is with what should be; return what is to be done."""
        if not self.ended:
            self._keep_deadlines(now)
            if self._succeeded:
                self._end_with_the_last()
            elif self._hosts is not None:
                self._check_survivors()
                self._dismiss(now)
                self._start(now)
                self._announce()
                self._place(now)
            self._next_return = self._exclusion.next_end(now)
        actions, self._actions = self._actions, []
        return actions

    def _keep_deadlines(self, now: float) -> None:
        for process in list(self._processes.values()):
            if process.deadline is None or now < process.deadline:
                continue
            if self._succeeded or process.state is State.LEAVING:
                self._kill(process, "it did not end by itself")
            elif process.state is State.STARTING:
                self._lose(process, "was not ready in time", now)
            else:
                seconds = f"{self._limits.elastic_timeout:g} s (--elastic-timeout)"
                self._lose(process, f"did not come to the other processes within {seconds}", now)

    def _check_survivors(self) -> None:
        """End the job if nobody has its state any more."""
        if not self._begun or any(self._carries(member) for member in self._crew):
            return
        if self._failures:
            self._end(1, f"{_FAILED}, and none is left that could go on")
        else:  # only hosts have gone, and before there was anything to lose
            self._begun, self._crew = False, []

    def _dismiss(self, now: float) -> None:
        """Let processes go that were never placed, and have no slot or are too many."""
        for process in self._newcomers():
            if not self._has_slot(process):
                self._let_go(process, now, "its slot is gone")
        for process in reversed(self._newcomers()):
            if self._room() < 0:
                self._let_go(process, now, "there are enough without it")

    def _start(self, now: float) -> None:
        """Start a process in each free slot, as long as there is room."""
        hosts = [host for host in self._known() if not self._exclusion.excludes(host.name, now)]
        if not self._begun:
            if sum(host.slots for host in hosts) < self._limits.processes:
                self._wait(self._limits.processes, hosts, now)
                return
            self._begun = True
            self._patience.stop()
        room = self._room()
        if room <= 0 or any(member.finished for member in self._crew):
            return
        taken = {process.seat for process in self._processes.values()}
        seats = [
            (host.name, number)
            for host in hosts
            for number in range(host.slots)
            if (host.name, number) not in taken
            and not self._exclusion.excludes(f"{host.name}[{number}]", now)
        ][:room]
        others = sorted(self._expected(), key=lambda process: process.age)
        planned = placing.place([*(other.seat for other in others), *seats])[len(others) :]
        self._batches += 1
        for seat, slot in zip(seats, planned, strict=True):
            process = Process(
                f"{seat[0]}[{seat[1]}].{self._starts}",
                *(*seat, self._starts, self._batches, now + self._limits.elastic_timeout),
            )
            self._starts += 1
            self._processes[process.identity] = process
            if not self.generation:
                self._crew.append(process)
            self._actions.append(Start(process.identity, *seat, process.start_rank, slot))

    def _announce(self) -> None:
        """Tell a generation that has come together if the next would be another."""
        if not all(member.state is State.TRAINING for member in self._crew):
            return
        if any(member.finished for member in self._crew):
            return
        change = HostUpdateResult.no_update
        if not all(map(self._has_slot, self._crew)):
            change |= HostUpdateResult.removed
        starting = {one.batch for one in self._newcomers() if one.state is State.STARTING}
        if len(self._crew) < self._most and any(
            one.state is State.WAITING and one.batch not in starting for one in self._newcomers()
        ):
            change |= HostUpdateResult.added
        if change & ~self._announced:
            self._news += 1
            self._actions.append(
                News(self._news, change & ~self._announced, _identities(self._crew))
            )
            self._announced |= change

    def _place(self, now: float) -> None:
        """Place the next generation if all members of this one that live wait for it."""
        survivors = [member for member in self._crew if member.lives]
        if not survivors or any(member.state is not State.WAITING for member in survivors):
            return
        resets = self._limits.resets
        if resets is not None and self.generation > resets:
            self._end(
                1,
                "Horovod was shutdown because number of resets during elastic job exceeded "
                f"limit: {resets}",
            )
            return
        newcomers = [one for one in self._newcomers() if one not in self._crew]
        staying = [member for member in survivors if self._has_slot(member)]
        ready = [one for one in newcomers if one.state is State.WAITING]
        crew = sorted([*staying, *ready], key=lambda process: process.age)[: self._most]
        enough = len(staying) >= self._limits.least or len(newcomers) == len(ready)
        if not enough or len(crew) < self._limits.least:
            self._wait(self._limits.least, self._slots_in_use(), now)
        elif not any(map(self._carries, crew)):
            self._end(
                1, "No hosts from previous set remaining, unable to broadcast state: all are new"
            )
        else:
            self._patience.stop()
            self._form(crew, now)
            for member in survivors:
                if member not in crew:
                    self._let_go(member, now, "its slot is gone")

    def _form(self, crew: Sequence[Process], now: float) -> None:
        slots = placing.place([process.seat for process in crew])
        ranked = sorted(zip(crew, slots, strict=True), key=lambda pair: pair[1].rank)
        members = tuple(
            Member(process.identity, slot, process.since is None) for process, slot in ranked
        )
        restored = any(process.reason == messages.FAILURE for process in crew)
        self._owes_sync |= restored or any(member.newcomer for member in members)
        self.generation += 1
        self._crew = [process for process, _ in ranked]
        self._cancelled, self._announced = False, HostUpdateResult.no_update
        for process in crew:
            process.state, process.deadline = State.JOINING, now + self._limits.elastic_timeout
        self._actions.append(Place(self.generation, members, self._owes_sync))
        if self.generation > 1:
            self._say(
                f"generation {self.generation} has {len(crew)} processes: "
                f"{_listed(self._slots_in_use())}."
            )

    def _complete(self) -> None:
        """This generation has come together."""
        self._trained, self._owes_sync = True, False
        for member in self._crew:
            self._strikes.pop(member.seat, None)
            if member.since is None:
                member.since = self.generation

    def _break_up(self, now: float, cancel: bool) -> None:
        """This generation has ended: its members have to ask for another place."""
        left = [member for member in self._crew if member.trains and not member.finished]
        for member in left:
            member.deadline = member.deadline or now + self._limits.elastic_timeout
        if cancel and not self._cancelled:
            self._cancelled = True
            if left:
                self._actions.append(Cancel(self.generation, _identities(left)))

    def _hurry(self, process: Process, now: float) -> None:
        """A process is ready: those started with it get their last deadline."""
        for other in self._processes.values():
            if other.batch == process.batch and other.state is State.STARTING:
                other.deadline = min(other.deadline or now, now + self._limits.start_timeout)

    def _lose(self, process: Process, why: str, now: float) -> None:
        self._kill(process, f"it {why}")
        self._fail(process, why, now)

    def _fail(self, process: Process, why: str, now: float) -> None:
        """A process has failed that should not have: with it, its host or its slot."""
        process.failed = True
        self._failures.append(f"{process.name} {why}")
        self._say(f"{process.name} (started as rank {process.start_rank}) {why}.")
        if self._succeeded:
            return
        if self._limits.replaces_failed:
            self._exclude_slot(process, now)
        else:
            self._exclude_host(process, now)
        if self.generation and process in self._crew:
            self._break_up(now, cancel=True)

    def _exclude_slot(self, process: Process, now: float) -> None:
        if process.since is None:
            self._strikes[process.seat] = self._strikes.get(process.seat, 0) + 1
        if self._exclusion.cooldown or self._strikes.get(process.seat, 0) >= _STRIKES:
            self._exclude(process.name, now)

    def _exclude_host(self, process: Process, now: float) -> None:
        """Members stay if only a newcomer failed; who has finished is let end in peace."""
        self._exclude(process.host, now)
        for other in self._processes.values():
            lost = process.since is not None or other.since is None
            if lost and other.host == process.host and other.lives and not other.finished:
                self._kill(other, f"{process.name} failed, and its host is excluded")

    def _exclude(self, name: str, now: float) -> None:
        if self._exclusion.excludes(name, now):
            return
        seconds = self._exclusion.exclude(name, now) - now
        how_long = f"for {seconds:.1f} s"
        if seconds == float("inf"):
            how_long = "for ever (there is no --blacklist-cooldown-range)"
        self._say(f"{name} is excluded {how_long}.")

    def _succeed(self, now: float) -> None:
        """A member has ended well: the job ends with the others."""
        if self._succeeded:
            return
        self._succeeded = True
        for process in self._processes.values():
            if process in self._crew and process.state is not State.WAITING:
                if process.lives and not process.finished:
                    process.deadline = now + GRACE_SECONDS
            elif process.lives:
                self._let_go(process, now, "the job has ended")

    def _end_with_the_last(self) -> None:
        if all(process.state is State.KILLED for process in self._processes.values()):
            failed = any(member.failed for member in self._crew)
            self._end(int(failed), _FAILED if failed else "")

    def _let_go(self, process: Process, now: float, why: str) -> None:
        if process.state is State.STARTING:
            self._kill(process, why)
        else:
            process.state, process.deadline = State.LEAVING, now + GRACE_SECONDS
            self._actions.append(Leave(process.identity, why))

    def _kill(self, process: Process, why: str) -> None:
        process.state, process.deadline = State.KILLED, None
        self._actions.append(Kill(process.identity, why))

    def _wait(self, needed: int, there: Sequence[Host], now: float) -> None:
        """There are too few slots: say so now and then, and give up in the end."""
        count = sum(host.slots for host in there)
        what = f"{needed} slots are needed, {count} are there ({_listed(there) or 'no host'})"
        if count < needed:
            what += f", {needed - count} are missing"
        if self._patience.is_over(now):
            self._end(1, f"after {self._patience.seconds:g} s (--elastic-timeout), {what}")
        elif line := self._patience.line(now):
            self._say(f"{line}: {what}.")

    def _end(self, status: int, text: str) -> None:
        if self.ended:
            return
        self.ended = True
        if status and self._failures:
            if _FAILED not in text:
                text += f". {_FAILED}"
            text += f": {'; '.join(self._failures[:8])}"
        self._actions.append(End(status, text and f"{text}."))

    def _say(self, text: str) -> None:
        self._actions.append(Say(text))

    # What it knows.

    def _known(self) -> list[Host]:
        return [Host(name, slots) for name, slots in (self._hosts or {}).items()]

    def _has_slot(self, process: Process) -> bool:
        return process.number < (self._hosts or {}).get(process.host, 0)

    def _carries(self, process: Process) -> bool:
        """Whether it has the job's state; before there is one, everybody has."""
        return process.lives and (process.since is not None or not self._trained)

    def _newcomers(self) -> list[Process]:
        """Those that live and have not been placed, in the order they were started."""
        placed = self._crew if self.generation else []
        return [one for one in self._processes.values() if one.lives and one not in placed]

    def _expected(self) -> list[Process]:
        """Those that live and may be in the next generation."""
        return [one for one in self._processes.values() if one.lives and self._has_slot(one)]

    def _room(self) -> int:
        """How many more processes there may be; less than 0 if there are too many."""
        return self._most + self._limits.spares - len(self._expected())

    def _slots_in_use(self) -> list[Host]:
        counts = Counter(process.host for process in self._expected())
        return [Host(name, count) for name, count in counts.items()]


def _identities(processes: Iterable[Process]) -> tuple[str, ...]:
    return tuple(process.identity for process in processes)


def _listed(hosts: Iterable[Host]) -> str:
    return ", ".join(f"{host.name}:{host.slots}" for host in hosts)
