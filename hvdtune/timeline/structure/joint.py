"""All ranks' records of the same batch, side by side: the table that every analysis starts from.

    B       batches that some rank recorded, in the order of the schedule
    A_r(b)  rank r's last submission of a tensor of batch b; L(b) = max A_r, F(b) = min A_r
    c(b)    the coordinator closed the batch; f(b): its first tensor was ready
    x_r, e_r(b)  rank r began and ended it

Arrays are int64 ns on rank 0's clock, [B]; 0 means unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from hvdtune.timeline.record.layout import KINDS, NONE, RankRecording, Recording

#: A job that starts over counts its batches from 0 again: its new serials are raised by this.
_GENERATION = np.int64(1) << 40
#: Columns of BATCH that are equal on all ranks.
_SAME = ("bytes", "tensors", "process_set", "epoch", "kind", "dtype", "reason", "flags")
_LOW = np.int64(0xFFFFFFFF)
#: Slices of one wait are at most this far apart, ns.
_SLICE_GAP = 1_000_000
_FAR = np.iinfo(np.int64).max
#: Faces whose operations wait on any thread of a pool, while the program waits for the compiled
#: function that they are in.
_POOLED = frozenset({"jax", "tensorflow", "keras", "mxnet"})


@dataclass
class Blocked:
    """When the framework's main thread was blocked: disjoint intervals in order, [W] ns.

    The main thread is the one with the largest sum of waits. If operations wait on any thread of a
    pool, all threads count as the main one. `names`: ids of the tensors that it waited for.
    """

    begin: np.ndarray
    end: np.ndarray
    names: np.ndarray
    before: np.ndarray  # [W + 1] blocked time before interval i

    @classmethod
    def of(
        cls, waits: np.ndarray, ends: np.ndarray | None = None, *, pooled: bool = False
    ) -> Blocked:
        """From a stream of WAIT. Waits without a length are left out, and those of other threads,
        unless they are `pooled`.

        A long wait may have been recorded in slices, between which the caller checked for signals.
        If no batch ended in a slice (`ends`: when batches ended, ascending), it is joined with the
        next one if that has the same name, or the slice has none.
        """
        waits = waits[waits["end"] > waits["begin"]]
        threads, index = np.unique(waits["thread"], return_inverse=True)
        if len(threads) > 1 and not pooled:
            spent = np.bincount(index, (waits["end"] - waits["begin"]).astype(float))
            waits = waits[index == int(spent.argmax())]
        waits = waits[np.argsort(waits["begin"], kind="stable")]
        begin, end = waits["begin"].astype(np.int64), waits["end"].astype(np.int64)
        if len(begin):  # waits that overlap (of several threads, or damaged input) count once
            begin = np.maximum(begin, np.concatenate([begin[:1], np.maximum.accumulate(end)[:-1]]))
            end = np.maximum(begin, end)
        names = waits["name"].astype(np.int64)
        if ends is not None and len(begin) > 1:
            goes_on = np.diff(np.searchsorted(ends, np.stack([begin, end]), side="right"), axis=0)
            goes_on = (goes_on[0][:-1] == 0) & ((names[1:] == names[:-1]) | (names[:-1] == NONE))
            goes_on &= begin[1:] - end[:-1] < _SLICE_GAP
            first, last = np.append(True, ~goes_on), np.append(~goes_on, True)
            begin, end, names = begin[first], end[last], names[last]
        before = np.concatenate([[0], np.cumsum(end - begin)]).astype(np.int64)
        return cls(begin, end, names, before)

    def until(self, times: np.ndarray) -> np.ndarray:
        """Blocked time before each of `times`, ns."""
        if not len(self.begin):
            return np.zeros(np.shape(times), np.int64)
        at = np.searchsorted(self.begin, times, side="right") - 1
        inside = np.clip(times - self.begin[at], 0, self.end[at] - self.begin[at])
        return np.where(at >= 0, self.before[at] + inside, 0)

    def at(self, times: np.ndarray) -> np.ndarray:
        """Index of the interval that contains each of `times`, or -1."""
        if not len(self.begin):
            return np.full(np.shape(times), -1, np.int64)
        at = np.searchsorted(self.begin, times, side="right") - 1
        return np.where((at >= 0) & (times <= self.end[at]), at, -1)


@dataclass
class View:
    """One rank's side of the batches."""

    recording: RankRecording
    present: np.ndarray  # bool: this rank recorded the batch
    begin: np.ndarray
    packed: np.ndarray
    unpacking: np.ndarray
    end: np.ndarray
    bytes: np.ndarray
    waited: np.ndarray
    first_own: np.ndarray  # this rank's first and last submission of a tensor of the batch
    last_own: np.ndarray
    first_row: np.ndarray  # where the batch's tensors begin in the stream; -1 not recorded
    rows: np.ndarray  # how many of them were recorded
    blocked: Blocked

    @property
    def rank(self) -> int:
        """Global rank."""
        return self.recording.rank

    def rows_of(self, batches: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rows of these batches' tensors in the stream, and the batch of each row."""
        counts = self.rows[batches]
        of = np.repeat(batches, counts)
        first = np.repeat(self.first_row[batches] - (np.cumsum(counts) - counts), counts)
        return first + np.arange(len(of)), of


@dataclass
class Joint:
    """All ranks' views, and the values derived from all of them."""

    recording: Recording
    views: dict[int, View]
    serial: np.ndarray
    bytes: np.ndarray
    tensors: np.ndarray
    process_set: np.ndarray
    epoch: np.ndarray
    kind: np.ndarray
    dtype: np.ndarray
    reason: np.ndarray
    flags: np.ndarray
    scheduled: np.ndarray
    first_ready: np.ndarray
    arrivals: dict[int, np.ndarray] = field(default_factory=dict)  # rank → A_r; 0: never
    last: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # L
    first: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # F
    last_rank: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # -1: unknown

    @property
    def reference(self) -> View:
        """The rank that saw the most batches; the lowest of several."""
        return max(self.views.values(), key=lambda view: (int(view.present.sum()), -view.rank))

    def __len__(self) -> int:
        return len(self.serial)

    def batch_has(self, rank: int) -> np.ndarray:
        """[B] bool: the submissions of this rank and of another one are known."""
        return (self.arrivals[rank] > 0) & (self.last_rank >= 0)

    def pure(self) -> np.ndarray:
        """Duration of each batch without waiting for ranks that began late: the shortest end -
        begin over the ranks, ns."""
        return self.pure_of(np.arange(len(self)))

    def pure_of(self, batches: np.ndarray) -> np.ndarray:
        """pure() of some batches."""
        shortest = np.full(len(batches), _FAR)
        for view in self.views.values():
            here = np.where(view.present[batches], view.end[batches] - view.begin[batches], _FAR)
            shortest = np.minimum(shortest, here)
        return np.where(shortest == _FAR, 0, shortest)

    def together_of(self, batches: np.ndarray) -> np.ndarray:
        """Duration of some batches after the last rank has begun them: max e − max x, at least the
        shortest that a rank saw, ns. Unlike pure() it includes ranks' waiting for each other."""
        begin = np.max([view.begin[batches] for view in self.views.values()], axis=0)
        end = np.max([view.end[batches] for view in self.views.values()], axis=0)
        return np.maximum(self.pure_of(batches), end - begin)

    def over_ranks(self, what: str, largest: bool = True) -> np.ndarray:
        """max (or min) of a View's column over the ranks that know it; 0 if none does."""
        result = np.full(len(self), 0 if largest else _FAR)
        for view in self.views.values():
            column = getattr(view, what)
            if largest:
                result = np.maximum(result, column)
            else:
                result = np.minimum(result, np.where(column == 0, _FAR, column))
        return np.where(result == _FAR, 0, result)

    def members(self) -> np.ndarray:
        """[B] how many ranks participate in each batch; 0 if the capture does not show it.

        In process set 0 these are all ranks, in others the recorded members. Without a list of
        members (captures of earlier versions) they are the ranks that recorded the batch, if all
        ranks recorded, or those that announced its tensors to rank 0.
        """
        count = np.full(len(self), self.recording.size, np.int64)
        for process_set in np.unique(self.process_set[self.process_set != 0]).tolist():
            of = np.flatnonzero(self.process_set == process_set)
            count[of] = self._listed(process_set, of)
            if not count[of].any():
                count[of] = self._seen(of)
        return count

    def _listed(self, process_set: int, of: np.ndarray) -> np.ndarray:
        """members() from the lists of members, for the batches `of` of that process set."""
        lists: dict[int, int] = {}
        for view in self.views.values():
            for one in view.recording.sets:
                if one.process_set == process_set:
                    lists[one.batch] = len(one.ranks)
        since = np.array(sorted(lists), np.int64)
        if not len(since):
            return np.zeros(len(of), np.int64)
        sizes = np.array([lists[batch] for batch in since.tolist()], np.int64)
        at = np.searchsorted(since, self.serial[of] % _GENERATION, side="right") - 1
        return sizes[np.maximum(at, 0)]

    def _seen(self, of: np.ndarray) -> int:
        """members() from the ranks that recorded or announced a process set's batches `of`."""
        arrived = sum((times[of] > 0).astype(np.int64) for times in self.arrivals.values())
        whole = len(self.views) == self.recording.size or len(self.arrivals) > len(self.views)
        return int(np.max(arrived, initial=0)) if whole else 0


def join(recording: Recording) -> Joint:
    """Match the ranks' batches by their serials. Raises ValueError if no rank was recorded."""
    if not recording.ranks:
        raise ValueError(f"{recording.source} has no rank's recording; nothing can be analysed.")
    ranks = [recording.ranks[rank] for rank in sorted(recording.ranks)]
    numbers = [_generations(one.batches["serial"].astype(np.int64)) for one in ranks]
    serial = np.unique(np.concatenate(numbers)) if numbers else np.zeros(0, np.int64)
    views = {one.rank: _view(one, own, serial) for one, own in zip(ranks, numbers, strict=True)}
    joint = _joint(recording, views, serial, list(zip(ranks, numbers, strict=True)))
    joint.arrivals = {rank: view.last_own for rank, view in views.items()}
    for rank, times in _announced(joint):
        joint.arrivals[rank] = times
    _judge_arrivals(joint)
    return joint


def _generations(serial: np.ndarray) -> np.ndarray:
    """Serials that keep rising if the job started over."""
    if not len(serial):
        return serial
    restarts = np.concatenate([[False], serial[1:] < serial[:-1]])
    return serial + np.cumsum(restarts) * _GENERATION


def _view(one: RankRecording, numbers: np.ndarray, serial: np.ndarray) -> View:
    size = len(serial)
    at = np.searchsorted(serial, numbers)
    batches = one.batches

    def column(name: str) -> np.ndarray:
        result = np.zeros(size, np.int64)
        result[at] = batches[name]
        return result

    present = np.zeros(size, bool)
    present[at] = True
    begin, end = column("begin"), column("end")
    packed, unpacking = column("packed"), column("unpacking")
    # Unknown, or not done: nothing was packed or unpacked.
    packed = np.clip(np.where(packed == 0, begin, packed), begin, end)
    unpacking = np.clip(np.where(unpacking == 0, end, unpacking), packed, end)
    first, last, row, rows = _submissions(one.tensors, serial)
    faces = one.identity.faces
    pooled = bool(faces) and faces <= _POOLED
    return View(
        one, present, begin, packed, unpacking, end, column("bytes"), column("waited_ns"),
        first, last, row, rows, Blocked.of(one.waits, np.sort(end[present]), pooled=pooled),
    )  # fmt: skip


def _submissions(
    tensors: np.ndarray, serial: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Per batch: first and last submission, the first row, the number of rows."""
    first, last = np.zeros(len(serial), np.int64), np.zeros(len(serial), np.int64)
    row, rows = np.full(len(serial), -1, np.int64), np.zeros(len(serial), np.int64)
    if not len(tensors) or not len(serial):
        return first, last, row, rows
    batch = tensors["batch"]
    starts = np.concatenate([[0], np.flatnonzero(batch[1:] != batch[:-1]) + 1])
    numbers = _generations(batch[starts].astype(np.int64))
    known = (serial & _LOW) + (serial // _GENERATION) * _GENERATION
    at = np.minimum(np.searchsorted(known, numbers), len(serial) - 1)
    same = known[at] == numbers  # its batch may have been dropped
    submitted = tensors["submitted"]
    counts = np.diff(np.append(starts, len(tensors)))
    first[at[same]] = np.minimum.reduceat(submitted, starts)[same]
    last[at[same]] = np.maximum.reduceat(submitted, starts)[same]
    row[at[same]], rows[at[same]] = starts[same], counts[same]
    return first, last, row, rows


def _joint(
    recording: Recording,
    views: dict[int, View],
    serial: np.ndarray,
    ranks: list[tuple[RankRecording, np.ndarray]],
) -> Joint:
    """Values that all ranks share are from the lowest rank that knows them, times from rank 0."""
    columns = {name: np.zeros(len(serial), np.int64) for name in _SAME}
    times = {name: np.zeros(len(serial), np.int64) for name in ("scheduled", "first_ready")}
    for one, numbers in reversed(ranks):
        at = np.searchsorted(serial, numbers)
        for name, column in columns.items():
            column[at] = one.batches[name]
        for name, column in times.items():
            known = one.batches[name] != 0
            column[at[known]] = one.batches[name][known]
    return Joint(
        recording=recording,
        views=views,
        serial=serial,
        scheduled=times["scheduled"],
        first_ready=times["first_ready"],
        **{name: columns[name] for name in _SAME},  # type: ignore[arg-type]
    )


def _judge_arrivals(joint: Joint) -> None:
    """L, F and the last rank; -1 unless the submissions of at least two ranks are known."""
    first = np.full(len(joint), _FAR)
    last = np.zeros(len(joint), np.int64)
    who = np.full(len(joint), -1, np.int64)
    known = np.zeros(len(joint), np.int64)
    for rank in sorted(joint.arrivals):
        times = joint.arrivals[rank]
        there = times > 0
        known += there
        later = there & (times > last)
        who[later] = rank
        last[later] = times[later]
        first = np.where(there, np.minimum(first, times), first)
    joint.first = np.where(first == _FAR, 0, first)
    joint.last = last
    joint.last_rank = np.where(known > 1, who, -1)


def _announced(joint: Joint) -> Iterator[tuple[int, np.ndarray]]:
    """A_r of ranks that did not record, from their announcements to rank 0: the last one of each
    tensor before its batch began."""
    view = joint.views.get(0)
    if view is None or not len(view.recording.ready):
        return
    ready, tensors = view.recording.ready, view.recording.tensors
    batches = np.flatnonzero(view.rows > 0)
    rows = np.repeat(batches, view.rows[batches])
    order = np.concatenate(
        [np.arange(view.first_row[b], view.first_row[b] + view.rows[b]) for b in batches]
        or [np.zeros(0, np.int64)]
    )
    names, until = tensors["name"][order].astype(np.int64), view.begin[rows]
    for rank in np.unique(ready["rank"]):
        if int(rank) in joint.views:
            continue
        heard = ready[ready["rank"] == rank]
        times = _last_before(heard["name"].astype(np.int64), heard["time"], names, until)
        result = np.zeros(len(joint), np.int64)
        np.maximum.at(result, rows, times)
        yield int(rank), result


def _last_before(
    names: np.ndarray, times: np.ndarray, asked: np.ndarray, until: np.ndarray
) -> np.ndarray:
    """For each (asked, until): the latest of `times` of that name that is not after it, else 0."""
    order = np.lexsort((times, names))
    names, times = names[order], times[order]
    # Both in one order: a query is sorted after the times that it may find.
    both_names, both_times = np.concatenate([names, asked]), np.concatenate([times, until])
    is_ask = np.concatenate([np.zeros(len(names), bool), np.ones(len(asked), bool)])
    merged = np.lexsort((is_ask, both_times, both_names))
    found = np.maximum.accumulate(np.where(is_ask[merged], -1, merged))
    asks = merged[is_ask[merged]] - len(names)
    at = found[is_ask[merged]]
    fits = (at >= 0) & (names[np.maximum(at, 0)] == asked[asks])
    result = np.zeros(len(asked), np.int64)
    result[asks] = np.where(fits, times[np.maximum(at, 0)], 0)
    return result


def kind_name(kind: int) -> str:
    """`allreduce` …; `operation 17` for a number that this version does not know."""
    return KINDS[kind] if 0 <= kind < len(KINDS) else f"operation {kind}"
