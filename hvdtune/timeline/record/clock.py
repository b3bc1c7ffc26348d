"""Converts a rank's times to rank 0's clock.

Every rank records readings of rank 0's clock: at its own time `t` the difference was `o ± b`. If
both clocks run at a steady rate, the difference is a line; if a clock is adjusted, the line bends
slowly. So only the best reading (smallest b) of each stretch of time is used, and the difference is
interpolated between these knots. Before the first and after the last knot, it continues on the line
through both.

The bound of the error is the largest b of a knot, plus the most by which an unused reading
contradicts the interpolation. Beyond the knots, it grows with the distance and the possible error
of the slope. A skew between ranks that is smaller than the bound means nothing, so a rank with a
bound above LARGEST_BOUND_NS is not aligned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hvdtune.timeline.record.events import TimelineError
from hvdtune.timeline.record.layout import ClockReading, Identity

#: A rank whose clock is less certain than this is left out.
LARGEST_BOUND_NS = 50_000_000
#: The fastest that two clocks can drift apart: crystals are good to 100 ppm, adjustment adds 500.
LARGEST_DRIFT = 1e-3
#: Without readings, two clocks are assumed to drift apart by no more than this.
USUAL_DRIFT = 200e-6
#: Two processes of one host share CLOCK_MONOTONIC if their wall clocks confirm it within this.
SAME_CLOCK_NS = 100_000_000
#: Time between knots, and the most knots.
KNOT_EVERY_NS = 1_000_000_000
MOST_KNOTS = 4096

#: The columns of each stream that are times.
TIMES: Mapping[str, tuple[str, ...]] = {
    "tensors": ("submitted",),
    "batches": ("scheduled", "first_ready", "begin", "packed", "unpacking", "end"),
    "waits": ("begin", "end"),
    "marks": ("time",),
    "ready": ("time",),
    "counters": ("time",),
}


class UnalignedError(TimelineError):
    """A rank's times cannot be compared with the other ranks'."""


@dataclass(frozen=True)
class Clock:
    """Rank 0's clock = a rank's clock + offset; `local`, `offset`: knots, ns, ascending.

    `bound_ns` applies between the knots; every second beyond them adds `unsure` seconds to it.
    """

    local: np.ndarray
    offset: np.ndarray
    bound_ns: int
    unsure: float = 0.0

    def bound_over(self, begin: int, end: int) -> int:
        """The bound for times from `begin` to `end` of this rank's clock, ns."""
        beyond = max(0, int(self.local[0]) - begin, end - int(self.local[-1]))
        return self.bound_ns + round(self.unsure * beyond)

    def to_rank0(self, times: np.ndarray) -> np.ndarray:
        """This rank's times on rank 0's clock, int64 ns; 0, which means unknown, stays 0."""
        moved = times + self.offset_at(times)
        return np.where(times == 0, times, moved)

    def offset_at(self, times: np.ndarray) -> np.ndarray:
        """The interpolated difference at `times`, int64 ns."""
        # Relative to the first knot: a float is not precise enough for nanoseconds since boot.
        since = (times - self.local[0]).astype(np.float64)
        knots = (self.local - self.local[0]).astype(np.float64)
        rises = (self.offset - self.offset[0]).astype(np.float64)
        rise = np.interp(since, knots, rises)
        if len(knots) > 1:
            slope = rises[-1] / knots[-1]
            rise += slope * (np.minimum(since, 0) + np.maximum(since - knots[-1], 0))
        return self.offset[0] + np.rint(rise).astype(np.int64)


SAME = Clock(np.zeros(1, np.int64), np.zeros(1, np.int64), 0)


def clock_of(identity: Identity, readings: Sequence[ClockReading], rank0: Identity | None) -> Clock:
    """The clock of the rank that recorded `readings`.

    All processes of a host have one clock: if no reading contradicts that, the offset is 0, which
    is better than the readings' noise. Without readings the offset is 0 if the wall clocks confirm
    it. Raises UnalignedError, a sentence that names rank and host, if they do not, or if the
    readings are not accurate enough.
    """
    if identity.rank == 0:
        return SAME
    who = f"rank {identity.rank} (host {identity.host})"
    usable = [one for one in readings if 0 <= one.bound_ns <= LARGEST_BOUND_NS]
    if usable and _may_be_same(identity, usable, rank0):
        return Clock(SAME.local, SAME.offset, min(one.bound_ns for one in usable))
    if usable:
        return _through(usable, who)
    if readings:
        best = min(one.bound_ns for one in readings)
        raise UnalignedError(
            f"{who} cannot be aligned: its clock is known only to ± {best / 1e6:.0f} ms, and "
            f"± {LARGEST_BOUND_NS / 1e6:.0f} ms is the most that is accepted"
        )
    if rank0 is None or identity.host != rank0.host:
        raise UnalignedError(
            f"{who} cannot be aligned: it has no reading of rank 0's clock, and "
            + (f"rank 0 is on host {rank0.host}" if rank0 else "rank 0's recording is missing")
        )
    apart = abs(_boot_time_ns(identity) - _boot_time_ns(rank0))
    if apart > SAME_CLOCK_NS:
        raise UnalignedError(
            f"{who} cannot be aligned: it has no reading of rank 0's clock, and although it is on "
            f"the same host, the two clocks are {apart / 1e9:.3g} s apart"
        )
    return SAME


def _may_be_same(
    identity: Identity, readings: Sequence[ClockReading], rank0: Identity | None
) -> bool:
    if rank0 is None or identity.host != rank0.host:
        return False
    near = abs(_boot_time_ns(identity) - _boot_time_ns(rank0)) <= SAME_CLOCK_NS
    return near and all(abs(one.offset_ns) <= one.bound_ns for one in readings)


def _boot_time_ns(identity: Identity) -> int:
    return identity.started_wall_us * 1000 - identity.started_ns


def _through(readings: Sequence[ClockReading], who: str) -> Clock:
    table = np.array([(r.local_ns, r.offset_ns, r.bound_ns) for r in readings], np.int64)
    table = table[np.argsort(table[:, 0], kind="stable")]
    local, offset, bound = table.T
    knots = _best_of_each_stretch(local, bound)
    _check_drift(table[knots], who)
    clock = Clock(local[knots], offset[knots], 0)
    # A reading contradicts the line by the part of the difference beyond its own bound.
    beyond = np.abs(clock.offset_at(local) - offset) - bound
    worst = int(bound[knots].max()) + max(0, int(beyond.max()))
    if worst > LARGEST_BOUND_NS:
        raise UnalignedError(
            f"{who} cannot be aligned: the readings of rank 0's clock contradict each other by "
            f"{worst / 1e6:.0f} ms"
        )
    span = int(clock.local[-1] - clock.local[0])
    ends = int(bound[knots[0]] + bound[knots[-1]])
    unsure = min(USUAL_DRIFT, ends / span) if span else USUAL_DRIFT
    return Clock(clock.local, clock.offset, worst, unsure)


def _best_of_each_stretch(local: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Indices of the knots: the reading with the smallest bound of each stretch."""
    width = max(KNOT_EVERY_NS, int(local[-1] - local[0]) // MOST_KNOTS + 1)
    stretch = (local - local[0]) // width
    order = np.lexsort((local, bound, stretch))
    first = np.unique(stretch[order], return_index=True)[1]
    knots = order[first]
    # Two knots at the same moment have no line between them.
    return knots[np.append(True, np.diff(local[knots]) > 0)]


def _check_drift(knots: np.ndarray, who: str) -> None:
    """Refuse a clock that jumped: it is unknown when it did so between two knots."""
    local, offset, bound = knots.T
    jump = np.abs(np.diff(offset)) - bound[1:] - bound[:-1] - LARGEST_DRIFT * np.diff(local)
    if jump.size and jump.max() > LARGEST_BOUND_NS:
        at = int(jump.argmax())
        raise UnalignedError(
            f"{who} cannot be aligned: its clock jumped by {jump[at] / 1e9:.3g} s against rank 0's "
            f"while recording"
        )


def common_bound(bounds: Sequence[int]) -> int:
    """The largest error between two ranks' times: the sum of the two largest bounds."""
    return sum(sorted(bounds)[-2:])
