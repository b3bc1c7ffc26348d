"""A `Membership` by hand: hosts in text, processes by their names, such as "a[0]"."""

from __future__ import annotations

from hvdtune.core.driver import messages
from hvdtune.core.driver.changes import HostUpdateResult
from hvdtune.launch.allocation.hosts import Host
from hvdtune.launch.elastic.actions import Action, End, Leave, News, Place, Say, Start
from hvdtune.launch.elastic.exclusion import Exclusion
from hvdtune.launch.elastic.limits import Limits
from hvdtune.launch.elastic.membership import Membership
from hvdtune.launch.elastic.suspicion import Lateness

FAILED = "Horovod detected that one or more processes exited with non-zero status"
ADDED, REMOVED = HostUpdateResult.added, HostUpdateResult.removed


class Job:
    """Each input keeps what the driver answered in `answer`. A name means its latest process."""

    def __init__(self, processes: int, least: int, most: int | None = None, cooldown=None, **more):
        limits = Limits(processes, least, most, **more)
        self.membership = Membership(limits, Exclusion(cooldown, uniform=lambda: 0.0))
        self.now = 0.0
        self.identities: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.generations: dict[str, int] = {}  # the last place that each was told, by identity
        self.answer: list[Action] = []
        self.steps = 0

    def tell(self, what: str, *arguments) -> list[Action]:
        self.answer = getattr(self.membership, what)(*arguments, self.now)
        for action in self.answer:
            if isinstance(action, Start):
                name = f"{action.host}[{action.local_rank}]"
                self.identities[name], self.names[action.identity] = action.identity, name
            elif isinstance(action, Place):
                for member in action.members:
                    self.generations[member.identity] = action.generation
        return self.answer

    def hosts(self, text: str) -> list[Action]:
        pairs = [word.split(":") for word in text.split()]
        return self.tell("hosts", [Host(name, int(slots)) for name, slots in pairs])

    def ready(
        self, *names: str, reason: str = messages.FAILURE, function: str = "m.train"
    ) -> list[Action]:
        for name in names:
            identity = self.identities.get(name, name)
            generation = self.generations.get(identity, 0)
            given = reason if generation else messages.START
            self.tell("ready", identity, generation, given, "", function)
        return self.answer

    def begun(self, *names: str, function: str = "m.train") -> list[Action]:
        for name in names:
            self.tell("begun", self.identities[name], function)
        return self.answer

    def joined(self, *names: str) -> list[Action]:
        for name in names:
            identity = self.identities[name]
            self.tell("joined", identity, self.generations[identity])
        return self.answer

    def exited(self, name: str, code: int) -> list[Action]:
        return self.tell("exited", self.identities.get(name, name), code)

    def finished(self, *names: str) -> list[Action]:
        for name in names:
            self.tell("finished", self.identities[name])
        return self.answer

    def silent(self, name: str) -> list[Action]:
        return self.tell("silent", self.identities[name], "has not answered for 5 s")

    def late(self, *ranks: int, looks: int = 1, steps: int = 100, rank0: str = "") -> list[Action]:
        """Rank 0 is asked so often, with so many steps of 0.1 s in between; the last answer."""
        generation = self.membership.generation
        identity = self.membership.identity_at(generation, 0)
        for _ in range(looks):
            self.steps += steps
            found = Lateness(ranks, 0.03, 0.3, 0.9, self.steps, 0.1)
            self.tell("measured", self.identities.get(rank0, identity), generation, found)
        return self.answer

    def wait(self, seconds: float) -> list[Action]:
        """Time passes, with a tick whenever one is due; the answers together."""
        end, answers = self.now + seconds, []
        while (due := self.membership.due()) is not None and due <= end:
            assert due > self.now or not answers
            self.now = due
            answers += self.tell("tick")
        self.now, self.answer = end, answers
        return answers

    def train(self, hosts: str) -> None:
        """Start with these hosts, come together, and begin the function."""
        self.hosts(hosts)
        names = self.started()
        self.ready(*names, function="")
        self.joined(*names)
        self.begun(*names)

    # What the last answer said.

    def all(self, kind) -> list:
        return [action for action in self.answer if isinstance(action, kind)]

    def one(self, kind):
        (action,) = self.all(kind)
        return action

    def started(self) -> list[str]:
        return [self.names[action.identity] for action in self.all(Start)]

    def ranks(self) -> list[str]:
        """Who was placed, in the order of ranks."""
        return [self.names[member.identity] for member in self.one(Place).members]

    def newcomers(self) -> list[str]:
        return [self.names[one.identity] for one in self.one(Place).members if one.newcomer]

    def whom(self, kind) -> list[str]:
        """To whom actions of a kind are."""
        found = []
        for action in self.all(kind):
            found += getattr(action, "identities", None) or [action.identity]
        return [self.names.get(identity, identity) for identity in found]

    def said(self) -> str:
        return "\n".join(action.text for action in self.all(Say))

    def end(self) -> End:
        return self.one(End)

    def news(self) -> News:
        return self.one(News)

    def left(self) -> list[str]:
        return self.whom(Leave)
