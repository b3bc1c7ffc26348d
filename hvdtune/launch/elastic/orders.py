"""The decisions of `Membership` until the driver takes them; and how processes are ended."""

from __future__ import annotations

from hvdtune.launch.elastic import wording
from hvdtune.launch.elastic.actions import Action, End, Kill, Leave, Say
from hvdtune.launch.elastic.process import Process, State

GRACE_SECONDS = 30.0  # for processes that should end by themselves


class Orders:
    """Collects actions, in order, and remembers failures."""

    def __init__(self) -> None:
        self.ended = False  # there is an `End`
        self.failures: list[str] = []  # for people, the oldest first
        self._actions: list[Action] = []

    def take(self) -> list[Action]:
        """The actions added since the last call."""
        actions, self._actions = self._actions, []
        return actions

    def add(self, action: Action) -> None:
        """Add one more action."""
        self._actions.append(action)

    def say(self, text: str) -> None:
        """Tell the user a sentence."""
        self.add(Say(text))

    def let_go(self, process: Process, why: str, now: float) -> None:
        """The job goes on without the process. It may end by itself if it has asked for a place."""
        if process.state is State.STARTING:
            self.end_process(process, why)
        else:
            process.state, process.deadline = State.LEAVING, now + GRACE_SECONDS
            self.add(Leave(process.identity, why))

    def end_overdue(self, process: Process, why: str) -> None:
        """End a process that should have ended by itself; this counts as its failure."""
        process.failed = True
        self.failures.append(f"{process.name} was ended: {why}")
        self.end_process(process, why)

    def end_process(self, process: Process, why: str) -> None:
        """End a process that has not failed itself, and say why."""
        self.say(f"{process.name} is ended: {why}.")
        self.kill(process)

    def kill(self, process: Process) -> None:
        """End a process, whatever it does."""
        process.state, process.deadline = State.KILLED, None
        self.add(Kill(process.identity))

    def end(self, status: int, text: str) -> None:
        """End the job, unless it has been ended already."""
        if self.ended:
            return
        self.ended = True
        if status:
            text = wording.with_failures(text.removesuffix("."), self.failures)
        self.add(End(status, text))
