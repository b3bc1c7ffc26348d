"""Owners of operations: families of operations that one call of the program repeats.

A family is a call (`allreduce`, `broadcast_object`, `barrier`, …) of a process set with a name in
which numbers do not matter: `metric.0`, `metric.1` … are `metric.#`. All allreduces of gradients of
a process set are one family. Definitions: docs/metrics.md, "Owners".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from hvdtune.timeline.record.layout import NONE, Mark, Name, RankRecording
from hvdtune.timeline.structure.joint import Joint, View
from hvdtune.timeline.structure.steps import Steps

#: Operations outstanding at the same time are also gradients (of a second optimizer, for example)
#: if together they have this share of the bytes of the largest such group.
LARGE_SHARE = 0.1
#: A tensor of at most this many bytes is a gradient only if it belongs to a layer; otherwise it is
#: a metric.
SCALAR = 8
#: A family has a property if this share of its operations has it.
MOSTLY = 0.5
#: A family in this share of the steps counts as in every step.
OFTEN = 0.8
#: An exchange that belongs to the model is a loss only from this many bytes a step on.
LARGE = 1 << 20
#: An operation is right after the update if at most this share of the computing between the update
#: and the first gradient is done before it.
AT_ONCE = 0.1
UPDATED, BEFORE, AMONG, BEHIND = (
    "after the update", "before the gradients", "among the gradients", "after the gradients",
)  # fmt: skip
GRADIENTS, OF_MODEL = "gradients", "SyncBatchNorm"
_SIZES = {"uint16": 2, "int16": 2, "int32": 4, "int64": 8, "float16": 2, "float32": 4,
          "float64": 8, "bfloat16": 2}  # fmt: skip
#: Calls that return the result. The last rank may wait too briefly to leave a record.
_BLOCKING = ("broadcast_object", "allgather_object", "barrier")
_GROUPED = re.compile(r"_(\d+)of\d+$")
_MADE_UP = re.compile(r"noname(\.\d+)?")
_NUMBER = re.compile(r"\d+")


class Key(NamedTuple):
    """What makes operations one family. `size`: bytes of one, for operations without a name."""

    call: str
    name: str
    process_set: int
    size: int = 0


@dataclass(frozen=True)
class Family:
    """Operations of one owner, in whole steps.

    names: ids of the reference rank. count, bytes: per step, of the rank that saw most. steps:
    share of the steps that contain it. blocked_s: how long a participating rank was blocked by it,
    per step; late_s: the part of that for late ranks. alone: the program waits for each operation
    before it submits anything else. site: `train.py:42 in metrics`, the line that calls operations
    without a name most. phase: UPDATED, BEFORE, AMONG or BEHIND; "" without gradients. busy: rank →
    s per step for which it was blocked by the family, but not for late ranks.
    """

    call: str
    name: str
    process_set: int
    names: tuple[int, ...]
    count: float
    bytes: float
    steps: float
    blocked_s: float
    late_s: float
    alone: bool
    phase: str
    site: str = ""
    busy: Mapping[int, float] = field(default_factory=dict, hash=False)

    @property
    def waited_for(self) -> bool:
        """Whether the program waits for it in nearly every step, and not just as part of waiting
        for gradients or other operations."""
        if self.gradients or self.steps < OFTEN:
            return False
        if self.call in ("alltoall", "reducescatter"):
            return self.alone and self.bytes >= LARGE
        return self.alone or not self.call.endswith("allreduce")

    @property
    def gradients(self) -> bool:
        """Whether these are the gradients of a model."""
        return self.name == GRADIENTS and self.call == "allreduce"


@dataclass
class _Seen:
    """What one rank knows about a family. `name`: the full name, if there is only one."""

    name: str = ""
    names: set[int] = field(default_factory=set)
    count: float = 0.0
    bytes: float = 0.0
    steps: float = 0.0
    alone: float = 0.0
    phase: str = ""


def owners(joint: Joint, steps: Steps) -> list[Family]:
    """All families of the steps, those that block the longest first; [] without steps."""
    if not len(steps):
        return []
    reference = joint.reference
    seen: dict[Key, _Seen] = {}
    times: dict[Key, dict[int, tuple[float, float]]] = {}
    spots = _spots(joint)
    orders = [_Rows(joint, view, steps, spots).order() for view in joint.views.values()]
    reduced: set[tuple[Key, str]] = set()
    for view in sorted(joint.views.values(), key=lambda one: one is not reference):
        keys = keys_of(view.recording)
        names = [one.name for one in view.recording.names]
        sums = [Key("allreduce", GRADIENTS, one.process_set) for one in view.recording.names]
        both = list(zip(sums, names, strict=True))
        gradients = {at: sums[at] for at, one in enumerate(both) if one in reduced}
        mine = [gradients.get(at, key) for at, key in enumerate(keys)]
        if view is reference or any(key not in seen for key in mine):
            rows = _Rows(joint, view, steps, spots)
            rows.part(orders)
            gradients = rows.gradients(keys)
            if view is reference:
                reduced = {(key, names[at]) for at, key in gradients.items()}
            for key, own in rows.families({**dict(enumerate(keys)), **gradients}).items():
                if key not in seen:
                    seen[key] = own
                    if view is not reference:
                        own.names = set()
            mine = [gradients.get(at, key) for at, key in enumerate(keys)]
        for key, spent in _blocked(joint, view, steps, mine).items():
            times.setdefault(key, {})[view.rank] = spent
    result = []
    for key, own in seen.items():
        waits = {
            rank: np.array(spent) / len(steps) / 1e9 for rank, spent in times.get(key, {}).items()
        }
        blocked, late = np.mean(list(waits.values()) or [np.zeros(2)], axis=0)
        result.append(
            Family(
                key.call, own.name or key.name, key.process_set, tuple(sorted(own.names)),
                own.count, own.bytes, own.steps, float(blocked), float(late),
                own.alone > MOSTLY or key.call in _BLOCKING, own.phase,
                _site(reference.recording, key, own.names),
                {rank: float(one[0] - one[1]) for rank, one in waits.items()},
            )
        )  # fmt: skip
    return sorted(result, key=lambda one: (-one.blocked_s, one.call, one.name, one.process_set))


# ---- names ---------------------------------------------------------------------------------------


def keys_of(recording: RankRecording) -> list[Key]:
    """The key of each name of a rank, by its id."""
    every = {(one.name, one.process_set) for one in recording.names}
    return [_key(one, every) for one in recording.names]


def _key(one: Name, every: set[tuple[str, int]]) -> Key:
    grouped = one.name.startswith(f"grouped_{one.kind}.")
    call = f"grouped_{one.kind}" if grouped else one.kind
    text = _text(one.name, call)
    if one.kind == "barrier":
        return Key("barrier", "", one.process_set)
    if text.startswith("sync_batch_norm."):
        return Key(OF_MODEL, "", one.process_set)
    if _MADE_UP.fullmatch(text):
        return Key(call, "", one.process_set, one.bytes)
    base, dot, part = one.name.rpartition(".")
    if dot and part in ("sz", "t") and one.kind in ("broadcast", "allgather"):
        pair = {(f"{base}.sz", one.process_set), (f"{base}.t", one.process_set)}
        call = f"{call}_object" if pair <= every else call
        text = _text(one.name, call)
    return Key(call, _NUMBER.sub("#", text), one.process_set)


def _text(name: str, call: str) -> str:
    """The name that the program gave it."""
    kind = call.removesuffix("_object")
    text = name.removeprefix(f"{kind}.")
    if kind.startswith("grouped_"):
        text = _GROUPED.sub("", text)
    return (
        text.removesuffix(".sz").removesuffix(".t") if kind in ("broadcast", "allgather") else text
    )


def _site(recording: RankRecording, key: Key, names: set[int]) -> str:
    """The sampled line that calls a family without a name most; "" if there is none."""
    if key.name or not names:
        return ""
    one = recording.names[min(names)]
    elements = one.bytes // _SIZES.get(one.dtype, 1)
    marks = recording.marks[recording.marks["kind"] == int(Mark.CALL_SITE)]
    texts = marks["text"][marks["value"] == elements].tolist()
    seen = Counter(recording.texts[at] for at in texts if at < len(recording.texts))
    begin = f"{key.call}|{key.process_set}|"
    own = [text.removeprefix(begin) for text, _ in seen.most_common() if text.startswith(begin)]
    return own[0] if own else ""


def _is_first(name: str) -> bool:
    """Whether it counts as a call: of a grouped call's tensors only the first does."""
    group = _GROUPED.search(name) if name.startswith("grouped_") else None
    return group is None or group[1] == "1"


# ---- one rank's tensors --------------------------------------------------------------------------


def _spots(joint: Joint) -> np.ndarray:
    """[batches + 1] int64: tensors are numbered across all batches, alike on all ranks. The number
    of each batch's first tensor, then the total."""
    most = np.max([view.rows for view in joint.views.values()], axis=0)
    return np.concatenate([[0], np.cumsum(np.maximum(most, 0), dtype=np.int64)])


class _Order(NamedTuple):
    """A rank's tensors in the order of submission. `spot`: [T] int32, see _spots. `waited`: [T]
    bool, whether the rank is blocked before it submits the next one."""

    spot: np.ndarray
    waited: np.ndarray


class _Rows:
    """A rank's tensors of whole steps, in the order of their submission."""

    def __init__(self, joint: Joint, view: View, steps: Steps, spots: np.ndarray) -> None:
        known = np.flatnonzero((view.rows > 0) & (steps.batch_step >= 0))
        counts = view.rows[known]
        batch = np.repeat(known, counts)
        shift = np.repeat(view.first_row[known] - np.cumsum(counts) + counts, counts)
        tensors = view.recording.tensors[shift + np.arange(len(batch))]
        names, submitted = tensors["name"].astype(np.int64), tensors["submitted"].astype(np.int64)
        use = np.flatnonzero((submitted > 0) & (names < len(view.recording.names)))
        use = use[np.argsort(submitted[use], kind="stable")]
        self.name, self.submitted = names[use], submitted[use]
        self.step = steps.batch_step[batch[use]]
        place = np.arange(len(batch)) - np.repeat(np.cumsum(counts) - counts, counts)
        self.spot = (spots[batch] + place)[use].astype(np.int32)
        self.spots = int(spots[-1])
        self.described = view.recording.names
        self.steps = len(steps)
        self.blocked, self.begin = view.blocked, steps.begin[view.rank]
        self.opened = self._own(self.begin)
        self.bytes = np.array([one.bytes for one in self.described] or [0])[self.name]
        behind = np.searchsorted(view.blocked.begin, self.submitted, side="left")
        self.waited = np.diff(behind, append=len(view.blocked.begin)) > 0  # before the next one
        self.wait = self.alone = np.zeros(0, np.int64)  # see part()

    def order(self) -> _Order:
        """Only the order; everything else takes ten times the memory."""
        return _Order(self.spot, self.waited)

    def part(self, ranks: Iterable[_Order]) -> None:
        """Tensors between two waits are outstanding at the same time. The last rank of a small
        operation waits too briefly to leave a record, so the wait of any rank counts if that rank
        then submits the same tensor."""
        waited = self.waited.copy()
        for other in ranks:
            if not len(other.spot):
                continue
            turn = np.full(self.spots, -1, np.int32)
            turn[other.spot] = np.arange(len(other.spot), dtype=np.int32)
            there = turn[self.spot]
            next_too = (there[:-1] >= 0) & (np.diff(there) == 1)
            waited[:-1] |= next_too & other.waited[there[:-1]]
        self.wait = np.cumsum(waited) - waited
        first = np.array([_is_first(one.name) for one in self.described] or [True])[self.name]
        calls = np.bincount(self.wait, first)
        ended = waited[-1:].any() | (self.wait < self.wait.max(initial=0))
        self.alone = (calls[self.wait] == 1) & ended

    def gradients(self, keys: list[Key]) -> dict[int, Key]:
        """Names (ids) of gradients → their family: the allreduces that are outstanding at the same
        time and have the most bytes. If the program waits for much larger ones one by one, all
        except scalars are gradients. So are tensors whose names differ from a gradient's only in
        numbers. If tensors of smaller process sets are much larger, they take precedence."""
        if not len(self.name):
            return {}
        reducing = np.array([one.kind == "allreduce" for one in self.described])
        reducing &= np.array([key.call != OF_MODEL for key in keys])
        size = np.bincount(self.wait, np.where(reducing[self.name], self.bytes, 0))
        count = np.bincount(self.name, minlength=len(keys))
        together = np.bincount(self.name, size[self.wait], len(keys)) / np.maximum(count, 1)
        alone = np.bincount(self.name, self.alone, len(keys)) > MOSTLY * count
        often = together * np.minimum(1.0, count / self.steps) * reducing
        of_some = np.array([one.process_set != 0 for one in self.described])
        weight = np.where(alone, LARGE_SHARE, 1.0) * np.where(of_some, LARGE_SHARE, 1.0)
        heaviest = int(np.argmax(weight * often))
        each = np.array([one.bytes for one in self.described])
        large = often >= LARGE_SHARE * often[heaviest]
        if alone[heaviest]:
            chosen = (alone & (each > SCALAR)) | (large & (each > SCALAR))
        else:
            chosen = large & ~alone
        chosen &= (each > SCALAR) | self._of_layers(keys, chosen & reducing & (each > SCALAR))
        named = {keys[at] for at in np.flatnonzero(chosen & reducing) if "#" in keys[at].name}
        chosen |= np.array([key in named for key in keys]) & (each > SCALAR)
        ids = np.flatnonzero(chosen & reducing & (count > 0))
        return {int(at): Key("allreduce", GRADIENTS, self.described[at].process_set) for at in ids}

    def _of_layers(self, keys: list[Key], gradients: np.ndarray) -> np.ndarray:
        """Names, [N] bool, that belong to a layer of these: a scalar of no layer is a metric. All
        names if there are no such gradients."""
        names = zip(self.described, keys, strict=True)
        layers = [_text(one.name, key.call).rpartition(".")[0] for one, key in names]
        known = {layers[at] for at in np.flatnonzero(gradients)}
        return np.array([not known or layer in known for layer in layers], bool)

    def families(self, key_of: dict[int, Key]) -> dict[Key, _Seen]:
        """What this rank knows about each family. `key_of`: the family of each name."""
        every = {key: at for at, key in enumerate(dict.fromkeys(key_of.values()))}
        index = np.array([every[key_of[at]] for at in range(len(self.described))] or [0])
        of = index[self.name]
        phases = self._phases(of, [key.name == GRADIENTS for key in every])
        result = {}
        for key, at in every.items():
            own = np.flatnonzero(of == at)
            if not len(own):
                continue
            _, opening = np.unique(self.step[own], return_index=True)  # the first of each step
            values, number = np.unique(phases[own[opening]], return_counts=True)
            ids = np.unique(self.name[own]).tolist()
            texts = {_text(self.described[at].name, key.call) for at in ids}
            result[key] = _Seen(
                texts.pop() if len(texts) == 1 and key.name not in ("", GRADIENTS) else "",
                set(ids),
                len(own) / self.steps,
                float(self.bytes[own].sum()) / self.steps,
                len(np.unique(self.step[own])) / self.steps,
                float(self.alone[own].mean()),
                ("", UPDATED, BEFORE, AMONG, BEHIND)[int(values[number.argmax()])],
            )
        return result

    def _phases(self, of: np.ndarray, gradients: list[bool]) -> np.ndarray:
        """0: unknown, 1: after the update, 2: before the step's first gradient, 3: among the
        gradients, 4: after the last."""
        reduced = np.flatnonzero(np.array(gradients or [False])[of])
        first = np.full(self.steps, np.iinfo(np.int64).max)
        last = np.zeros(self.steps, np.int64)
        np.minimum.at(first, self.step[reduced], self.submitted[reduced])
        np.maximum.at(last, self.step[reduced], self.submitted[reduced])
        known = last > 0
        whole = np.where(known, self._own(np.where(known, first, self.begin)) - self.opened, 0)
        at_once = self._own(self.submitted) - self.opened[self.step] < AT_ONCE * whole[self.step]
        before = self.submitted < first[self.step]
        behind = self.submitted > last[self.step]
        phases = np.where(before, np.where(at_once, 1, 2), np.where(behind, 4, 3))
        return np.where(known[self.step], phases, 0)

    def _own(self, times: np.ndarray) -> np.ndarray:
        """These times on a clock that stops while the program is blocked."""
        return times - self.blocked.until(times)


def _blocked(
    joint: Joint, view: View, steps: Steps, keys: list[Key]
) -> dict[Key, tuple[float, float]]:
    """Family → ns for which the rank's main thread was blocked by it in steps, and for late ranks.

    A wait belongs to the tensor that it names, or else to the last operation that was done when it
    ended.
    """
    waits, rank = view.blocked, view.rank
    step = np.searchsorted(steps.end[rank], waits.begin, side="right")
    inside = step < len(steps)
    inside &= steps.begin[rank][np.minimum(step, len(steps) - 1)] <= waits.begin
    present = np.flatnonzero(view.present)
    if not len(present) or not inside.any():
        return {}
    order = present[np.argsort(view.end[present], kind="stable")]
    begin, end, names = waits.begin[inside], waits.end[inside], waits.names[inside]
    at = np.searchsorted(view.end[order], end, side="right") - 1
    batch = order[np.maximum(at, 0)]
    first = np.where(view.first_row[batch] >= 0, view.first_row[batch], 0)
    stream = view.recording.tensors["name"]
    done = stream[first].astype(np.int64) if len(stream) else np.full(len(batch), len(keys))
    names = np.where((names == NONE) & (at >= 0) & (view.rows[batch] > 0), done, names)
    since = np.maximum(begin, view.last_own[batch])
    late = np.clip(np.minimum(joint.last[batch], end) - since, 0, None)
    late = np.where((at >= 0) & (joint.last_rank[batch] != rank), late, 0)
    result: dict[Key, tuple[float, float]] = {}
    known = names < len(keys)
    lengths = np.bincount(names[known], (end - begin)[known], len(keys))
    lates = np.bincount(names[known], late[known], len(keys))
    for key, length, waited in zip(keys, lengths, lates, strict=False):
        before = result.get(key, (0.0, 0.0))
        result[key] = before[0] + float(length), before[1] + float(waited)
    return result
