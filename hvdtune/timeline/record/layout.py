"""What a rank records: the streams of a capture, their binary layout, and a recording in memory.

A capture is one JSON array of Chrome trace events, one event per line, valid at every moment. The
engine appends its records in *blocks*: metadata events, which trace viewers ignore, whose `args`
contain many fixed records of one stream. native/observe/capture/capture.h writes this layout; it
and this module must have the same `FORMAT`. docs/timeline-format.md describes it for others.

| event (`"ph":"M"`) | `args` |
|---|---|
| `hvdtune_identity` | an Identity; the first event of each rank |
| `hvdtune_names` | `names`: [[id, name, process set, kind, dtype, bytes], …]; ids count from 0 |
| `hvdtune_texts` | `texts`: [[id, text], …]: the texts of marks and counters |
| `hvdtune_block` | `stream`, `count`, `data`: base64 of `count` records of that stream |
| | with `runs`: that many runs of tensors instead (tensor_runs.py) |
| `hvdtune_clock` | `local_ns`, `offset_ns`, `bound_ns`: clock of rank 0 = this rank's + offset |
| `hvdtune_set` | `process_set`, `batch`, `ranks`: its members from the batch of that serial on |
| `hvdtune_dropped` | stream → records lost so far |
| `hvdtune_rotated` | `blocks`: how many were dropped, with their records, to keep the file small |
| `hvdtune_end` | `reason`: the recording is complete |

`pid` of every event is the rank. All times are CLOCK_MONOTONIC of the recording rank, ns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

#: Raised with every change that an older reader would misread.
FORMAT = 3

#: An id that stands for no name or text.
NONE = 0xFFFFFFFF

#: One tensor of one batch, in the batch's order. `batch` is the low half of the batch's serial.
TENSOR = np.dtype([("name", "<u4"), ("batch", "<u4"), ("submitted", "<i8")])

#: One batch, executed on this rank. A time of 0 is unknown. `scheduled` and `first_ready` are the
#: coordinator's times, known only to rank 0: when it closed the batch, and when the batch's first
#: tensor was ready on all ranks. `packed`: the first chunk was in the fusion buffer;
#: `unpacking`: the last chunk was complete on all ranks; between them packing, reduction and
#: unpacking overlap. `waited_ns`: of end - begin, spent waiting for other ranks.
BATCH = np.dtype(
    [
        ("scheduled", "<i8"),
        ("first_ready", "<i8"),
        ("begin", "<i8"),
        ("packed", "<i8"),
        ("unpacking", "<i8"),
        ("end", "<i8"),
        ("bytes", "<i8"),
        ("serial", "<u8"),
        ("waited_ns", "<i8"),
        ("tensors", "<u4"),
        ("process_set", "<u4"),
        ("epoch", "<u4"),
        ("kind", "u1"),
        ("dtype", "u1"),
        ("reason", "u1"),
        ("flags", "u1"),
    ]
)
assert BATCH.itemsize == 88

#: A thread of the framework was blocked in the engine, waiting for a result. `name`: the tensor, or
#: NONE for several, or for one that is not done yet, since a long wait is several records.
WAIT = np.dtype([("begin", "<i8"), ("end", "<i8"), ("name", "<u4"), ("thread", "<u4")])

#: An event at one moment. `text` is an id of `hvdtune_texts`, or NONE.
MARK = np.dtype([("time", "<i8"), ("value", "<i8"), ("kind", "<u4"), ("text", "<u4")])

#: Rank `rank` announced a tensor to rank 0, which records this if not all ranks record.
READY = np.dtype([("time", "<i8"), ("name", "<u4"), ("rank", "<u4")])

#: A reading of a counter. `counter` is an id of `hvdtune_texts`: its name, with its unit.
COUNTER = np.dtype([("time", "<i8"), ("value", "<f8"), ("counter", "<u4"), ("pad", "<u4")])

STREAMS: dict[str, np.dtype[Any]] = {
    "tensors": TENSOR,
    "batches": BATCH,
    "waits": WAIT,
    "marks": MARK,
    "ready": READY,
    "counters": COUNTER,
}

#: Counters that a rank records at the end of a step, at least 10 ms after the previous ones: CPU
#: time since then over that time, for all its threads, and for executing batches only.
CPUS_IN_USE = "CPUs in use"
CPUS_FOR_BATCHES = "CPUs in use for batches"
#: The share of that time in which the thread that ends the steps was ready to run but had no CPU;
#: recorded if it is the same thread as the last time, and the kernel counts it.
CPUS_WAITED_FOR = "CPUs waited for"
#: Seconds of pickling or unpickling the object of that name (`broadcast.config`), which ended at
#: the time of the reading.
PICKLING = "pickling {} (s)"

#: Names of the numbers in BATCH: native/base/op_kind.h, base/dtype.h, wire/messages.h.
KINDS = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier")
DTYPES = (
    "uint8", "int8", "uint16", "int16", "int32", "int64",
    "float16", "float32", "float64", "bool", "bfloat16",
)  # fmt: skip
REASONS = ("full", "cycle", "blocked", "step done", "end")

_PLACE = re.compile(r"_\d+of(\d+)$")


class Flag(IntEnum):
    """Bits of BATCH.flags."""

    OK = 1
    IN_PLACE = 2  # all ranks had the tensors in shared memory: nothing was packed


class Mark(IntEnum):
    """MARK.kind."""

    STEP = 1  # an optimizer's step ends; value: its number, from 1
    CYCLE = 2  # the coordinator woke to close batches; only if cycles are marked
    SETTINGS = 3  # value: the epoch; text: the settings from now on, as JSON
    STALL = 4  # text: which tensors wait, and for which ranks
    AUTOTUNE = 5  # text: the tuner's decision
    STRAGGLER = 6  # text: the late rank or host; value: rank, or -1 for a host; again at its end
    USER = 7  # text: the user's
    WINDOW = 8  # value: 1 recording begins here, 0 it ends
    ERROR = 9  # value 1, text: why the job ends; value 0, text: why an operation was refused
    PHASE = 10  # text: the program's phase; value 1 it begins, 2 the same on a device, 0 it ends
    PROGRAM = 11  # text: how it reduces gradients, as JSON (torch/optimizer/description.py)
    CALL_SITE = 12  # text: operation|process set|line that called it, value: its elements


@dataclass(frozen=True)
class Identity:
    """The rank that recorded this, its job and settings. Unknown keys of a file are kept."""

    job: str
    rank: int
    size: int
    local_rank: int
    host: str
    pid: int
    version: str  # of hvdtune
    format: int = FORMAT
    started_wall_us: int = 0  # since the epoch
    started_ns: int = 0  # CLOCK_MONOTONIC at the same moment
    framework: str = ""  # the faces in use: "torch 2.13.0", "keras 3.10.0, jax 0.7.1"; see faces
    settings: dict[str, Any] = field(default_factory=dict)  # variable → value in force
    peak_gbps: float | None = None  # the machine's peak bandwidth, if it was measured
    cpus: int = 0  # that the ranks on this host may use together; 0: not recorded
    local_size: int = 0  # ranks on this host; 0: not recorded
    node: str = ""  # the host's own name for itself: `host` is what the launcher calls it

    @property
    def faces(self) -> frozenset[str]:
        """The faces of hvdtune that the program has imported, by their packages: "torch", "keras",
        "numpy" … Empty if unknown: earlier versions named only PyTorch and MXNet."""
        return frozenset(one.partition(" ")[0] for one in self.framework.split(", ") if one)


@dataclass(frozen=True)
class ClockReading:
    """Rank 0's clock minus this rank's, at `local_ns`; the error is at most ± `bound_ns`."""

    local_ns: int
    offset_ns: int
    bound_ns: int


@dataclass(frozen=True)
class MemberList:
    """The ranks of a process set, from the batch of serial `batch` on."""

    process_set: int
    batch: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Name:
    """The tensor that an id in TENSOR refers to."""

    name: str
    process_set: int
    kind: str
    dtype: str
    bytes: int


def _nothing() -> dict[str, np.ndarray]:
    return {stream: np.zeros(0, dtype) for stream, dtype in STREAMS.items()}


@dataclass
class RankRecording:
    """One rank's recording. `streams`: stream → array of its dtype (STREAMS), ordered by time.

    As a part of a Recording, it has all times on rank 0's clock. `dropped`: stream → records that
    were lost because the writer could not keep up, or are missing in the file. `complete`: the
    recording has its end. `cut_off`: why and when it stopped early, or "".
    """

    identity: Identity
    names: list[Name] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    streams: dict[str, np.ndarray] = field(default_factory=_nothing)
    clock: list[ClockReading] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    complete: bool = False
    cut_off: str = ""
    sets: list[MemberList] = field(default_factory=list)

    @property
    def rank(self) -> int:
        """Global rank."""
        return self.identity.rank

    def operations(self) -> list[str]:
        """For each of `names`, the name that its operation was submitted with: that of a group is
        without the tensor's place in it. Some of TensorFlow's groups have other names than
        `grouped_…`: they show by the first and the last place."""
        known = {(one.name, one.process_set) for one in self.names}
        result = []
        for one in self.names:
            place = _PLACE.search(one.name)
            base = one.name[: place.start()] if place else one.name
            if place and not one.name.startswith("grouped_"):
                ends = (f"{base}_1of{place[1]}", f"{base}_{place[1]}of{place[1]}")
                if not all((end, one.process_set) in known for end in ends):
                    base = one.name
            result.append(base)
        return result

    def members(self, process_set: int, serial: int) -> int:
        """The number of ranks of the process set at the batch with that serial; 0: not recorded."""
        if process_set == 0:
            return self.identity.size
        known = [one for one in self.sets if one.process_set == process_set]
        before = [one for one in known if one.batch <= serial] or known[:1]
        return len(max(before, key=lambda one: one.batch).ranks) if before else 0

    @property
    def tensors(self) -> np.ndarray:
        """Array of TENSOR."""
        return self.streams["tensors"]

    @property
    def batches(self) -> np.ndarray:
        """Array of BATCH."""
        return self.streams["batches"]

    @property
    def waits(self) -> np.ndarray:
        """Array of WAIT."""
        return self.streams["waits"]

    @property
    def marks(self) -> np.ndarray:
        """Array of MARK."""
        return self.streams["marks"]

    @property
    def ready(self) -> np.ndarray:
        """Array of READY."""
        return self.streams["ready"]

    @property
    def counters(self) -> np.ndarray:
        """Array of COUNTER."""
        return self.streams["counters"]


@dataclass
class Recording:
    """All ranks' recordings of one job, on rank 0's clock.

    `clock_bound_ns`: the largest error between any two ranks' times. `problems`: one sentence for
    each fault, with the rank.
    """

    source: str
    ranks: dict[int, RankRecording] = field(default_factory=dict)
    clock_bound_ns: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Ranks of the job, recorded or not."""
        return max((one.identity.size for one in self.ranks.values()), default=0)
