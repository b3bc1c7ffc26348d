"""A process of an elastic job, as the driver knows it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from hvdtune.core.driver import messages


class State(Enum):
    """A process's progress.

    From each state it can go to any that follows, and back to WAITING; from WAITING it goes back to
    STARTING if it is told to prepare.
    """

    STARTING = auto()  # ordered, or told to prepare; has not asked for a place since
    WAITING = auto()  # has asked for a place
    JOINING = auto()  # was told its place
    TRAINING = auto()  # has come together with the others of its generation
    LEAVING = auto()  # was told to leave
    KILLED = auto()  # no longer part of the job, but its end has not been reported yet
    GONE = auto()


_LIVING = (State.TRAINING, State.WAITING, State.JOINING, State.STARTING)


@dataclass(eq=False)
class Process:
    """One process, from its start to its end. Times are seconds of the driver's clock."""

    identity: str
    host: str
    number: int  # of its slot on the host
    start_rank: int  # grows from one start to the next
    batch: int  # the same for all that were started together
    deadline: float | None  # when it must have reached another state
    state: State = State.STARTING
    reason: str = messages.START  # why it asked for a place
    generation: int = 0  # the last that it was placed in
    joined: int = 0  # the last that it joined
    since: int | None = None  # its first generation that all members joined
    has_state: bool = False  # it has the job's state, as it said
    function: str = ""  # the elastic function that it began last; "": none
    finished: bool = False  # that function has returned
    is_named: bool = False  # the user knows that it waits in another function than the members
    proved_at: float | None = None  # a failure after this time does not count against its slot
    ready_by: float | None = None  # how long the ready processes of its batch wait for it
    failed: bool = False

    @property
    def name(self) -> str:
        """For people, and for exclusion."""
        return f"{self.host}[{self.number}]"

    @property
    def seat(self) -> tuple[str, int]:
        """Host and number."""
        return self.host, self.number

    @property
    def lives(self) -> bool:
        """Whether it is still part of the job."""
        return self.state in _LIVING

    @property
    def trains(self) -> bool:
        """Whether it is in a generation, or on its way into it."""
        return self.state in (State.JOINING, State.TRAINING)

    @property
    def age(self) -> tuple[bool, float, int]:
        """A sort key: processes that have had the job's state for longest come first."""
        since = float("inf") if self.since is None else self.since
        return (not self.has_state, since, self.start_rank)
