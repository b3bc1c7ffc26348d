"""Where a step begins and ends, on every rank. The definition is in docs/metrics.md."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hvdtune.timeline.analysis.joint import Joint, View
from hvdtune.timeline.record.layout import Mark, RankRecording

if TYPE_CHECKING:
    import pandas as pd

#: Names that the engine makes up: they never repeat.
AUTOMATIC = re.compile(r"\.noname\.\d+$")


@dataclass
class Steps:
    """Complete steps of all recorded ranks. Times int64 ns, [S] for each rank.

    `batch_step`: [B] index of the step a batch belongs to, or -1.
    """

    number: np.ndarray  # [S] the marks' numbers, else from 1
    begin: dict[int, np.ndarray]
    end: dict[int, np.ndarray]
    batch_step: np.ndarray
    found_from: str  # "marks", "names", "sizes", "none"
    ignored: int  # steps that are incomplete on some rank

    def __len__(self) -> int:
        return len(self.number)

    def frame(self, origin: int) -> pd.DataFrame:
        """One row per rank and step: rank, step, begin_s, end_s, duration_s."""
        import pandas as pd

        ranks = sorted(self.begin)
        begin = np.concatenate([self.begin[rank] for rank in ranks])
        end = np.concatenate([self.end[rank] for rank in ranks])
        return pd.DataFrame(
            {
                "rank": np.repeat(np.array(ranks, np.int64), len(self)),
                "step": np.tile(self.number, len(ranks)),
                "begin_s": (begin - origin) / 1e9,
                "end_s": (end - origin) / 1e9,
                "duration_s": (end - begin) / 1e9,
            }
        )


def find_steps(joint: Joint) -> Steps:
    """The steps of a recording: from marks if every rank has them, else from names that repeat,
    else (if the engine made up the names) from sizes that repeat."""
    by_marks = _from_marks(joint)
    if by_marks is not None:
        return by_marks
    view = joint.reference
    rows = _step_rows(view, joint)
    identity, found_from = _identities(view.recording, rows)
    if identity is None:
        starts = np.zeros(0, np.int64)
    elif found_from == "names":
        starts = _again(identity)
    else:
        starts = _period(identity)
    return _from_rows(joint, view, rows[starts] if len(starts) else starts, found_from)


# ---- marks ---------------------------------------------------------------------------------------


def _from_marks(joint: Joint) -> Steps | None:
    marks = {rank: _marks(view.recording) for rank, view in joint.views.items()}
    if any(len(numbers) < 2 for numbers, _ in marks.values()):
        return None
    common = None
    seen: set[int] = set()
    for numbers, _ in marks.values():
        seen |= set(numbers.tolist())
        common = numbers if common is None else np.intersect1d(common, numbers)
    assert common is not None
    whole = common[np.isin(common - 1, common)]  # it begins where the one before ends
    begin, end = {}, {}
    for rank, (numbers, times) in marks.items():
        end[rank] = times[np.searchsorted(numbers, whole)]
        begin[rank] = times[np.searchsorted(numbers, whole - 1)]
    ignored = len(seen) - len(whole) - 1
    steps = Steps(whole, begin, end, np.zeros(0, np.int64), "marks", max(0, ignored))
    steps.batch_step = _step_of_batches(joint, steps)
    return steps


def _marks(one: RankRecording) -> tuple[np.ndarray, np.ndarray]:
    """Numbers and times of a rank's STEP marks; if a number repeats, the last mark counts."""
    marks = one.marks[one.marks["kind"] == int(Mark.STEP)]
    numbers, times = marks["value"].astype(np.int64), marks["time"].astype(np.int64)
    unique, at = np.unique(numbers[::-1], return_index=True)
    return unique, times[::-1][at]


def _step_of_batches(joint: Joint, steps: Steps) -> np.ndarray:
    """A batch belongs to the step in which the last of its tensors was submitted."""
    result = np.full(len(joint), -1, np.int64)
    if not len(steps):
        return result
    for rank, view in joint.views.items():
        # If the submission is unknown, use the end: after it the step continues with the optimizer.
        time = np.where(view.last_own > 0, view.last_own, view.begin)
        at = np.searchsorted(steps.end[rank], time, side="left")
        inside = view.present & (at < len(steps))
        inside &= steps.begin[rank][np.minimum(at, len(steps) - 1)] < time
        result = np.where((result < 0) & inside, at, result)
    return result


# ---- names and sizes -----------------------------------------------------------------------------


def _step_rows(view: View, joint: Joint) -> np.ndarray:
    """Rows of the tensors that mark steps: allreduces of all ranks, if there are any."""
    batches = np.flatnonzero(view.rows > 0)
    if not len(batches):
        return np.zeros(0, np.int64)
    chosen = batches[(joint.kind[batches] == 0) & (joint.process_set[batches] == 0)]
    batches = chosen if len(chosen) else batches
    counts = view.rows[batches]
    first = np.repeat(
        view.first_row[batches] - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts
    )
    return first + np.arange(int(counts.sum()))


def _identities(one: RankRecording, rows: np.ndarray) -> tuple[np.ndarray | None, str]:
    """What distinguishes the tensors of a step, [rows]: the name, or operation, dtype and size."""
    if not len(rows):
        return None, "none"
    names = one.tensors["name"][rows].astype(np.int64)
    automatic = np.array([bool(AUTOMATIC.search(name.name)) for name in one.names] or [False])
    known = names < len(automatic)
    made_up = np.zeros(len(names), bool)
    made_up[known] = automatic[names[known]]
    if not made_up.any():
        return names, "names"
    if not made_up.all():  # the user's names show the steps
        names = names.copy()
        names[made_up] = -1
        return names, "names"
    looks: dict[tuple[str, str, int], int] = {}
    table = np.array(
        [looks.setdefault((n.kind, n.dtype, n.bytes), len(looks)) for n in one.names] or [0]
    )
    return table[np.minimum(names, len(table) - 1)], "sizes"


def _again(identity: np.ndarray) -> np.ndarray:
    """Where steps begin: at 0, and wherever an identity repeats one since the last beginning.

    Identity -1 is ignored. The last beginning opens a step that may be incomplete.
    """
    count = len(identity)
    order = np.argsort(identity, kind="stable")
    following = np.full(count, count, np.int64)  # where the same occurs next
    same = (identity[order][1:] == identity[order][:-1]) & (identity[order][1:] >= 0)
    following[order[:-1][same]] = order[1:][same]
    soonest = np.minimum.accumulate(following[::-1])[::-1]  # of all from here on
    starts = []
    at = 0
    while at < count:
        starts.append(at)
        at = int(soonest[at])
    return np.array(starts, np.int64)


def _period(identity: np.ndarray) -> np.ndarray:
    """Where steps begin, for made-up names: with the period of the rarest identity, if the sequence
    repeats with that period in at least 9 of 10 places. Else nowhere."""
    looks, counts = np.unique(identity, return_counts=True)
    rarest = np.flatnonzero(identity == looks[counts.argmin()])
    if len(rarest) < 3:
        return np.zeros(0, np.int64)
    period = int(np.median(np.diff(rarest)))
    if np.mean(identity[period:] == identity[:-period]) < 0.9:
        return np.zeros(0, np.int64)
    return np.arange(0, len(identity), period)


def _from_rows(joint: Joint, view: View, starts: np.ndarray, found_from: str) -> Steps:
    """Steps that begin at these rows of `view`'s tensors; on each rank a step begins when it first
    submits one of the step's tensors. The last beginning only ends the step before."""
    empty = np.zeros(0, np.int64)
    if len(starts) < 2:
        ranks = joint.views
        none = dict.fromkeys(ranks, empty)
        return Steps(empty, none, dict(none), np.full(len(joint), -1), "none", 0)
    row = np.where(view.rows > 0, view.first_row, np.iinfo(np.int64).max)
    batches = np.flatnonzero(view.rows > 0)
    step = np.full(len(joint), -1, np.int64)
    step[batches] = np.searchsorted(starts, row[batches], side="right") - 1
    # Batches without this rank belong to the step of the batch before them.
    filled = np.maximum.accumulate(np.where(np.arange(len(step)) == 0, np.maximum(step, 0), step))
    begins = {
        rank: _first_submissions(one, filled, len(starts)) for rank, one in joint.views.items()
    }
    whole = np.ones(len(starts), bool)
    for times in begins.values():
        whole &= times > 0
    keep = np.flatnonzero(whole[:-1] & whole[1:])
    index = np.full(len(starts), -1, np.int64)
    index[keep] = np.arange(len(keep))
    return Steps(
        keep + 1,
        {rank: times[keep] for rank, times in begins.items()},
        {rank: np.maximum(times[keep + 1], times[keep]) for rank, times in begins.items()},
        index[filled],
        found_from,
        len(starts) - 1 - len(keep),
    )


def _first_submissions(view: View, step: np.ndarray, count: int) -> np.ndarray:
    """This rank's first submission in each step, 0 if it has none; never decreasing."""
    known = np.flatnonzero(view.first_own > 0)
    result = np.zeros(count, np.int64)
    if not len(known):
        return result
    order = known[np.argsort(step[known], kind="stable")]
    edges = np.concatenate([[0], np.flatnonzero(np.diff(step[order])) + 1])
    result[step[order][edges]] = np.minimum.reduceat(view.first_own[order], edges)
    risen = np.maximum.accumulate(result)
    return np.where(result > 0, risen, 0)
