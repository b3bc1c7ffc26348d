"""The hosts and the processes of an elastic job, as the driver knows them now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from hvdtune.launch.allocation.hosts import Host
from hvdtune.launch.elastic.limits import MOST_PROCESSES, Limits
from hvdtune.launch.elastic.process import Process, State


class Roster:
    """The knowledge of `Membership`, and questions about it.

    Every process that was placed in this generation is a member of it. Before the first, in
    generation 0, every process that was started is one.
    """

    def __init__(self, limits: Limits) -> None:
        self.generation = 0
        self.hosts: dict[str, int] | None = None  # slots, oldest host first; None: no answer yet
        self.processes: dict[str, Process] = {}  # not yet reported to have ended, oldest first
        self.crew: list[Process] = []  # the members in the order of ranks, including lost ones
        self.trained = False  # a generation has come together
        self.most = limits.most or MOST_PROCESSES
        self._spares = limits.spares

    def is_member(self, process: Process) -> bool:
        """Whether the process belongs to this generation."""
        return process.generation == self.generation

    def has_slot(self, process: Process) -> bool:
        """Whether the process's slot is still there."""
        return process.number < (self.hosts or {}).get(process.host, 0)

    def carries(self, process: Process) -> bool:
        """Whether the process has the job's state, as far as the driver knows.

        The processes that have said so have it. If none has, those that were in a complete
        generation have it, or, before there is one, all.
        """
        if any(one.has_state and one.lives for one in self.processes.values()):
            return process.lives and process.has_state
        return process.lives and (process.since is not None or not self.trained)

    def survivors(self) -> list[Process]:
        """The live members, in the order of their ranks."""
        return [member for member in self.crew if member.lives]

    def unplaced(self) -> list[Process]:
        """The live processes without a place in a generation, the oldest first."""
        generation = self.generation or None
        return [
            one for one in self.processes.values() if one.generation != generation and one.lives
        ]

    def newcomers(self) -> list[Process]:
        """The live processes that are not members, the oldest first."""
        return self.unplaced() if self.generation else []

    def function(self) -> str:
        """The elastic function that all live members are in; "" if there is none."""
        functions = {member.function for member in self.survivors()}
        return functions.pop() if len(functions) == 1 else ""

    def comers(self) -> list[Process]:
        """The newcomers that wait and can be in the next generation, the oldest first.

        Once there is a state, a newcomer must be in the function that the members are in.
        """
        found = [one for one in self.newcomers() if one.state is State.WAITING]
        if self.trained:
            here = self.function()
            found = [one for one in found if one.function == here]
        return found

    def elsewhere(self) -> list[Process]:
        """The waiting newcomers that are in another function than all members."""
        if not self.trained or not (here := self.function()):
            return []
        waiting = [one for one in self.newcomers() if one.state is State.WAITING]
        return [one for one in waiting if one.function != here]

    def expected(self) -> list[Process]:
        """The processes that may be in the next generation."""
        return [one for one in self.processes.values() if one.lives and self.has_slot(one)]

    def in_use(self) -> list[Host]:
        """The slots of processes that may be in the next generation and are not `elsewhere`."""
        elsewhere = self.elsewhere()
        counts = Counter(process.host for process in self.expected() if process not in elsewhere)
        return [Host(name, count) for name, count in counts.items()]

    def room(self) -> int:
        """How many more processes there may be; negative if there are too many."""
        return self.most + self._spares - len(self.expected())

    def free_seats(self, excluded: Callable[[str], bool]) -> Iterator[tuple[str, int]]:
        """Slots without a process, as (host, number), except those excluded by name."""
        taken = {process.seat for process in self.processes.values()}
        for host, slots in (self.hosts or {}).items():
            if not excluded(host):
                for number in range(slots):
                    if (host, number) not in taken and not excluded(f"{host}[{number}]"):
                        yield host, number
