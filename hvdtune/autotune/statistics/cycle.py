"""Joins parts of training steps: what the engine calls a step may be less than one.

The engine ends a step when a tensor is reduced again. If tensors have names, that is a training
step. It is only a part of one if

- a step has several optimizers that alternate unevenly (five steps of one, then one of another);
- tensors have no names: they are told apart by their properties, so each of several equal ones
  ends a "step".

In these cases the work of the parts repeats with a period of several parts:

k_i     kind of part i: its tensors and bytes; with names, bytes that differ by less than
        TOLERANCE are one kind: a step that also averages a metric is not other work
p       period: the least p with k_i = k_(i-p) throughout a tail of the parts that is at least
        LEAST parts and REPEATS periods long

If parts have no names and are all equal, their work does not show the period. Computing happens
between the last part of a step and the first of the next, so the period is then the usual distance
between parts that take about as long as the longest.

A part that does not fit into the period (an evaluation) is dropped together with the step it
interrupts; if the period is a single part, it is passed on, and the sample must judge it.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

LEAST = 8  # parts; fewer than a sample has, so that nothing is lost
REPEATS = 3
MOST_NAMED = 16  # parts per step if names tell steps apart: this many turns of optimizers
MOST_UNNAMED = 2048
NAMED_PATIENCE = 3 * MOST_NAMED  # parts without a period: then each is a step
UNNAMED_PATIENCE = 3 * MOST_UNNAMED
PATIENCE_NS = 20_000_000_000  # the longest wait, if there are a few dozen parts
MOST_EQUAL = 1024  # without a rhythm: then each is a step
EQUAL = 32  # equal parts without names; fewer do not show which ones take long
LONG = 3.0
TOLERANCE = 0.1
MOST_KINDS = 256  # that are remembered; with more, parts do not repeat
REGULAR = 0.75  # of the distances between long parts are the same
MISFITS = 3  # after this many, look for a longer period that explains them
CHANGED = 32  # misfits in a row: the training has changed

Key = tuple[int, int]


class Part(Protocol):
    """The fields of the engine's step that are read (`core.tuning.StepRecord` has them)."""

    @property
    def duration_ns(self) -> int:
        """Wall time."""

    @property
    def bytes(self) -> int:
        """Bytes allreduced."""

    @property
    def tensors(self) -> int:
        """Tensors allreduced."""

    @property
    def epoch(self) -> int:
        """Number of the settings at its end."""

    @property
    def named(self) -> bool:
        """Whether some of its tensors have names of their own."""


@dataclass(frozen=True)
class Whole:
    """A training step made of parts; `epoch` is that of its first part. All parts ran under these
    settings, or some under earlier ones."""

    duration_ns: int
    bytes: int
    tensors: int
    epoch: int


Step = Part | Whole


class Joiner:
    """Takes parts in order, returns training steps. Holds the first parts until it knows more.

    Durations that are not finite do not count here, and are passed on in single parts.
    """

    def __init__(self) -> None:
        self._history: deque[_Seen] = deque(maxlen=UNNAMED_PATIENCE)
        self._held: list[_Seen] = []
        self._kinds: dict[Key, Key] = {}
        self._pattern: list[Key] = []  # empty: unknown
        self._partial: list[Part] = []
        self._misfits = 0
        self._in_a_row = 0
        self._next_look = LEAST
        self._is_without_pattern = False  # each part is a step

    @property
    def parts(self) -> int:
        """How many parts make a step; 0 while that is not known."""
        return len(self._pattern)

    def add(self, part: Part) -> list[Step]:
        """Take the next part; returns the steps that it completes."""
        seen = _Seen(part, self._kind(part))
        self._history.append(seen)
        if self._pattern:
            return self._match(seen)
        self._held.append(seen)
        return self._learn()

    def flush(self) -> list[Step]:
        """Return the parts that were held, because no more will follow."""
        held, self._held = self._held, []
        return [seen.part for seen in held]

    def _kind(self, part: Part) -> Key:
        own = (part.tensors, part.bytes)
        if not part.named:
            return own
        known = self._kinds.get(own)
        if known is None:
            alike = (kind for kind in self._kinds.values() if _is_alike(kind[1], own[1]))
            known = next(alike, own)
            if len(self._kinds) < MOST_KINDS:
                self._kinds[own] = known
        return known

    # -- finding the period --

    def _learn(self) -> list[Step]:
        held = self._held
        if len(held) < self._next_look:
            return []
        self._next_look = len(held) + max(1, len(held) // 8)
        named = held[-1].part.named
        period = _period(held, MOST_NAMED if named else MOST_UNNAMED, LEAST)
        if period == 1 and not named:
            period = _period_of_times(held) if len(held) >= EQUAL else None
        is_hopeless = period is None and self._is_hopeless(named)
        if is_hopeless:
            period = 1
        if period is None:
            return []
        self._held, self._is_without_pattern = [], is_hopeless
        return self._adopt(held, period)

    def _is_hopeless(self, named: bool) -> bool:
        held = self._held
        if named:
            return len(held) >= NAMED_PATIENCE
        lasted = sum(_time(seen.part) for seen in held)
        enough = len(held) >= NAMED_PATIENCE and lasted > PATIENCE_NS
        return enough or len(held) >= UNNAMED_PATIENCE

    def _adopt(self, parts: Sequence[_Seen], period: int) -> list[Step]:
        """From now on this many parts make a step; returns the steps in `parts`."""
        self._misfits = self._in_a_row = 0
        self._partial = []
        self._pattern = _rotated([seen.kind for seen in parts[-period:]])
        if period == 1:
            return [seen.part for seen in parts]
        steps: list[Step] = []
        for seen in parts[-REPEATS * period :]:
            steps += self._match(seen)
        self._misfits = self._in_a_row = 0  # the first parts may belong to a step that had begun
        return steps

    # -- using it --

    def _match(self, seen: _Seen) -> list[Step]:
        part, kind = seen.part, seen.kind
        if len(self._pattern) == 1 and (part.named or self._is_without_pattern):
            if not part.named and len(self._history) >= self._next_look:
                self._next_look = len(self._history) + max(1, len(self._history) // 8)
                self._look_further()  # a pattern may have shown only now
            return [part]
        if kind != self._pattern[len(self._partial)]:
            self._misfits += self._in_a_row == 0
            self._in_a_row += 1
            self._partial = []
            if self._in_a_row >= CHANGED + len(self._pattern):
                return self._relearn(seen)
            if self._misfits >= MISFITS and not part.named:
                self._look_further()
                return []
            if kind != self._pattern[0]:
                return []
        self._partial.append(part)
        if len(self._partial) < len(self._pattern):
            return []
        whole, self._partial = _joined(self._partial), []
        self._in_a_row = 0
        return [whole]

    def _relearn(self, seen: _Seen) -> list[Step]:
        self._pattern, self._held, self._next_look = [], [seen], LEAST
        self._history.clear()
        return []

    def _look_further(self) -> None:
        """Find a longer period that also explains the misfits."""
        history = list(self._history)
        # The last two thirds of the parts since the pattern was known contain two of three misfits.
        period = _period(history, MOST_UNNAMED, 2 * len(history) // 3)
        self._misfits = 0
        if period is not None and period > len(self._pattern):
            self._adopt(history[-period:], period)


@dataclass(frozen=True)
class _Seen:
    part: Part
    kind: Key


def _period(parts: Sequence[_Seen], most: int, least: int) -> int | None:
    """The least period of the last parts, at least `least` of them and REPEATS periods."""
    keys = [seen.kind for seen in parts]
    for period in range(1, min(most, len(keys) // REPEATS) + 1):
        tail = max(least, REPEATS * period)
        if tail > len(keys):
            break
        first = len(keys) - tail
        if keys[first + period :] == keys[first : len(keys) - period]:
            return period
    return None


def _period_of_times(parts: Sequence[_Seen]) -> int | None:
    """The usual distance between long parts, 1 if there are none; None: still unknown."""
    times = [_time(seen.part) for seen in parts]
    ordered = sorted(times)
    # Not the longest ones: they may be checkpoints.
    usual = ordered[-REPEATS - 1]
    if usual <= LONG * statistics.median(times):
        # Equal except for a few, which may be a rhythm or checkpoints.
        return 1 if ordered[-1] <= LONG * usual or len(parts) >= 8 * EQUAL else None
    places = [at for at, time in enumerate(times) if time > usual / LONG]
    distances = [after - before for before, after in itertools.pairwise(places)]
    distance, count = Counter(distances).most_common(1)[0]
    # Neighbours are not a rhythm: one delay affected several parts, and too few are long.
    if distance > 1 and len(distances) >= REPEATS and count >= REGULAR * len(distances):
        return distance
    return 1 if len(parts) >= MOST_EQUAL else None


def _rotated(keys: list[Key]) -> list[Key]:
    """A period's kinds, beginning with the rarest, which best marks the beginning."""
    if len(set(keys)) == 1:
        return keys
    counts = Counter(keys)
    first = min(range(len(keys)), key=lambda at: (counts[keys[at]], at))
    return keys[first:] + keys[:first]


def _joined(parts: Sequence[Part]) -> Step:
    if len(parts) == 1:
        return parts[0]
    return Whole(
        duration_ns=sum(part.duration_ns for part in parts),
        bytes=sum(part.bytes for part in parts),
        tensors=sum(part.tensors for part in parts),
        epoch=min(part.epoch for part in parts),
    )


def _is_alike(first: int, second: int) -> bool:
    return abs(first - second) <= TOLERANCE * max(first, second)


def _time(part: Part) -> float:
    return part.duration_ns if 0 < part.duration_ns < math.inf else 0.0
