"""The actions of an elastic job's driver, as `Membership` decides them."""

from __future__ import annotations

from typing import NamedTuple

from hvdtune.core.driver.changes import HostUpdateResult
from hvdtune.launch.allocation.hosts import Slot


class Start(NamedTuple):
    """Start a process.

    `local_rank` is the number of its slot on the host, which it keeps for life. `start_rank` names
    its output; no other process of the job has it. `planned` is the place that the process is
    expected to get, for the environment it starts with.
    """

    identity: str
    host: str
    local_rank: int
    start_rank: int
    planned: Slot


class Kill(NamedTuple):
    """End a process, whatever it does; its `exited` must still be reported."""

    identity: str


class Member(NamedTuple):
    """A process in a generation; `newcomer`: it has no state of the job yet."""

    identity: str
    slot: Slot
    newcomer: bool


class Place(NamedTuple):
    """Tell the members their places, in the order of ranks; all of them wait for it.

    `synchronise`: their states may differ.
    """

    generation: int
    members: tuple[Member, ...]
    synchronise: bool


class Prepare(NamedTuple):
    """Tell a process to ask for its place in its elastic function: the job runs already."""

    identity: str


class Cancel(NamedTuple):
    """Tell processes that a generation will not come together, or has ended: they must ask again.

    `why` is a sentence for people, without its full stop.
    """

    generation: int
    identities: tuple[str, ...]
    why: str


class News(NamedTuple):
    """Tell processes that the hosts have changed; `number` grows with each such message."""

    number: int
    change: HostUpdateResult
    identities: tuple[str, ...]


class Leave(NamedTuple):
    """Tell a process that the job goes on without it: the process then ends by itself."""

    identity: str
    why: str


class Say(NamedTuple):
    """Tell the user, on the launcher's stderr."""

    text: str


class End(NamedTuple):
    """The job is over; the driver ends all processes that are left. `text` is for people."""

    status: int
    text: str


Action = Start | Kill | Place | Prepare | Cancel | News | Leave | Say | End
