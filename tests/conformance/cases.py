"""The table of cases: every operation, in every form, with what its result must be.

A case is complete without a face and without ranks: ``given`` is what one of them brings, and
``faults`` compares what came back with NumPy. In the quick tier the forms of an operation take
turns over types, shapes and operators; the thorough one has all of them, with a name or without,
but for large tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
from conformance.face import (
    ALLGATHERS,
    ALLREDUCES,
    ALLTOALLS,
    BROADCASTS,
    GROUPED,
    GROUPED_ALLGATHERS,
    GROUPED_ALLREDUCES,
    GROUPED_REDUCESCATTERS,
    REDUCESCATTERS,
    Face,
    operation,
)
from conformance.reference import (
    FLOATS,
    LARGEST,
    rank_input,
    rows_of_place,
    wrong,
)

OPS = ("Sum", "Average", "Min", "Max", "Product")
SCALES = ((0.5, 1.0), (1.0, 3.0), (0.25, 2.5))
SHAPES: tuple[tuple[int, ...], ...] = (
    *((), (0,), (1,), (5,), (3, 0, 2), (17, 3, 2), (1000,)),
    (150_001,),  # several chunks, and an end that fits in no vector
)
# What a face makes of a shape is the same for any number of ranks: up to SMALL of them see few.
FEW: tuple[tuple[int, ...], ...] = ((), (0,), (17, 3, 2), (1000,))
SMALL = 2
LARGE = 100_000  # elements
MIXED = "mixed"  # the type of groups, in keys

Member = tuple[str, tuple[int, ...]]  # type and shape
Key = tuple[str, str]  # form and type


@dataclass(frozen=True)
class Case:
    """One call. Shapes are those of the first place; ``_shape`` has the others'."""

    form: str
    members: tuple[Member, ...]
    op: str = ""
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = 0  # a place
    splits: str = ""  # how they are given
    named: bool = False

    @property
    def key(self) -> Key:
        """What a test is named after."""
        return self.form, MIXED if self.form in GROUPED else self.members[0][0]

    @property
    def same_everywhere(self) -> bool:
        """Whether all ranks get the same."""
        return operation(self.form) in ("allreduce", "allgather", "broadcast")

    def __str__(self) -> str:
        parts = [self.form, *(f"{dtype}{list(shape)}" for dtype, shape in self.members[:3])]
        if self.op:
            parts += [self.op, f"prescale={self.prescale:g}", f"postscale={self.postscale:g}"]
        if operation(self.form) == "broadcast":
            parts.append(f"root={self.root}")
        if self.splits:
            parts.append(f"splits={self.splits}")
        return " ".join([*parts, "named" if self.named else "unnamed"])

    def given(self, rank: int, place: int, size: int) -> list[np.ndarray]:
        """What ``rank`` brings, at its place among ``size`` members of the process set."""
        return [
            rank_input(dtype, rank, self._shape(dtype, shape, place, size), member)
            for member, (dtype, shape) in enumerate(self.members)
        ]

    def _shape(self, dtype: str, shape: tuple[int, ...], place: int, size: int) -> tuple[int, ...]:
        kind = operation(self.form)
        if kind == "allgather":
            # Some bring nothing; who does depends on the type.
            rows = shape[0] if shape[0] <= 1 and not place % 2 else max(0, shape[0] - 2 * place)
            return (0 if (place + len(dtype)) % 3 == 1 else rows, *shape[1:])
        if kind == "alltoall" and not self.splits:
            return (shape[0] // size * size, *shape[1:])
        return shape

    def splits_of(self, place: int, size: int) -> list[int]:
        """Rows for each receiver: uneven, some none, and not always all that there are."""
        rows = self.members[0][1][0]
        random = np.random.default_rng((place, size, rows))
        weights = random.random(size) * (random.random(size) < 0.8)
        if weights.sum() == 0:
            return [0] * size
        shares = np.floor(weights / weights.sum() * rows * random.choice([1.0, 0.9]))
        return [int(share) for share in shares]

    def faults(
        self, results: Sequence[np.ndarray], ranks: Sequence[int], place: int
    ) -> Iterator[str]:
        """What is wrong with the values of the results, at a place of the set ``ranks``."""
        inputs = [self.given(rank, at, len(ranks)) for at, rank in enumerate(ranks)]
        for member, (dtype, shape) in enumerate(self.members):
            mine = [brought[member] for brought in inputs]
            expected = self._shape_of_result(mine, place)
            got = results[member]
            if got.shape != expected:
                yield f"member {member}: shape {list(got.shape)}, not {list(expected)}"
                continue
            count = self._wrong(got, mine, dtype, place)
            if count:
                what = (
                    f"member {member}, {dtype}{list(shape)}: {count} of {got.size} elements wrong"
                )
                yield f"{what}, first {got.reshape(-1)[:4].tolist()}"

    def received(self, place: int, size: int) -> list[int]:
        """The rows that come from each sender of an alltoall."""
        if not self.splits:
            return [self.members[0][1][0] // size] * size
        return [self.splits_of(sender, size)[place] for sender in range(size)]

    def _shape_of_result(self, inputs: Sequence[np.ndarray], place: int) -> tuple[int, ...]:
        kind, tail = operation(self.form), inputs[0].shape[1:]
        if kind == "allgather":
            return (sum(x.shape[0] for x in inputs), *tail)
        if kind == "alltoall":
            return (sum(self.received(place, len(inputs))), *tail)
        if kind == "reducescatter":
            mine = rows_of_place(inputs[0].shape[0], place, len(inputs))
            return (mine.stop - mine.start, *tail)
        return inputs[0].shape

    def _wrong(self, got: np.ndarray, inputs: Sequence[np.ndarray], dtype: str, place: int) -> int:
        kind, size = operation(self.form), len(inputs)
        factors = (self.op, self.prescale, self.postscale)
        if kind == "allreduce":
            if got.size > 10_000 and self.op != "Adasum":
                # All ranks have the same: each looks at its share of it.
                share = rows_of_place(got.size, place, size)
                parts = [x.reshape(-1)[share] for x in inputs]
                return wrong(got.reshape(-1)[share], parts, dtype, *factors)
            return wrong(got, inputs, dtype, *factors)
        if kind == "reducescatter":
            mine = rows_of_place(inputs[0].shape[0], place, size)
            return wrong(got, [x[mine] for x in inputs], dtype, *factors)
        if kind == "broadcast":
            return int(np.count_nonzero(got != inputs[self.root]))
        if kind == "allgather":
            return int(np.count_nonzero(got != np.concatenate(inputs)))
        splits = [self.splits_of(sender, size) for sender in range(size)]
        if not self.splits:
            splits = [[x.shape[0] // size] * size for x in inputs]
        blocks = []
        for x, rows in zip(inputs, splits, strict=True):
            start = sum(rows[:place])
            blocks.append(x[start : start + rows[place]])
        return int(np.count_nonzero(got != np.concatenate(blocks)))


def ops_of(dtype: str) -> tuple[str, ...]:
    """bool can be reduced, but not averaged."""
    return tuple(op for op in OPS if not (dtype == "bool" and op == "Average"))


def _shapes(face: Face, size: int, thorough: bool, rows: bool = False) -> list[tuple[int, ...]]:
    """The shapes of single forms: with a first dimension only, if these need ``rows``."""
    found: tuple[tuple[int, ...], ...] = (*SHAPES, (LARGEST,))
    if not thorough and (face.narrow or size <= SMALL):
        found = FEW if size <= SMALL else (*FEW, (LARGEST,))
    return [shape for shape in found if shape or not rows]


class Turns:
    """Gives every call its forms: all of them, or one after the other.

    In a thorough table, each of the LARGE shapes still has them one after the other: from type to
    type and operator to operator. All of them would take most of the time.
    """

    def __init__(self, face: Face, forms: Sequence[str], thorough: bool) -> None:
        self._forms = [form for form in forms if form in face.forms]
        self._thorough = thorough
        self._turns: Counter[tuple[int, ...]] = Counter()

    def __call__(self, shape: tuple[int, ...] = ()) -> list[tuple[str, bool]]:
        """(form, whether it is given a name), for a tensor of this shape."""
        kind = shape if self._thorough else ()
        self._turns[kind] += 1
        if self._thorough and prod(shape) < LARGE:
            first = self._turns[kind]  # a name is on and off for each form
            return [(form, bool((first + at) % 2)) for at, form in enumerate(self._forms)]
        if not self._forms:
            return []
        turn, count = self._turns[kind], len(self._forms)
        # A name is on and off for each form.
        return [(self._forms[turn % count], bool((turn // count) % 2))]


def allreduce(face: Face, size: int, thorough: bool) -> Iterator[Case]:
    """Every type, shape and operator."""
    turns = Turns(face, ALLREDUCES, thorough)
    for index, (dtype, shape) in enumerate(product(face.dtypes, _shapes(face, size, thorough))):
        ops = ops_of(dtype)
        if shape == (LARGEST,) and not thorough:
            ops = (ops[index % len(ops)],)
        for op in ops:
            for form, named in turns(shape):
                yield Case(form, ((dtype, shape),), op, named=named)


def scaled_allreduce(face: Face, size: int, thorough: bool) -> Iterator[Case]:
    """Factors before and after, with every operator and form."""
    turns = Turns(face, ALLREDUCES, thorough)
    types = [dtype for dtype in face.dtypes if dtype != "bool"]
    for dtype, (before, after), op in product(types, SCALES, OPS):
        for form, named in turns():
            yield Case(form, ((dtype, (1000,)),), op, before, after, named=named)
    for form, dtype in product(ALLREDUCES, types):
        if form in face.forms:
            yield Case(form, ((dtype, (37,)),), "Sum", 0.5, 3.0)
            yield Case(form, ((dtype, (37,)),), "Average", 1.0, 2.0, named=True)
    for dtype in ("int32", "float16", "float32") if thorough else ():
        for (before, after), op in product(SCALES, OPS):
            yield Case("allreduce", ((dtype, (LARGEST,)),), op, before, after)


def _group_members(face: Face, counts: Sequence[int], truths: bool) -> tuple[Member, ...]:
    types = [dtype for dtype in face.dtypes if truths or dtype != "bool"]
    return tuple((dtype, (count,)) for count in counts for dtype in types)


def grouped_allreduce(face: Face, size: int, thorough: bool) -> Iterator[Case]:
    """Groups of all types and many sizes, for every operator and form."""
    plain = _group_members(face, (1000, 0, 1, 4099), truths=True)
    numbers = _group_members(face, (1000, 0, 1, 4099), truths=False)
    most = (LARGEST if thorough else 150_001,)
    large: tuple[Member, ...] = (("float32", most), ("int64", most))
    shaped: tuple[Member, ...] = (("float32", (5,)), ("int64", (2, 3)), ("float64", ()))
    for form, op in product(GROUPED_ALLREDUCES, OPS):
        if form in face.forms:
            yield Case(form, (*numbers, *large), op, 1.0, 2.0, named=True)
            yield Case(form, plain if op != "Average" else numbers, op)
            yield Case(form, shaped, op, 0.5, 1.0)


def allgather(face: Face, size: int, thorough: bool) -> Iterator[Case]:
    """Every type and shape, with another number of rows on every rank."""
    turns = Turns(face, ALLGATHERS, thorough)
    for dtype, shape in product(
        face.dtypes, [*_shapes(face, size, thorough, rows=True), (4, 0), (7, 2, 2)]
    ):
        if shape == (LARGEST,):
            shape = (LARGEST // size,)
        for form, named in turns(shape):
            yield Case(form, ((dtype, shape),), named=named)


def grouped_allgather(face: Face, size: int, thorough: bool) -> Iterator[Case]:
    """Groups of all types, with another number of rows on every rank."""
    members = (*_group_members(face, (1000, 1, 0), truths=True), ("float32", (4, 2, 3)))
    for form, named in product(GROUPED_ALLGATHERS, (False, True)):
        if form in face.forms:
            yield Case(form, members, named=named)


def broadcast(face: Face, size: int, thorough: bool) -> Iterator[Case]:
    """Every type and shape from every root; the largest take the roots in turn."""
    turns = Turns(face, BROADCASTS, thorough)
    for index, (dtype, shape) in enumerate(product(face.dtypes, _shapes(face, size, thorough))):
        is_large = prod(shape) > 1000
        for root in [index % size] if is_large else range(size):
            for form, named in turns(shape):
                yield Case(form, ((dtype, shape),), root=root, named=named)


def alltoall(face: Face, size: int, thorough: bool) -> Iterator[Case]:
    """Every type and shape with even parts, and with splits in every form that they may have."""
    turns = Turns(face, ALLTOALLS, thorough)
    kinds = ("", "list", "tuple", "tensor")
    for dtype, shape in product(face.dtypes, [*_shapes(face, size, thorough, rows=True), (12, 2)]):
        for splits in ("", "list") if prod(shape) > 1000 else kinds:
            for form, named in turns(shape):
                yield Case(form, ((dtype, shape),), splits=splits, named=named)


def reducescatter(face: Face, size: int, thorough: bool) -> Iterator[Case]:
    """Every type and shape, Sum and Average, with factors and without."""
    turns = Turns(face, REDUCESCATTERS, thorough)
    types = [dtype for dtype in face.dtypes if dtype != "bool"]
    shapes = [*_shapes(face, size, thorough, rows=True), (2 * size + 1, 4), (2 * size, 3)]
    for dtype, shape, op in product(types, shapes, OPS[:2]):
        for scale in ((1.0, 1.0), (0.5, 3.0)):
            if scale == (1.0, 1.0) or prod(shape) <= 1000:
                for form, named in turns(shape):
                    yield Case(form, ((dtype, shape),), op, *scale, named=named)


def grouped_reducescatter(face: Face, size: int, thorough: bool) -> Iterator[Case]:
    """Groups of all types but bool."""
    members = (*_group_members(face, (1003, 1, 0), truths=False), ("float32", (5, 3)))
    for form, op, named in product(GROUPED_REDUCESCATTERS, OPS[:2], (False, True)):
        if form in face.forms:
            yield Case(form, members, op, 0.5 if named else 1.0, 2.0 if named else 1.0, named=named)


def adasum(face: Face, size: int, thorough: bool) -> Iterator[Case]:
    """Floating types, where the number of ranks is a power of two."""
    if size & (size - 1):
        return
    types = [dtype for dtype in face.dtypes if dtype in FLOATS]
    for form, dtype in product(ALLREDUCES, types):
        if form in face.forms:
            for shape, after in (((17, 3), 1.0), ((), 2.0), ((0,), 1.0)):
                yield Case(form, ((dtype, shape),), "Adasum", 1.0, after, named=bool(shape))
    group = tuple((dtype, (n,)) for dtype in types for n in (33, 1, 1001))
    for form in GROUPED_ALLREDUCES:
        if form in face.forms:
            yield Case(form, group, "Adasum")


OPERATIONS = {
    function.__name__: function
    for function in (
        *(allreduce, scaled_allreduce, grouped_allreduce, allgather, grouped_allgather),
        *(broadcast, alltoall, reducescatter, grouped_reducescatter, adasum),
    )
}


def keys(face: Face) -> list[Key]:
    """What a test of one case's result can be named after."""
    found: dict[Key, None] = {}
    for make in OPERATIONS.values():
        found |= dict.fromkeys(case.key for case in make(face, SMALL + 1, False))
    return list(found)


def of_sets(face: Face) -> Iterator[Case]:
    """What every process set is tested with: every form, under one name and without any."""
    for form in face.forms:
        kind = operation(form)
        for dtype in ("float32", "int64"):
            if dtype not in face.dtypes:
                continue
            members: tuple[Member, ...] = ((dtype, (12, 2)),)
            if form in GROUPED:
                members = ((dtype, (12, 2)), ("float64", (7,)))
            yield Case(
                form,
                members,
                {"allreduce": "Average", "reducescatter": "Sum"}.get(kind, ""),
                root=-1,
                splits="list" if kind == "alltoall" and dtype == "int64" else "",
                named=dtype == "float32",
            )
