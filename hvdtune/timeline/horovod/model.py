"""The content of a timeline in Horovod's layout. All times are whole microseconds (us)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NEGOTIATE = "NEGOTIATE_"
INIT = "INIT_"


@dataclass(frozen=True, slots=True)
class Span:
    """Something with a begin and an end in the row of one tensor.

    `depth` is 0 for negotiations and operations, 1 for activities inside an operation. `args` has
    the arguments of its end event: dtype, shape and, in hvdtune's files, bytes and batch.
    """

    tensor: str
    name: str
    begin: int
    end: int
    depth: int
    args: Mapping[str, Any]

    @property
    def duration(self) -> int:
        """`end - begin`, us."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Tick:
    """The moment at which `rank` was ready for the operation on `tensor`."""

    tensor: str
    rank: int
    time: int


@dataclass(frozen=True, slots=True)
class Instant:
    """An event of the whole job: CYCLE_START, a stall, dropped events …"""

    name: str
    time: int
    args: Mapping[str, Any]


@dataclass
class Trace:
    """The content of one file.

    `problems` has one sentence for each fault: events that cannot be read, ends without a begin,
    begins without an end. The lists leave out these events. `for_viewers`: hvdtune made the file
    from a recording, for trace viewers. `left_out_us`: time in the middle that does not count (see
    hvdtune/timeline/horovod/starts.py).
    """

    source: str
    for_viewers: bool = False
    start_epoch_us: int | None = None
    event_count: int = 0
    tensors: list[str] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    ticks: list[Tick] = field(default_factory=list)
    instants: list[Instant] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    left_out_us: int = 0

    @property
    def dropped(self) -> int:
        """The number of events that the recorder lost because it could not keep up."""
        counts = [i.args.get("dropped", 0) for i in self.instants if i.name == "DROPPED_EVENTS"]
        return max((count for count in counts if isinstance(count, int)), default=0)
