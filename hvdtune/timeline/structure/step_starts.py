"""One-time starts: long steps at the start or with new work, which are not counted.

A step is long if it takes LONG times the median step and LEAST_S more. A long step is a start if it
is one of the first MOST_FIRST of a job and all before it are long (imports, compilation, the first
batch of data), or if it contains a tensor for the first time (a new shape or model part, the first
validation, a new process set) and its family does not have new ones all the time. The first step of
a recording with marks is never counted, because nothing marks its beginning; if it is long, it is a
start as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hvdtune.timeline import schema, words
from hvdtune.timeline.structure.intervals import union_length
from hvdtune.timeline.structure.joint import Joint
from hvdtune.timeline.structure.owners import Key, keys_of
from hvdtune.timeline.structure.steps import Steps, is_made_up

LONG = 5
LEAST_S = 0.1
MOST_FIRST = 3
#: With fewer steps, it is unclear what is usual. At most this share of the steps can be starts.
FEWEST = 5
MOST_SHARE = 0.25
#: A family of operations that has new tensors in more steps than this always has new ones
#: (`loss.17`, or an allgather whose size changes): they do not show that something starts.
MOST_NEW = 3


@dataclass(frozen=True)
class Once:
    """A one-time start. Times in ns; `rank` was last in it, `late_ns` after the first rank; -1 if
    unknown."""

    step: int
    begin: int
    end: int
    rank: int
    late_ns: int
    first: bool  # one of the job's first steps; else tensors were new in it
    since_recording: bool = False  # `begin` is the recording's: nothing marks the step's own

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.end - self.begin) / 1e9


def split(joint: Joint, steps: Steps, origin: int) -> tuple[Steps, tuple[Once, ...]]:
    """The steps that count, and the one-time starts. `origin`: when the recording began."""
    if len(steps) < FEWEST:
        return steps, ()
    begins = np.min([steps.begin[rank] for rank in steps.begin], axis=0)
    ends = np.max([steps.end[rank] for rank in steps.end], axis=0)
    median = float(np.median(ends - begins))
    limit = max(LONG * median, median + LEAST_S * 1e9)
    long = ends - begins >= limit
    unmarked = steps.found_from == "marks" and int(steps.number[0]) == 2
    first = np.zeros(len(steps), bool)
    if unmarked or int(steps.number[0]) == 1:
        first = np.logical_and.accumulate(long)
        first[MOST_FIRST:] = False
    once = first | (long & _with_new_tensors(joint, steps))
    if once.mean() > MOST_SHARE:
        once[:] = False
    found = []
    if unmarked and begins[0] - origin >= limit:
        end = max(int(steps.begin[rank][0]) for rank in steps.begin)
        found.append(Once(1, origin, end, *_last(joint, joint.last <= end), True, True))
    for at in np.flatnonzero(once):
        who = _last(joint, steps.batch_step == at)
        found.append(
            Once(int(steps.number[at]), int(begins[at]), int(ends[at]), *who, bool(first[at]))
        )
    return _kept(steps, ~once), tuple(found)


def _with_new_tensors(joint: Joint, steps: Steps) -> np.ndarray:
    """[S] bool: the step, other than the first, contains a named tensor for the first time. A
    family that has new tensors in more than MOST_NEW steps is new only in the first of them."""
    result = np.zeros(len(steps), bool)
    view = joint.reference
    rows, batch = view.rows_of(np.flatnonzero(view.rows > 0))
    ids, at = np.unique(view.recording.tensors["name"][rows], return_index=True)
    names, keys = view.recording.names, keys_of(view.recording)
    new: dict[Key, list[tuple[int, int]]] = {}  # family → (row, step) of what is new in it
    for name, row, step in zip(
        ids.tolist(), at.tolist(), steps.batch_step[batch[at]].tolist(), strict=True
    ):
        if name < len(names) and not is_made_up(names[name]):
            new.setdefault(keys[name], []).append((row, step))
    for found in new.values():
        order = list(dict.fromkeys(step for _, step in sorted(found)))
        for step in order if len(order) <= MOST_NEW else order[:1]:
            if step > 0:
                result[step] = True
    return result


def _last(joint: Joint, batches: np.ndarray) -> tuple[int, int]:
    """The rank that was last by the most, and by how much."""
    chosen = np.flatnonzero(batches & (joint.last_rank >= 0))
    if not len(chosen):
        return -1, 0
    late = (joint.last - joint.first)[chosen]
    return int(joint.last_rank[chosen][late.argmax()]), int(late.max())


def _kept(steps: Steps, keep: np.ndarray) -> Steps:
    if keep.all():
        return steps
    index = np.where(keep, np.cumsum(keep) - 1, -1)
    of = steps.batch_step
    return replace(
        steps,
        number=steps.number[keep],
        begin={rank: times[keep] for rank, times in steps.begin.items()},
        end={rank: times[keep] for rank, times in steps.end.items()},
        batch_step=np.where(of >= 0, index[np.maximum(of, 0)], -1),
    )


def seconds_within(starts: Sequence[Once], begin: int, end: int) -> float:
    """Time from `begin` to `end` that belongs to a start. If steps are found by names, one rank's
    start is in its step before and in the others' step after; the time counts once."""
    clipped = ((max(one.begin, begin), min(one.end, end)) for one in starts)
    return union_length((a, b) for a, b in clipped if a < b) / 1e9


def numbers(starts: Sequence[Once], origin: int) -> schema.Start | None:
    """The starts for a document; None if there were none."""
    if not starts:
        return None
    return {
        "seconds": seconds_within(starts, starts[0].begin, max(one.end for one in starts)),
        "sentence": sentence(starts),
        "steps": [
            {
                "step": one.step,
                "begin_s": (one.begin - origin) / 1e9,
                "seconds": one.seconds,
                "last_rank": one.rank,
                "late_s": one.late_ns / 1e9,
                "reason": "first steps" if one.first else "new tensors",
            }
            for one in starts
        ],
    }


def sentence(starts: Sequence[Once]) -> str:
    """The starts, the ranks that were last in them, and that they are not counted."""
    told = sorted(starts, key=lambda one: -one.seconds)[:3]
    parts = [_told(one) for one in sorted(told, key=lambda one: one.begin)]
    more = len(starts) - len(told)
    if more:
        parts.append(f"{words.number(more, 'shorter one')} like these")
    return f"One-time start: {'; '.join(parts)}. Not counted, and no rank is blamed for it."


def _told(one: Once) -> str:
    what = "the first step" if one.step == 1 else f"step {one.step}"
    if not one.first:
        what += ", which has new tensors,"
    text = f"{what} took {words.seconds(one.seconds)}"
    if one.since_recording:
        text = f"{what} ended {words.seconds(one.seconds)} after the recording had begun"
    if one.rank >= 0 and one.late_ns >= one.seconds * 1e9 / 10:
        text += f" (rank {one.rank} was last, by {words.seconds(one.late_ns / 1e9)})"
    return text
