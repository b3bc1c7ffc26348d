"""Where each rank's step went: parts that sum to the step. Definitions: docs/metrics.md.

The time axis of a rank is cut at the events of its batches; every piece has one label. The time of
a piece in which the framework's main thread was blocked is exposed time of that label; the rest of
the step is compute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hvdtune.timeline.analysis.answers import EXPOSED_PARTS, PARTS, Overlap
from hvdtune.timeline.analysis.waits import at_most, shown
from hvdtune.timeline.record.layout import NONE, REASONS
from hvdtune.timeline.structure.joint import Joint, View
from hvdtune.timeline.structure.steps import Steps

if TYPE_CHECKING:
    import pandas as pd

# Labels of pieces: positions in EXPOSED_PARTS.
_SKEW, _NEGOTIATION, _CYCLE, _QUEUE, _IN, _REDUCE, _OUT, _PEER, _OTHER = range(9)
assert EXPOSED_PARTS[_PEER] == "peer_wait_s"
_PIECES = 9  # per batch, see _pieces
_RUNNING = (_IN, _REDUCE, _OUT)
#: Batches processed at a time: this bounds the memory for their pieces.
_TOGETHER = 1 << 17
#: Waits that are no further apart than this, ns, are one wait: nothing is computed between them.
_TOGETHER_NS = 200_000
_CYCLE_REASON = REASONS.index("cycle")


@dataclass
class Waterfall:
    """Parts of the steps, and the skew charged to each rank. ns as float64.

    parts[rank]: [S, PARTS]; communication, overlapped: [S]; caused: rank → [S] time for which
    others were blocked because of it; delay: rank → [S] the longest time that it held up one of
    them. waited: rank → [S] for which it was blocked. If the recording does not show waits, these
    three are the most that they may be (waits.at_most), and parts and overlapped mean nothing.
    """

    parts: dict[int, np.ndarray]
    communication: dict[int, np.ndarray]
    overlapped: dict[int, np.ndarray]
    caused: dict[int, np.ndarray]
    delay: dict[int, np.ndarray]
    waited: dict[int, np.ndarray]
    shows_waits: bool = True

    def frame(self, steps: Steps) -> pd.DataFrame:
        """One row per rank and step: rank, step, step_s, PARTS, exposed_s, communication_s,
        overlapped_s; seconds. NaN is unknown."""
        import pandas as pd

        frames = []
        for rank in sorted(self.parts):
            parts = self.parts[rank] / 1e9
            columns: dict[str, object] = {
                "rank": rank,
                "step": steps.number,
                "step_s": (steps.end[rank] - steps.begin[rank]) / 1e9,
            }
            columns |= {part: parts[:, at] for at, part in enumerate(PARTS)}
            columns["exposed_s"] = parts[:, 1:].sum(axis=1)
            columns["communication_s"] = self.communication[rank] / 1e9
            columns["overlapped_s"] = self.overlapped[rank] / 1e9
            if not self.shows_waits:
                columns |= dict.fromkeys((*PARTS, "exposed_s", "overlapped_s"), float("nan"))
            frames.append(pd.DataFrame(columns))
        return pd.concat(frames, ignore_index=True)


def waterfall(joint: Joint, steps: Steps) -> Waterfall:
    """The waterfall of all recorded ranks."""
    ranks = sorted(set(joint.arrivals) | set(joint.views))
    caused = {rank: np.zeros(len(steps)) for rank in ranks}
    delay = {rank: np.zeros(len(steps)) for rank in ranks}
    result = Waterfall({}, {}, {}, caused, delay, {}, shown(joint, steps))
    for rank, view in joint.views.items():
        exposed, running, charges = _RankParts(joint, view, steps, ranks).parts()
        step_ns = (steps.end[rank] - steps.begin[rank]).astype(float)
        compute = step_ns - exposed.sum(axis=1)
        result.parts[rank] = np.column_stack([compute, exposed])
        result.communication[rank], result.overlapped[rank] = running
        result.waited[rank] = exposed.sum(axis=1)
        if not result.shows_waits:
            charges, result.waited[rank] = at_most(joint, view, steps, ranks)
        for at, other in enumerate(ranks):
            caused[other] += charges[:, at]
            delay[other] = np.maximum(delay[other], charges[:, at])
    return result


class _RankParts:
    """One rank's steps, cut into pieces."""

    def __init__(self, joint: Joint, view: View, steps: Steps, ranks: list[int]) -> None:
        self.joint, self.view = joint, view
        chosen = np.flatnonzero(view.present)
        self.batches = chosen[np.argsort(view.begin[chosen], kind="stable")]
        self.edges, self.owner = _edges(steps, view.rank)
        self.late = _late_for(joint, view, self.batches)
        self.column = np.full(max(ranks) + 2, -1, np.int64)  # rank → column of the charges
        self.column[ranks] = np.arange(len(ranks))
        self.count, self.width, self.ranks = len(steps), len(EXPOSED_PARTS), len(ranks)

    def parts(self) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray], np.ndarray]:
        """exposed [S, EXPOSED_PARTS]; time in which batches ran, and in which the framework
        computed meanwhile, [S] each; charges [S, ranks]."""
        exposed = np.zeros((self.count, self.width))
        running, hidden = np.zeros(self.count), np.zeros(self.count)
        charges = np.zeros((self.count, self.ranks))
        reached = int(self.edges[0]) if self.count else 0
        for start in range(0, max(len(self.batches), 1) if self.count else 0, _TOGETHER):
            part = self.batches[start : start + _TOGETHER]
            last = start + _TOGETHER >= len(self.batches)
            until = max(reached, int(self.edges[-1] if last else self.view.end[part[-1]]))
            begins, ends, labels, of, step, who = self._cut(part, reached, until)
            blocked = (self.view.blocked.until(ends) - self.view.blocked.until(begins)).astype(
                float
            )
            is_running = self.runs(begins, of)
            length = np.where(is_running, ends - begins, 0)
            running += np.bincount(step, length, self.count)
            hidden += np.bincount(step, np.where(is_running, length - blocked, 0), self.count)
            peers = np.where(np.isin(labels, _RUNNING), blocked * self._waited(of), 0.0)
            exposed += _sums(step, labels, blocked - peers, self.count, self.width)
            exposed[:, _PEER] += np.bincount(step, peers, self.count)
            skew = (labels == _SKEW) & (who >= 0)
            charges += _sums(
                step[skew], self.column[who[skew]], blocked[skew], self.count, self.ranks
            )
            reached = until
        return exposed, (running, hidden), charges

    def runs(self, begins: np.ndarray, of: np.ndarray) -> np.ndarray:
        """Whether the batch `of` a piece runs in it."""
        return (begins >= self.view.begin[of]) & (begins < self.view.end[of])

    def _waited(self, of: np.ndarray) -> np.ndarray:
        """The share of each batch's time that it waited for other ranks."""
        length = np.maximum(self.view.end[of] - self.view.begin[of], 1)
        return np.clip(self.view.waited[of] / length, 0, 1)

    def _cut(self, part: np.ndarray, reached: int, until: int) -> tuple[np.ndarray, ...]:
        """Begins, ends, labels, batches, steps and culprits of the pieces in [reached, until)."""
        begins, labels, of = _pieces(self.joint, self.view, part, reached)
        begins = np.clip(begins, reached, until)
        late_begin, late_end, late_rank = self.late
        first, behind = np.searchsorted(late_end, [reached, until], side="right")
        near = slice(int(first), int(behind) + 1)
        late_begin, late_end, late_rank = late_begin[near], late_end[near], late_rank[near]
        cut = np.unique(np.concatenate([self.edges, late_begin, late_end]))
        cut = cut[(cut > reached) & (cut < until)]
        at = np.searchsorted(begins, cut, side="right") - 1
        begins = np.insert(begins, at + 1, cut)
        labels, of = np.insert(labels, at + 1, labels[at]), np.insert(of, at + 1, of[at])
        ends = np.append(begins[1:], until)
        step = np.searchsorted(self.edges, begins, side="right") - 1
        step = self.owner[np.clip(step, 0, len(self.owner) - 1)]
        use = (ends > begins) & (step >= 0)
        begins, ends, labels, of, step = (a[use] for a in (begins, ends, labels, of, step))
        who = self.joint.last_rank[of] if len(self.joint) else np.full(len(of), -1)
        if len(late_begin):
            interval = np.searchsorted(late_begin, begins, side="right") - 1
            inside = (interval >= 0) & (begins < late_end[interval])
            labels = np.where(inside, _SKEW, labels)
            who = np.where(inside, late_rank[interval], who)
        return begins, ends, labels, of, step, who


def _late_for(
    joint: Joint, view: View, batches: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Parts of the blocked time that a late rank made longer: begins, ends, the rank; in order.

    The search goes back from the batch that a wait ended with, through batches that began late only
    because the one before still ran, to the one that a rank held up: L(b) > end of the batch
    before. All blocked time until then is because of that rank: batches that ran meanwhile are
    hidden by it. That includes the waits right before, since waiting for one tensor after another
    is one wait.
    """
    waits = view.blocked
    none = np.zeros(0, np.int64)
    if not len(batches) or not len(waits.begin):
        return none, none, none
    end = np.maximum.accumulate(view.end[batches])
    held_up = joint.last[batches] > np.concatenate([[0], end[:-1]])
    held_up &= (joint.last_rank[batches] >= 0) & (view.last_own[batches] > 0)
    source = np.maximum.accumulate(np.where(held_up, np.arange(len(batches)), -1))
    final = np.searchsorted(end, waits.end, side="right") - 1
    ended = (final >= 0) & (end[np.maximum(final, 0)] > waits.begin)
    at = np.where(ended, source[np.maximum(final, 0)], -1)
    batch = batches[np.maximum(at, 0)]
    new = np.append(True, waits.begin[1:] - waits.end[:-1] > _TOGETHER_NS)
    together = waits.begin[new][np.cumsum(new) - 1]  # where the wait begins
    begin = np.maximum(together, view.last_own[batch])
    until = np.minimum(joint.last[batch], waits.end)
    use = (at >= 0) & (until > begin) & (joint.last_rank[batch] != view.rank)
    begin, until, who = begin[use], until[use], joint.last_rank[batch][use]
    # If two overlap, the later one counts: its cause was the last.
    following = np.append(np.minimum.accumulate(begin[::-1])[::-1][1:], np.iinfo(np.int64).max)
    until = np.minimum(until, following)
    return begin[until > begin], until[until > begin], who[until > begin]


def _sums(
    rows: np.ndarray, columns: np.ndarray, values: np.ndarray, count: int, width: int
) -> np.ndarray:
    return np.bincount(rows * width + columns, values, count * width).reshape(count, width)


def _edges(steps: Steps, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Where steps begin and end, and for each interval between: the step's index, or -1."""
    begin, end = steps.begin[rank], steps.end[rank]
    edges = np.unique(np.concatenate([begin, end]))
    owner = np.full(len(edges), -1, np.int64)
    owner[np.searchsorted(edges, begin)] = np.arange(len(begin))
    owner[-1:] = -1
    # Two steps with one beginning: the first is empty, and the second owns the interval.
    return edges, owner


def _pieces(
    joint: Joint, view: View, part: np.ndarray, reached: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Begins, labels and batches of the pieces from `reached` to the end of the batches `part`.

    A batch has nine pieces, some empty: until the framework waits for it, until this rank had
    submitted it, until all had, until the coordinator closed it, until it began, copying in,
    reducing, copying out, and what follows it.
    """
    begin, end = view.begin[part], np.maximum.accumulate(view.end[part])
    before = np.maximum(np.concatenate([[reached], end[:-1]]) if len(part) else begin, reached)
    begin = np.maximum(begin, before)
    waits = view.blocked.at(begin)
    waited_for = waits >= 0
    table = np.empty((len(part), _PIECES), np.int64)
    table[:, 0] = before
    wait_begin = view.blocked.begin[waits] if len(view.blocked.begin) else begin
    table[:, 1] = np.where(waited_for, np.clip(wait_begin, before, begin), begin)
    own, last = view.last_own[part], joint.last[part]
    table[:, 2] = np.where(own > 0, own, table[:, 1])
    table[:, 3] = np.where(joint.last_rank[part] >= 0, last, 0)
    scheduled = joint.scheduled[part]
    table[:, 4] = np.where(scheduled > 0, scheduled, begin)
    for column in (2, 3, 4):
        table[:, column] = np.clip(table[:, column], table[:, column - 1], begin)
    table[:, 5] = begin
    table[:, 6] = np.clip(view.packed[part], begin, end)
    table[:, 7] = np.clip(view.unpacking[part], table[:, 6], end)
    table[:, 8] = end
    labels = np.tile(
        np.array([_OTHER, _OTHER, _SKEW, _NEGOTIATION, _QUEUE, _IN, _REDUCE, _OUT, _OTHER]),
        (len(part), 1),
    )
    labels[joint.reason[part] == _CYCLE_REASON, 3] = _CYCLE
    labels[_foreign(joint, view, part, waits), 5:8] = _QUEUE
    of = np.repeat(part, _PIECES)
    if not len(part):
        return np.array([reached]), np.array([_OTHER]), np.zeros(1, np.int64)
    return table.ravel(), labels.ravel(), of


def _foreign(joint: Joint, view: View, part: np.ndarray, waits: np.ndarray) -> np.ndarray:
    """Whether a batch's process set differs from that of the tensor waited for then."""
    if not len(view.blocked.begin) or not view.recording.names:
        return np.zeros(len(part), bool)
    sets = np.array([name.process_set for name in view.recording.names], np.int64)
    names = view.blocked.names[waits]
    known = (waits >= 0) & (names != NONE) & (names < len(sets))
    return known & (sets[np.where(known, names, 0)] != joint.process_set[part])


def overlap(result: Waterfall, steps: Steps) -> Overlap:
    """How much is hidden, and how short a step could be.

    With free communication the rank that computes longest sets the pace: the mean over steps of the
    max over ranks of compute. Without skew a step is shorter by the longest wait for a late rank.
    """
    unknown = float("nan")
    if not len(steps):
        return Overlap(unknown, unknown, unknown, unknown, unknown)
    ranks = sorted(result.parts)
    parts = np.stack([result.parts[rank] for rank in ranks])  # [rank, S, part]
    step = parts.sum(axis=2)
    running = sum(result.communication[rank].sum() for rank in ranks)
    hidden = sum(result.overlapped[rank].sum() for rank in ranks)
    total = float(step.sum())
    skew = parts[:, :, 1 + _SKEW].max(axis=0)
    waited = float(sum(own.sum() for own in result.waited.values()))
    exposed_at_most = min(1.0, waited / total) if total else unknown
    if not result.shows_waits:
        step_s = float(step.mean() / 1e9)
        return Overlap(unknown, unknown, step_s, unknown, unknown, False, exposed_at_most)
    return Overlap(
        overlap_share=float(hidden / running) if running else unknown,
        exposed_share=float(parts[:, :, 1:].sum() / total) if total else unknown,
        step_s=float(step.mean() / 1e9),
        ideal_free_communication_s=float(parts[:, :, 0].max(axis=0).mean() / 1e9),
        ideal_no_skew_s=float((step.mean(axis=0) - skew).mean() / 1e9),
        exposed_at_most=exposed_at_most,
    )
