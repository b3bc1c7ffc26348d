"""The settings that the tuner may move, and how they become points of a unit cube.

A dimension is one setting. On a logarithmic axis from `low` to `high` a value v has the coordinate
ln(v / low) / ln(high / low), so equal distances are equal ratios. Zero needs special treatment:

    zero     meaning                          coordinates
    none     zero is not a value              (axis)
    off      the end of the axis, and a new   (axis, flag); the flag is 1 for zero, else 0, and zero
             mode of operation                sits at the low end
    auto     "the engine chooses", no order   (axis, flag); zero sits in the middle

The flag lets a model learn a jump: without fusion, steps may take twice as long as with the least
threshold.

A setting outside its range (a user's cycle time of 100 ms) keeps a coordinate outside [0, 1]: it
can be measured and modelled, but is never proposed.

No batch has more bytes than a step. So once a step's bytes are known, axes of sizes end there, and
all larger values are the same point (`Space.within`).
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from hvdtune.settings.knobs import KNOBS, Knob, Settings

OFF_CELL = 1 / 16  # the share of the cube that means "off"
RARE = 64  # equal batches of a step; a setting that acts only on shorter ones hardly ever acts
_SIZE_QUANTUM = 4096  # bytes; a page, so that proposed sizes are readable numbers

Value = float | int | bool
Values = dict[str, Value]
Point = tuple[float, ...]


@dataclass(frozen=True)
class Dimension:
    """One setting that may be moved: `key` of the knob, axis, range in the knob's unit."""

    key: str
    scale: str  # "log", "linear" or "boolean"
    low: float
    high: float
    zero: str = "none"  # "none", "off" or "auto"
    quantum: int = 0  # values are whole multiples of it; 0: any number, three significant digits
    at_most: str = ""  # the key of another setting that bounds this one, unless that is 0
    first: float | None = None  # the first value to try in its third of the axis
    acts_on: str = ""  # see `settings.values.Knob`
    saturates: bool = False  # all values above `high` have the same effect

    @property
    def width(self) -> int:
        """How many coordinates of the cube the setting needs."""
        return 1 if self.zero == "none" else 2

    @property
    def zero_at(self) -> float:
        """The position of zero on the axis, if it has a flag."""
        return 0.5 if self.zero == "auto" else 0.0

    @property
    def flag_from(self) -> float:
        """The flag's coordinate from which on it means zero."""
        return 0.5 if self.zero == "auto" else 1 - OFF_CELL

    def encode(self, value: Value) -> Point:
        """The coordinates of a value."""
        if self.scale == "boolean":
            return (1.0 if value else 0.0,)
        if self.zero == "none":
            return (self._axis(float(value)),)
        return (self.zero_at, 1.0) if value == 0 else (self._axis(float(value)), 0.0)

    def decode(self, point: Sequence[float]) -> Value:
        """The value at coordinates; those outside the cube are moved to its surface."""
        position = min(1.0, max(0.0, point[0]))
        if self.scale == "boolean":
            return position >= 0.5
        if self.zero != "none" and point[1] >= self.flag_from:
            return 0
        return self._round(self._value(position))

    def _axis(self, value: float) -> float:
        if self.scale == "linear":
            return (value - self.low) / (self.high - self.low)
        # If zero is not a value, a thousandth of the range's low end stands for it.
        value = max(value, self.low / 1000)
        if self.saturates:
            value = min(value, self.high)
        return math.log(value / self.low) / math.log(self.high / self.low)

    def within(self, step_bytes: float) -> Dimension | None:
        """The part of it that acts on steps of this many bytes; None: no part."""
        if not self.acts_on or step_bytes <= 0:
            return self
        if self.acts_on == "shorter" and self.high * RARE < step_bytes:
            return None
        high = self.quantum * max(math.ceil(step_bytes / self.quantum), 2 * self.low / self.quantum)
        return replace(self, high=high, saturates=True) if high < self.high else self

    def _value(self, position: float) -> float:
        if self.scale == "linear":
            return self.low + position * (self.high - self.low)
        return self.low * (self.high / self.low) ** position

    def _round(self, value: float) -> Value:
        if self.quantum:
            steps = round(value / self.quantum)
            return int(min(self.high, max(self.low, steps * self.quantum)))
        return min(self.high, max(self.low, float(f"{value:.3g}")))


@dataclass(frozen=True)
class Space:
    """All settings that may be moved together."""

    dimensions: tuple[Dimension, ...]

    @property
    def width(self) -> int:
        """How many coordinates a point has."""
        return sum(dimension.width for dimension in self.dimensions)

    @property
    def keys(self) -> tuple[str, ...]:
        """The settings' keys, in order."""
        return tuple(dimension.key for dimension in self.dimensions)

    @property
    def columns(self) -> tuple[str, ...]:
        """The kind of every coordinate.

        "axis": any number; "flag": 0 or 1; "auto" and "off": 0 or 1, and at 1 the coordinate before
        has no meaning and is `Dimension.zero_at`.
        """
        kinds: list[str] = []
        for dimension in self.dimensions:
            kinds.append("flag" if dimension.scale == "boolean" else "axis")
            if dimension.zero != "none":
                kinds.append(dimension.zero)
        return tuple(kinds)

    @property
    def groups(self) -> list[list[int]]:
        """Every setting's coordinates, by number."""
        found: list[list[int]] = []
        at = 0
        for dimension in self.dimensions:
            found.append(list(range(at, at + dimension.width)))
            at += dimension.width
        return found

    def settled(self, points: Any) -> Any:
        """The valid points for any points (n, width) of the cube: flags become 0 or 1."""
        found = points.clip(0.0, 1.0)
        for dimension, group in zip(self.dimensions, self.groups, strict=True):
            if dimension.scale == "boolean":
                found[:, group[0]] = found[:, group[0]] >= 0.5
            elif dimension.zero != "none":
                is_zero = found[:, group[1]] >= dimension.flag_from
                found[:, group[1]] = is_zero
                found[is_zero, group[0]] = dimension.zero_at
        return found

    def encode(self, values: Mapping[str, Value]) -> Point:
        """The point of settings; keys that are not dimensions are ignored."""
        point: list[float] = []
        for dimension in self.dimensions:
            point.extend(dimension.encode(values[dimension.key]))
        return tuple(point)

    def decode(self, point: Sequence[float]) -> Values:
        """The settings at a point, rounded to values people can read."""
        if len(point) != self.width:
            raise ValueError(f"a point of this space has {self.width} coordinates: {len(point)}")
        values: Values = {}
        at = 0
        for dimension in self.dimensions:
            values[dimension.key] = dimension.decode(point[at : at + dimension.width])
            at += dimension.width
        return self.allowed(values)

    def allowed(self, values: Values) -> Values:
        """The same, with values that exceed another setting's value (`at_most`) lowered to it."""
        found = dict(values)
        for dimension in self.dimensions:
            most = found.get(dimension.at_most, 0)
            if most and found[dimension.key] > most:
                found[dimension.key] = most
        return found

    def within(self, step_bytes: float) -> Space:
        """The part of it that acts on steps of this many bytes; all of it if nothing does."""
        found = [dimension.within(step_bytes) for dimension in self.dimensions]
        return Space(tuple(one for one in found if one is not None) or self.dimensions)

    def probes(self, centre: Mapping[str, Value], cells: int, seed: int) -> list[Values]:
        """Changes of one setting each, as {key: value}, to find out what each does by itself.

        Every axis is cut into this many equal cells. A random value from the middle half of each
        cell is taken, except the cell that contains the centre: first the dimension's `first`, if
        it has one, then from the middle outwards. A flag is flipped. They are ordered in rounds:
        one value of every setting, then the next value of every setting.
        """
        rng = random.Random(seed)
        rounds: list[list[Values]] = []
        for dimension in self.dimensions:
            found = _values_beside(dimension, centre[dimension.key], cells, rng)
            rounds.append([{dimension.key: value} for value in found])
        return [row for turn in itertools.zip_longest(*rounds) for row in turn if row is not None]

    def to_json(self) -> list[dict[str, Any]]:
        """The space as plain data; `from_json` reads it."""
        return [asdict(dimension) for dimension in self.dimensions]

    @classmethod
    def from_json(cls, data: Iterable[Mapping[str, Any]]) -> Space:
        """The space that `to_json` wrote."""
        return cls(tuple(Dimension(**row) for row in data))


def _values_beside(
    dimension: Dimension, centre: Value, cells: int, rng: random.Random
) -> list[Value]:
    if dimension.scale == "boolean":
        return [not centre]

    def cell_of(value: Value) -> int:
        encoded = dimension.encode(value)
        is_apart = dimension.zero != "none" and encoded[1] == 1.0
        return -1 if is_apart else min(cells - 1, max(0, int(encoded[0] * cells)))

    found: dict[int, Value] = {}
    if dimension.first is not None and dimension.low <= dimension.first <= dimension.high:
        found[cell_of(dimension.first)] = dimension.first
    rest = (0.0,) * (dimension.width - 1)
    for cell in sorted(range(cells), key=lambda cell: abs(cell - cells // 2)):
        value = dimension.decode(((cell + 0.25 + 0.5 * rng.random()) / cells, *rest))
        found.setdefault(cell, value)
    return [value for cell, value in found.items() if cell != cell_of(centre)]


def build(settings: Settings, can_act: Iterable[str], knobs: Mapping[str, Knob] = KNOBS) -> Space:
    """The space of a run: settings that are tunable, can act here, and are not fixed by the user.

    `can_act` holds the keys that the engine can change while running.
    """
    able = set(can_act)
    found = (
        _within_fixed(_dimension(knob), settings, knobs)
        for key, knob in knobs.items()
        if knob.tunable and key in able and not settings.is_fixed(key)
    )
    return Space(tuple(dimension for dimension in found if dimension.low < dimension.high))


def _within_fixed(dimension: Dimension, settings: Settings, knobs: Mapping[str, Knob]) -> Dimension:
    """The dimension, limited by settings that the user has fixed."""
    low, high = dimension.low, dimension.high
    for other in knobs.values():
        bound = getattr(settings, other.key) if settings.is_fixed(other.key) else 0
        if bound and dimension.at_most == other.key:
            high = min(high, bound)
        if bound and other.at_most == dimension.key:
            low = max(low, bound)
    return replace(dimension, low=low, high=high)


def shipped_defaults(space: Space, knobs: Mapping[str, Knob] = KNOBS) -> Values:
    """The defaults of the space's settings."""
    return {key: knobs[key].default for key in space.keys}


def _dimension(knob: Knob) -> Dimension:
    if knob.kind == "bool":
        return Dimension(knob.key, "boolean", 0, 1)
    if knob.tune_range is None or knob.scale not in ("log", "linear"):
        raise ValueError(f"the tunable setting {knob.key!r} has no range or scale to tune on")
    low, high = knob.tune_range
    if knob.zero_is_auto:
        zero = "auto"
    else:
        # A size of zero switches something off; a time of zero is only a short time.
        zero = "off" if knob.kind == "size" and knob.minimum == 0 else "none"
    quantum = {"size": _SIZE_QUANTUM, "int": 1}.get(knob.kind, 0)
    return Dimension(
        knob.key,
        knob.scale,
        float(low),
        float(high),
        zero,
        quantum,
        knob.at_most or "",
        knob.tune_first,
        knob.acts_on,
    )
