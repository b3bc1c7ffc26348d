"""Recorded steps as programs that can be replayed with something changed.

A rank's *own time* stops while its framework waits for the engine: o(t) = t − begin of the step −
blocked time until t. A rank's work is then a list: compute until o, submit a tensor, compute, wait
for these tensors … Nothing in it depends on how fast communication was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from hvdtune.timeline.analysis.cpus import Load
from hvdtune.timeline.analysis.sizes import bus_factor
from hvdtune.timeline.record.layout import NONE, REASONS, Flag
from hvdtune.timeline.structure.joint import Joint, View
from hvdtune.timeline.structure.steps import Steps

_FULL = REASONS.index("full")
_CYCLE = REASONS.index("cycle")
_BLOCKED = REASONS.index("blocked")
#: Assumed costs of a batch, each tensor and each byte if nothing is known: ns.
PRIOR = (30e3, 1e3, 0.3)
PRIOR_WEIGHT = 0.1
#: … but a tensor, and its bytes, cost at most this share of the batch with the least time per
#: tensor: otherwise a batch of a single small tensor would seem to cost nothing itself.
PRIOR_SHARE = 0.3


@dataclass(frozen=True)
class Program:
    """One rank in one step. Own times, ns, float64.

    submit: [T], inf for tensors without this rank. waits: (own time, indices of the tensors that it
    waits for), in order. compute: the step's length in own time.
    """

    submit: np.ndarray
    waits: tuple[tuple[float, np.ndarray], ...]
    compute: float

    @cached_property
    def order(self) -> np.ndarray:
        """[T] the tensors in the order of their submissions."""
        return np.argsort(self.submit, kind="stable")

    @cached_property
    def submissions(self) -> np.ndarray:
        """[T] the times of submissions, sorted."""
        sorted_: np.ndarray = self.submit[self.order]
        return sorted_

    @cached_property
    def finite(self) -> list[float]:
        """The finite submission times, sorted."""
        times: list[float] = self.submissions[np.isfinite(self.submissions)].tolist()
        return times

    @cached_property
    def sequence(self) -> list[int]:
        """The tensors that are submitted, in the order of their submissions."""
        tensors: list[int] = self.order[: len(self.finite)].tolist()
        return tensors

    @cached_property
    def needed(self) -> list[list[int]]:
        """What the program waits for in each of its waits."""
        return [needs.tolist() for _, needs in self.waits]


#: The names in a recorded batch, sorted, its bytes, and its duration, ns.
Batch = tuple[tuple[int, ...], int, float]


@dataclass(frozen=True)
class Play:
    """One step of all ranks. T tensors, in the order in which they were executed.

    name: [T] id of the reference rank. alike: [T] tensors with the same number may share a batch.
    recorded: the recorded batches, (indices, duration ns). measured: ns, mean over the ranks.
    """

    name: np.ndarray
    bytes: np.ndarray
    alike: np.ndarray
    programs: tuple[Program, ...]
    recorded: tuple[tuple[np.ndarray, float], ...]
    measured: float
    step: int  # its index in Steps
    in_place: bool = False
    reducing: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))  # [T] allreduces
    #: [ranks] ns: CPU time of computing; empty: unknown, or CPUs do not do the computing.
    cpu: np.ndarray = field(default_factory=lambda: np.zeros(0))
    #: [ranks] ns for which each was ready to compute while batches used its CPU; empty: unknown.
    waiting: np.ndarray = field(default_factory=lambda: np.zeros(0))
    #: [ranks] ns for which each was ready to compute while anything used its CPU; empty: unknown.
    kept: np.ndarray = field(default_factory=lambda: np.zeros(0))
    #: See Load.work.
    work: tuple[tuple[float, float], ...] = ()
    #: [ranks] ns for which batches run while a rank computes, and the share of the batches' time,
    #: as recorded (play.with_overlaps); empty if it does not matter.
    overlapped: np.ndarray = field(default_factory=lambda: np.zeros(0))
    hidden: float = 0.0
    #: [ranks] the share of its speed that each loses while batches run and it computes.
    lost: np.ndarray = field(default_factory=lambda: np.zeros(0))
    #: The same for overlap with batches that it waited for in the recording.
    lost_anew: np.ndarray = field(default_factory=lambda: np.zeros(0))
    #: Computed once for the step and all its changed copies, which send the same tensors.
    batches: tuple[Batch, ...] = ()
    lists: tuple[list[int], list[int], list[int]] = ([], [], [])  # `name`, `bytes` and `alike`

    def __post_init__(self) -> None:
        if len(self.batches) != len(self.recorded):
            object.__setattr__(self, "batches", tuple(self._batches()))
        if len(self.lists[0]) != len(self.name):
            lists = self.name.tolist(), self.bytes.tolist(), self.alike.tolist()
            object.__setattr__(self, "lists", lists)

    def _batches(self) -> Iterator[Batch]:
        for members, duration in self.recorded:
            names = tuple(sorted(self.name[members].tolist()))
            yield names, int(self.bytes[members].sum()), duration


def programs(
    joint: Joint, steps: Steps, chosen: Iterable[int], load: Load | None = None
) -> list[Play]:
    """The steps `chosen` (indices) as programs, without those about which too little is known."""
    begin, end = boundaries(joint, steps)
    order = np.argsort(steps.batch_step, kind="stable")
    first = np.searchsorted(steps.batch_step[order], np.arange(len(steps) + 1))
    plays = []
    for step in chosen:
        play = _play(joint, step, order[first[step] : first[step + 1]], begin, end)
        if play is not None and load is not None:
            play = _with_load(play, load, step)
        if play is not None:
            plays.append(play)
    return plays


def _with_load(play: Play, load: Load, step: int) -> Play:
    waiting = load.waiting[:, step]
    kept = load.kept[:, step] if load.kept.size else play.kept
    return replace(
        play,
        cpu=load.computing[:, step] if load.on_cpu else play.cpu,
        waiting=waiting if np.isfinite(waiting).all() else play.waiting,
        kept=kept if np.isfinite(kept).all() else play.kept,
        work=load.work(step),
    )


def boundaries(joint: Joint, steps: Steps) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray]]:
    """Begin and end of steps for replaying, rank → [S].

    Steps found by names begin with a submission, in the middle of the computing for it. Here a step
    begins when the rank's last wait before that submission ended, so the computing is before its
    submissions.
    """
    if steps.found_from == "marks":
        return steps.begin, steps.end
    begin, end = {}, {}
    for rank, view in joint.views.items():
        waits = view.blocked
        moved = {}
        for which, times in (("begin", steps.begin[rank]), ("end", steps.end[rank])):
            at = np.searchsorted(waits.end, times, side="right") - 1
            known = at >= 0
            ends = waits.end[np.maximum(at, 0)] if known.any() else times
            moved[which] = np.where(known, ends, times)
        # The wait before the end must be within this step: otherwise the step stays as it is.
        same = moved["end"] > steps.begin[rank]
        begin[rank] = np.where(same, moved["begin"], steps.begin[rank])
        end[rank] = np.where(same, moved["end"], steps.end[rank])
    return begin, end


def _play(
    joint: Joint,
    step: int,
    batches: np.ndarray,
    begin: dict[int, np.ndarray],
    end: dict[int, np.ndarray],
) -> Play | None:
    view = joint.reference
    batches = np.sort(batches[view.rows[batches] > 0])
    if not len(batches):
        return None
    rows = _rows(view, batches)
    of = np.repeat(batches, view.rows[batches])
    names = view.recording.tensors["name"][rows].astype(np.int64)
    known = np.array([name.bytes for name in view.recording.names] or [0], np.int64)
    sizes = np.where(names < len(known), known[np.minimum(names, len(known) - 1)], 0)
    sizes = np.where(sizes > 0, sizes, joint.bytes[of] // np.maximum(joint.tensors[of], 1))
    own = []
    for rank, one in joint.views.items():
        program = _program(one, batches, view.rows[batches], begin[rank][step], end[rank][step])
        if program is None:
            return None
        own.append(program)
    looks = np.stack([joint.kind[of], joint.dtype[of], joint.process_set[of], joint.flags[of]])
    _, alike = np.unique(looks, axis=1, return_inverse=True)
    took = joint.together_of(batches)
    edges = np.concatenate([[0], np.cumsum(view.rows[batches])])
    recorded = tuple(
        (np.arange(edges[at], edges[at + 1]), float(took[at])) for at in range(len(batches))
    )
    measured = float(np.mean([end[rank][step] - begin[rank][step] for rank in joint.views]))
    in_place = bool((joint.flags[batches] & int(Flag.IN_PLACE)).any())
    return Play(
        names, sizes, alike.ravel(), tuple(own), recorded, measured, step, in_place,
        joint.kind[of] == 0,
    )  # fmt: skip


def _rows(view: View, batches: np.ndarray) -> np.ndarray:
    """The rows of the batches' tensors in the rank's stream."""
    counts = view.rows[batches]
    shift = view.first_row[batches] - np.concatenate([[0], np.cumsum(counts)[:-1]])
    return np.repeat(shift, counts) + np.arange(int(counts.sum()))


def _program(
    view: View, batches: np.ndarray, counts: np.ndarray, begin: int, end: int
) -> Program | None:
    """The rank's program; None if its record of these batches is incomplete."""
    took_part = view.present[batches]
    if (view.rows[batches] != counts)[took_part].any() or end <= begin:
        return None
    tensors = int(counts.sum())
    submitted = np.zeros(tensors, np.int64)
    inside = np.repeat(took_part, counts)
    submitted[inside] = view.recording.tensors["submitted"][_rows(view, batches[took_part])]
    done = np.repeat(view.end[batches], counts)
    blocked = view.blocked

    def own(times: np.ndarray) -> np.ndarray:
        since = blocked.until(times) - blocked.until(np.array(begin))
        return (times - begin - since).astype(float)

    submit = np.where(inside & (submitted > 0), np.maximum(own(submitted), 0), np.inf)
    low, high = np.searchsorted(blocked.begin, [begin, end])
    waits = _waits(view, slice(int(low), int(high)), batches, counts, submitted, inside)
    times = own(blocked.begin[low:high])
    plan = [(float(time), needs) for time, needs in zip(times, waits, strict=True) if len(needs)]
    # Before the next step, the program waits for everything that was done within this one.
    until = plan[-1][0] if plan else float(submit[np.isfinite(submit)].max(initial=0.0))
    rest = np.flatnonzero(inside & (done <= end) & (submit <= until))
    compute = float(own(np.array(end)))
    plan.append((min(until, compute), rest))
    return Program(submit, tuple(plan), compute)


def _waits(
    view: View,
    which: slice,
    batches: np.ndarray,
    counts: np.ndarray,
    submitted: np.ndarray,
    inside: np.ndarray,
) -> list[np.ndarray]:
    """The tensors of each wait: the one it names, else all that were done when it ended."""
    blocked = view.blocked
    done = np.repeat(view.end[batches], counts)
    own_names = np.full(len(submitted), -1, np.int64)
    took_part = batches[view.present[batches]]
    own_names[inside] = view.recording.tensors["name"][_rows(view, took_part)]
    result = []
    for begin, end, name in zip(
        blocked.begin[which], blocked.end[which], blocked.names[which], strict=True
    ):
        if name != NONE:
            needs = np.flatnonzero((own_names == name) & (submitted <= end))
        else:
            needs = np.flatnonzero(inside & (submitted <= begin) & (done <= end))
        result.append(needs)
    return result


@dataclass(frozen=True)
class Costs:
    """The costs of communication, from the recording; ns. A batch of n tensors and S bytes takes
    `batch` + n × `tensor` + S × `byte`, unless exactly this batch was recorded."""

    batch: float
    tensor: float
    byte: float
    closing: float  # from the last submission until the coordinator closes a batch
    beginning: float  # until all ranks have begun it, if the engine is idle
    gap: float  # between batches that directly follow each other
    waking: float  # from a batch's end until the framework continues
    while_busy: bool  # batches are closed while others run

    def duration(self, tensors: int, size: float) -> float:
        """A batch's duration, ns."""
        return self.batch + tensors * self.tensor + size * self.byte


def costs(joint: Joint, steps: Steps) -> Costs:
    """The costs, fitted to the recorded batches: least squares with non-negative coefficients and
    relative errors, over the typical duration of each size. A weak prior (PRIOR) decides what the
    recording does not show, for example if all batches have the same size."""
    from scipy.optimize import nnls

    use = np.flatnonzero((steps.batch_step >= 0) & (joint.kind == 0) & (joint.bytes > 0))
    use = use if len(use) else np.flatnonzero(joint.bytes > 0)
    use = use[:: max(1, len(use) // 20_000)]
    took = joint.together_of(use).astype(float)
    use, took = use[took > 0], took[took > 0]
    shapes, seconds, weights = _by_shape(joint, use, took)
    prior = _prior(joint, shapes, seconds)
    rows = np.concatenate([np.eye(3), np.insert(shapes, 0, 1.0, axis=1)])
    target = np.concatenate([prior, seconds])
    scale = np.concatenate([[PRIOR_WEIGHT] * 3, weights]) / target
    solution, _ = nnls(rows * scale[:, None], target * scale)
    closing, beginning, gap, waking, while_busy = _latencies(joint, use)
    batch, tensor, each = (float(value) for value in solution)
    return Costs(batch, tensor, each, closing, beginning, gap, waking, while_busy)


def _by_shape(
    joint: Joint, use: np.ndarray, took: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs of numbers of tensors and bytes ([U, 2]), the typical duration of their batches, ns,
    and its weight, both [U]."""
    every = np.stack([joint.tensors[use], joint.bytes[use]], axis=1).astype(float)
    shapes, index = np.unique(every, axis=0, return_inverse=True)
    order = np.argsort(index.ravel(), kind="stable")
    parts = np.split(took[order], np.cumsum(np.bincount(index.ravel()))[:-1]) if len(use) else []
    seconds = np.array([typical(part) for part in parts])
    return shapes, seconds, np.sqrt([float(len(part)) for part in parts])


def _prior(joint: Joint, shapes: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """PRIOR, adjusted to the machine: its measured peak, and the fastest batch."""
    batch, tensor, byte = PRIOR
    if len(seconds):
        least = int(np.argmin(seconds / np.maximum(shapes[:, 0], 1)))
        tensor = min(tensor, PRIOR_SHARE * seconds[least] / max(shapes[least, 0], 1))
        byte = min(byte, PRIOR_SHARE * seconds[least] / shapes[least, 1])
    peak = [r.identity.peak_gbps for r in joint.recording.ranks.values() if r.identity.peak_gbps]
    if peak:
        byte = bus_factor("allreduce", joint.recording.size) / max(peak)
    return np.array([batch, tensor, byte])


def _latencies(joint: Joint, use: np.ndarray) -> tuple[float, float, float, float, bool]:
    """closing, beginning, gap, waking, while_busy."""
    begins, ends = joint.over_ranks("begin"), joint.over_ranks("end")
    before = np.concatenate([[0], np.maximum.accumulate(ends)[:-1]]) if len(ends) else ends
    closed = joint.scheduled
    known = np.zeros(len(joint), bool)
    known[use] = True
    known &= closed > 0
    during = known & _inside(joint, closed)
    # Batches that are full or a cycle old are not closed because of their own last submission.
    idle = known & (joint.last > before) & (joint.reason != _CYCLE) & (joint.reason != _FULL)
    closing = _latency((closed - np.maximum(joint.last, _asked_for(joint)))[idle], 20e3)
    free = known & (closed > before)
    beginning = _latency((begins - closed)[free], 20e3)
    queued = known & (closed <= before) & (before > 0)
    gap = _latency((begins - before)[queued], 5e3)
    waking = []
    for view in joint.views.values():
        batch_ends = np.maximum.accumulate(view.end[view.present])
        at = np.searchsorted(batch_ends, view.blocked.end, side="right") - 1
        fits = at >= 0
        if fits.any():
            late = view.blocked.end[fits] - batch_ends[at[fits]]
            waking.append(late[late < (view.blocked.end - view.blocked.begin)[fits]])
    wake = _latency(np.concatenate(waking) if waking else np.zeros(0), 5e3)
    while_busy = bool(during.sum() > 0.05 * max(known.sum(), 1))
    return closing, beginning, gap, wake, while_busy


def _asked_for(joint: Joint) -> np.ndarray:
    """[B] since when a rank was blocked, for batches closed because of that; 0 for others."""
    since = np.full(len(joint), np.iinfo(np.int64).max)
    for view in joint.views.values():
        at = view.blocked.at(joint.scheduled)
        if len(view.blocked.begin):
            since = np.where(at >= 0, np.minimum(since, view.blocked.begin[at]), since)
    known = (since < np.iinfo(np.int64).max) & (joint.reason == _BLOCKED)
    return np.where(known, since, 0)


def _inside(joint: Joint, times: np.ndarray) -> np.ndarray:
    """Whether some other batch ran at each time on rank 0 (or the lowest recorded rank)."""
    view = joint.views[min(joint.views)]
    begins, ends = view.begin[view.present], np.maximum.accumulate(view.end[view.present])
    at = np.searchsorted(begins, times, side="left") - 1
    if not len(begins):
        return np.zeros(len(times), bool)
    return (at >= 0) & (times < ends[at])


def typical(values: np.ndarray) -> float:
    """The mean, with values above the 95th percentile cut to it: slow batches count in proportion
    to their number, but a single one cannot decide."""
    return float(np.minimum(values, np.percentile(values, 95)).mean())


def _latency(values: np.ndarray, otherwise: float) -> float:
    values = values[values >= 0]
    return typical(values) if len(values) >= 5 else otherwise
