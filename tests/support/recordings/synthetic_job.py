"""Jobs that never run, described in numbers: what synthetic_capture makes recordings of."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hvdtune.timeline.record.layout import MemberList

MIB = 1 << 20


@dataclass(frozen=True)
class Tensor:
    """A tensor that every rank submits in every step."""

    name: str
    bytes: int
    kind: str = "allreduce"
    dtype: str = "float32"
    process_set: int = 0


def tensors(count: int, size: int = MIB, last: int | None = None) -> tuple[Tensor, ...]:
    """`count` gradients of `size` bytes each, in the order of submission; the last of `last`."""
    sizes = [size] * count
    if last is not None:
        sizes[-1] = last
    return tuple(Tensor(f"allreduce.layer{i}.weight", s) for i, s in enumerate(sizes))


@dataclass(frozen=True)
class Call:
    """A blocking operation of every rank in every `every`-th step, when `at` seconds of it are
    computed. `gap`: seconds computed only for it; `pickles`: they are recorded as pickling."""

    tensor: Tensor
    at: float = 0.0
    gap: float = 0.0
    pickles: bool = False
    every: int = 1


@dataclass(frozen=True)
class Late:
    """`rank` computes `seconds` longer in the steps `first` … `last` (from 1, both included), of
    these in every `every`th, and in this `phase` of them; or `everywhere` in the forward and the
    backward pass, in proportion to what it computes."""

    rank: int
    seconds: float
    first: int = 1
    last: int | None = None
    phase: str = "forward"
    every: int = 1
    everywhere: bool = False

    def concerns(self, step: int) -> bool:
        inside = self.first <= step and (self.last is None or step <= self.last)
        return inside and (step - self.first) % self.every == 0


@dataclass(frozen=True)
class Stall:
    """`rank` submits the tensors from number `tensor` on `seconds` later in one step."""

    rank: int
    step: int
    seconds: float
    tensor: int = 0
    reported_after: float = 60.0


@dataclass(frozen=True)
class Job:
    """A training job. Times in seconds, sizes in bytes."""

    ranks: int = 4
    steps: int = 20
    tensors: tuple[Tensor, ...] = field(default_factory=lambda: tensors(20))
    forward: float = 0.010
    backward: float = 0.020
    optimizer: float = 0.001
    overlap: bool = True  # False: everything is submitted when the backward pass is over
    alone: int = 0  # so many, the last ones, are submitted and waited for one by one after the rest
    call: float = 50e-6  # computing before each of these
    late: tuple[Late, ...] = ()
    stall: Stall | None = None
    threshold: int = 128 * MIB
    cycle: float = 0.001
    announce: float = 30e-6  # from a rank to the coordinator
    schedule: float = 30e-6  # and back
    batch: float = 100e-6  # of a batch, whatever its size
    speed: float = 2e9  # bytes a second on top of that: algbw of large batches
    copy_speed: float = 8e9
    noise: float = 0.0  # standard deviation of the compute times, relative
    seed: int = 0
    local_size: int = 8  # ranks of a host
    offset: tuple[float, ...] = ()  # rank 0's clock minus the rank's, at the start; 0 if missing
    drift: tuple[float, ...] = ()  # the offset grows by it every second
    bound: float = 20e-6  # of a clock reading
    reading_every: float = 0.5
    orders: tuple[tuple[int, ...], ...] = ()  # of each rank: the tensors as it submits them
    all_ranks: bool = True  # False: rank 0 alone records, with the stream `ready`
    counters: bool = False
    cycles: bool = False  # mark them
    id: str = "synthetic-1"
    peak_gbps: float | None = None
    framework: str = "torch 2.13.0"
    cpus: int = 0  # of each host; 0: not recorded
    members: tuple[MemberList, ...] = ()  # what is recorded of process sets
    phases: bool = False  # mark them
    input: float = 0.0  # waiting for it, in front of the forward pass
    before: float = 0.0  # behind the input, and marked by nobody
    evaluation: float = 0.0  # behind the optimizer, in the next step
    calls: tuple[Call, ...] = ()  # in the order in which they come

    @property
    def named(self) -> tuple[Tensor, ...]:
        return (*self.tensors, *(call.tensor for call in self.calls))

    @property
    def recorded(self) -> range:
        return range(self.ranks if self.all_ranks else 1)


def planted() -> dict[str, tuple[Job, Job]]:
    """Name → (a job with a fault, the same job without it)."""
    healthy = Job(steps=100, noise=0.01)
    short = replace(healthy, steps=50)  # where the fault is in every step
    small = replace(short, tensors=tensors(200, 32 << 10))
    huge = replace(short, tensors=tensors(20, MIB, last=30 * MIB))
    return {
        "late": (replace(short, late=(Late(2, 0.030),)), short),
        "late for a while": (replace(healthy, late=(Late(1, 0.030, 40, 60),)), healthy),
        "threshold 0": (replace(small, threshold=0), small),
        "cycle 50 ms": (replace(short, cycle=0.050), short),
        "huge tensor last": (huge, replace(huge, tensors=(huge.tensors[-1], *huge.tensors[:-1]))),
        "no overlap": (replace(short, overlap=False), short),
        "stalled": (replace(healthy, stall=Stall(3, 50, 65.0)), healthy),
    }
