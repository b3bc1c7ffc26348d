"""Where a step begins and ends, on every rank. The definition is in docs/metrics.md."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hvdtune.timeline.record.layout import Mark, Name, RankRecording
from hvdtune.timeline.structure.joint import Joint, View

if TYPE_CHECKING:
    import pandas as pd

#: Names that the engine makes up (`grouped_allreduce.noname_1of3`). Each has a number and never
#: repeats, but recordings leave the number out.
_MADE_UP = re.compile(r"\w+\.noname(\.\d+)?(_\d+of\d+)?")
#: A size shows steps only if it occurs at least this many times, and if the sequence from one to
#: the next is the same in this share of its places.
LEAST_OFTEN = 3
REPEATS = 0.9
#: Of several such sizes the most frequent one counts, unless the typical time of computing before
#: its steps is shorter by this factor than another's.
SHORTER = 3
#: A step hardly has more equal layers than this. So a size that is rarer than that, compared with
#: one before whose steps the program computes for so long, ns, is sent in every Nth step.
LAYERS = 64
COMPUTES = 1_000_000
#: Tensors of so many bytes or less are metrics.
METRIC = 8


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


def is_made_up(name: Name) -> bool:
    """Whether the engine made this name up. All barriers have the same name, which repeats."""
    return name.kind != "barrier" and _MADE_UP.fullmatch(name.name) is not None


def find_steps(joint: Joint) -> Steps:
    """The steps of a recording: from marks if every rank has them, else from names that repeat,
    else (if the engine made up the names) from sizes that repeat."""
    by_marks = _from_marks(joint)
    if by_marks is not None:
        return by_marks
    view = joint.reference
    rows, batch = _step_rows(view, joint)
    starts, found_from = _starts(view, rows, batch)
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


def _step_rows(view: View, joint: Joint) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the tensors that mark steps, and the batch of each: allreduces of all ranks, if there
    are any."""
    batches = np.flatnonzero(view.rows > 0)
    chosen = batches[(joint.kind[batches] == 0) & (joint.process_set[batches] == 0)]
    return view.rows_of(chosen if len(chosen) else batches)


def _starts(view: View, rows: np.ndarray, batch: np.ndarray) -> tuple[np.ndarray, str]:
    """Where steps begin among these rows, and what shows it.

    If the engine made up most of the names, the program may have named only what it sends in every
    Nth step. Sizes then count if they show more steps than the program's names.
    """
    one = view.recording
    if not len(rows):
        return np.zeros(0, np.int64), "none"
    names = one.tensors["name"][rows].astype(np.int64)
    automatic = np.array([is_made_up(name) for name in one.names] or [False])
    known = names < len(automatic)
    made_up = np.zeros(len(names), bool)
    made_up[known] = automatic[names[known]]
    if not made_up.any():
        return _again(names), "names"
    _, at, counts = np.unique(names, return_inverse=True, return_counts=True)
    own = ~made_up & (counts[at] > 1)  # the program's names that repeat
    by_names = _again(np.where(made_up, -1, names)) if own.any() else np.zeros(0, np.int64)
    if own.any() and made_up.mean() <= 0.5:
        return by_names, "names"
    by_sizes = _period(_identities(one, names, own), _idle(view, rows, batch))
    if own.any() and len(by_names) >= len(by_sizes):
        return by_names, "names"
    return by_sizes, "sizes"


def _identities(one: RankRecording, names: np.ndarray, own: np.ndarray) -> np.ndarray:
    """What distinguishes tensors with these names (ids): operation, dtype and size, or the name of
    those that are `own`."""
    looks: dict[tuple[str, str, int], int] = {}
    table = np.array(
        [looks.setdefault((n.kind, n.dtype, n.bytes), len(looks)) for n in one.names] or [0]
    )
    look = table[np.minimum(names, len(table) - 1)]
    result: np.ndarray = np.where(own, len(looks) + names, look)
    return result


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


def _idle(view: View, rows: np.ndarray, batch: np.ndarray) -> np.ndarray:
    """How long nothing was under way before each of these rows was submitted, ns. 0 for metrics,
    before which the program may have evaluated its model."""
    tensors, names = view.recording.tensors[rows], view.recording.names
    ended = np.concatenate([[0], np.maximum.accumulate(view.end[batch])[:-1]])
    idle = np.maximum(tensors["submitted"].astype(np.int64) - ended, 0)
    idle[:1] = 0
    sizes = np.array([name.bytes for name in names], np.int64)
    size = sizes[np.minimum(tensors["name"], len(names) - 1)]
    result: np.ndarray = np.where(size > METRIC, idle, 0)
    return result


def _period(identity: np.ndarray, idle: np.ndarray) -> np.ndarray:
    """Where steps begin, for made-up names: with every occurrence of an identity, if the sequence
    repeats from each to the next (see REPEATS). Else nowhere.

    What is sent once in every step repeats in this way. So does what is sent in every hundredth
    step, or in each of many equal layers. But the program computes before a step begins, with
    nothing under way: see SHORTER and LAYERS.
    """
    looks, counts = np.unique(identity, return_counts=True)
    often = np.argsort(-counts, kind="stable")
    found = list(_divisions(identity, looks[often[counts[often] >= LEAST_OFTEN]], idle))
    most = max((len(begins) for begins, typical in found if typical >= COMPUTES), default=0)
    rivals = [typical for begins, typical in found if LAYERS * len(begins) >= most]
    longest = max(rivals, default=0.0)
    for begins, typical in found:
        if SHORTER * typical >= longest:
            return begins
    return np.zeros(0, np.int64)


def _divisions(
    identity: np.ndarray, looks: np.ndarray, idle: np.ndarray
) -> Iterator[tuple[np.ndarray, float]]:
    """The ways to begin steps with one of these identities: where they begin, and the longest
    `idle` in a typical one. Of those with the same period only the first."""
    tried: set[int] = set()
    for look in looks:
        occurs = np.flatnonzero(identity == look)
        period = int(np.median(np.diff(occurs)))
        if period in tried or _repeating(identity, occurs) < REPEATS:
            continue
        tried.add(period)
        front = _in_front(identity, occurs, period)
        start = int(occurs[0]) - front
        begins = np.concatenate([np.arange(start % period, start, period), occurs - front])
        begins[0] = 0  # what is sent before the first step belongs to it, as with names
        yield begins, float(np.median(np.maximum.reduceat(idle, begins)))


def _in_front(identity: np.ndarray, occurs: np.ndarray, period: int) -> int:
    """How many tensors of its step stand before the first occurrence of an identity.

    A recording begins with a step, of which this identity may be a later tensor. It may also be
    missing from the first steps. But what does not recur was sent before the first step.
    """
    first = int(occurs[0])
    if first >= period:
        return first % period
    later = Counter(identity[occurs[1] : occurs[2]].tolist())
    count = 0
    for one in identity[:first][::-1].tolist():
        if not later[one]:
            break
        later[one] -= 1
        count += 1
    return count


def _repeating(identity: np.ndarray, begins: np.ndarray) -> float:
    """The share of places, from the second beginning on, that have the same identity as the same
    place after the beginning before."""
    lengths = np.diff(np.append(begins, len(identity)))
    places = np.arange(begins[1], len(identity))
    before = places - np.repeat(lengths[:-1], lengths[1:])
    there = before < np.repeat(begins[1:], lengths[1:])
    return float(np.mean(there & (identity[before] == identity[places])))


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
