"""Random programs of collectives: what every rank does, decided by a seed.

A program is a sequence of segments. In a segment every rank starts the same operations without
waiting, in an order of its own, then waits for some of what it has under way, then runs one
blocking operation that is the segment's last on all ranks. So no order of events can lock the
ranks, however far they drift apart: whoever is furthest behind only waits for what the others have
started already. Names come from a small pool and so come back, with other types and shapes.

Some programs add a process set in the beginning and remove it in the end; some end with uneven
data: every rank runs a number of steps of its own, then joins. A profile asks for more: larger
tensors, segments that come again with other values as in training, programs that several threads of
a rank run at once.

Nothing here knows the engine or a framework; inputs and results are in random_inputs.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from support.models.reference_model import BOOL, FLOATS, HALVES, INTEGERS, Reduction

Shape = tuple[int, ...]

# Process sets of every program, by the number of ranks; the whole job is number 0.
SETS: dict[int, tuple[tuple[int, ...], ...]] = {
    2: ((0, 1), (1,)),
    3: ((0, 1, 2), (0, 1), (1, 2), (2,)),
    4: ((0, 1, 2, 3), (0, 1), (1, 2, 3), (0, 2), (2, 3), (3,)),
    8: (tuple(range(8)), (0, 1, 2, 3), (1, 3, 5, 7), (2, 4, 5, 6, 7), (0, 7), (6,)),
}
NAMES = ("a", "b", "c", "layer.0/weight", "Ω")
SHAPES: tuple[Shape, ...] = (
    *((), (0,), (1,), (2,), (5,), (3, 0, 2), (7, 3), (4, 1, 5), (33,), (255,), (1000,), (63, 17)),
)
LARGE: tuple[Shape, ...] = ((20_011,), (70_001,), (301, 307))
KINDS = {
    **{"allreduce": 0.45, "allgather": 0.13, "broadcast": 0.12, "alltoall": 0.11},
    **{"reducescatter": 0.13, "sparse": 0.06},
}
GROUPED = ("allreduce", "allgather", "reducescatter")
# Powers of two: sums of what they scale stay exact.
EXACT_PRESCALES = (0.5, 2.0, 4.0)
FACTORS = (0.3, 0.5, 3.0, -2.0)


# A few bytes: what a rank that waits for it can reduce past the coordinator.
SMALL: tuple[Shape, ...] = ((), (1,), (2,), (5,))


@dataclass(frozen=True)
class Profile:
    """What programs are like, beside the everyday mixture."""

    large: tuple[Shape, ...] = LARGE
    large_share: float = 0.04  # of the tensors
    repeats: int = 0  # most times that a segment comes again; 0: none does
    thread: str = ""  # begins all names: other threads of the same ranks run other programs

    @property
    def alone(self) -> bool:
        """Whether a rank runs nothing else meanwhile.

        If it does, every operation has a name of its thread, and the membership stays.
        """
        return not self.thread


EVERYDAY = Profile()


@dataclass(frozen=True)
class Tensor:
    """One tensor of an operation; ``shapes`` has one for each member of the process set."""

    dtype: str
    shapes: tuple[Shape, ...]


@dataclass(frozen=True)
class Mistake:
    """One rank calls the operation with something else than the others, or has joined."""

    what: str
    rank: int
    words: tuple[str, ...]  # what the error must say on all members


@dataclass(frozen=True)
class Operation:
    """One collective of the members of a process set."""

    index: int
    kind: str
    set: int
    ranks: tuple[int, ...]
    name: str | None
    tensors: tuple[Tensor, ...]
    grouped: bool = False
    blocking: bool = False
    in_place: bool = False
    reduction: Reduction = field(default_factory=Reduction)
    exact: bool = True  # sums of the inputs do not depend on their order
    compressed: bool = False
    average: bool | None = None  # the deprecated parameter, instead of op
    root: int = 0
    splits: tuple[tuple[int, ...], ...] | None = None  # [sender][receiver], by place in the set
    mistake: Mistake | None = None
    joined: tuple[int, ...] = ()  # ranks that take part with zeros

    @property
    def key(self) -> tuple[object, ...]:
        """What must not be in flight twice on one rank."""
        return (self.set, self.kind, self.grouped, self.name)

    def describe(self) -> str:
        """One line for a report."""
        tensors = " ".join(f"{t.dtype}{list(dict.fromkeys(t.shapes))}" for t in self.tensors)
        forms = [f for f in ("grouped", "blocking", "in_place", "compressed") if getattr(self, f)]
        return (
            f"operation {self.index}: {self.kind} {self.name!r} of {tensors} over {self.ranks}, "
            f"{self.reduction}, {' '.join(forms) or 'async'}, root {self.root}, "
            f"splits {self.splits}, mistake {self.mistake}, joined {self.joined}"
        )


@dataclass(frozen=True)
class Segment:
    """Operations that are only started, and the blocking one that ends the segment."""

    started: tuple[Operation, ...]
    blocking: Operation | None
    mixed: bool = False  # some ranks start the blocking one and wait for it at once, as they like


@dataclass(frozen=True)
class Program:
    """Everything that one seed decides."""

    seed: int
    size: int
    segments: tuple[Segment, ...]
    added_set: tuple[int, ...] | None = None  # its number follows those of SETS
    steps: tuple[int, ...] | None = None  # by rank: how many of uneven_steps it has; then it joins
    uneven_steps: tuple[Segment, ...] = ()


@dataclass(frozen=True)
class Action:
    """What a rank does next.

    Verbs: start, finish, poll or run an operation; join; add or remove the program's process set.
    """

    verb: str
    operation: Operation | None = None


class _Generator:
    def __init__(self, seed: int, size: int, dtypes: Sequence[str], profile: Profile) -> None:
        self.random = np.random.default_rng([seed, size])
        self.size = size
        self.profile = profile
        self.dtypes = tuple(dtypes)
        self.count = 0
        self.sets = SETS[size]

    def chance(self, probability: float) -> bool:
        return bool(self.random.random() < probability)

    def pick(self, items: Sequence[object]) -> object:
        return items[int(self.random.integers(len(items)))]

    def number(self, low: int, high: int) -> int:
        """From ``low`` to ``high``, both included."""
        return int(self.random.integers(low, high + 1))

    def program(self, seed: int) -> Program:
        added = self.another_set() if self.profile.alone and self.chance(0.3) else None
        if added is not None:
            self.sets = (*self.sets, added)
        segments = tuple(self.segment() for _ in range(self.number(2, 6)))
        if self.profile.repeats:
            segments = tuple(again for segment in segments for again in self.repeated(segment))
        if not (self.profile.alone and self.chance(0.5)):
            return Program(seed, self.size, segments, added)
        steps = tuple(self.number(0, 4) for _ in range(self.size))
        uneven = tuple(self.step(steps, step) for step in range(max(steps)))
        return Program(seed, self.size, segments, added, steps, uneven)

    def repeated(self, segment: Segment) -> Iterator[Segment]:
        """The same calls with other values again and again, as in training.

        Most of them are of the kind that needs no coordinator: small, and waited for.
        """
        yield segment
        if self.chance(0.5):
            last = self.small_allreduce() if self.chance(0.5) else segment.blocking
            steps = Segment(segment.started, last, mixed=last is not segment.blocking)
        else:
            steps = Segment((), self.small_allreduce(), mixed=True)
        for _ in range(self.number(0, self.profile.repeats)):
            last = None if steps.blocking is None else self.once_more(steps.blocking)
            yield Segment(tuple(map(self.once_more, steps.started)), last, steps.mixed)

    def once_more(self, operation: Operation) -> Operation:
        self.count += 1
        return Operation(**{**vars(operation), "index": self.count - 1})

    def small_allreduce(self) -> Operation:
        number = 0 if self.chance(0.5) else self.number(0, len(self.sets) - 1)
        ranks = self.sets[number]
        shapes = (tuple(self.pick(SMALL)),) * len(ranks)
        tensor = Tensor(str(self.pick(self.dtypes)), shapes)
        name = f"{self.profile.thread}small"
        operation = Operation(
            self.count, "allreduce", number, ranks, name, (tensor,), blocking=True
        )
        self.count += 1
        return Operation(**{**vars(self.with_details(operation)), "compressed": False})

    def name(self, may_be_automatic: bool) -> str | None:
        if may_be_automatic and self.chance(0.35) and self.profile.alone:
            return None
        return self.profile.thread + str(self.pick(NAMES))

    def another_set(self) -> tuple[int, ...] | None:
        ranks = tuple(rank for rank in range(self.size) if self.chance(0.6))
        return ranks if ranks and ranks not in self.sets else None

    def step(self, steps: tuple[int, ...], step: int) -> Segment:
        """Allreduces of the whole job, of which some ranks have joined; the last one is waited for.

        What cannot be done with joined ranks is tried, too.
        """
        joined = tuple(rank for rank in range(self.size) if steps[rank] <= step)
        operations: dict[tuple[object, ...], Operation] = {}
        for _ in range(self.number(0, 4)):
            operation = self.of_whole_job("allreduce", joined, blocking=False)
            operations[operation.key if operation.name else (operation.index,)] = operation
        if joined and self.chance(0.3):
            kind = str(self.pick(("allgather", "broadcast", "alltoall", "reducescatter")))
            refused = self.of_whole_job(kind, joined, blocking=False)
            who = f"rank{'s' if len(joined) > 1 else ''} {', '.join(map(str, joined))} joined"
            mistake = Mistake("joined", joined[0], ("is not supported with Join", who))
            operations[refused.index,] = Operation(
                **{**vars(refused), "mistake": mistake, "name": f"refused.{refused.index}"}
            )
        last = self.of_whole_job("allreduce", joined, blocking=True)
        return Segment(tuple(operations.values()), last)

    def of_whole_job(self, kind: str, joined: tuple[int, ...], blocking: bool) -> Operation:
        index = self.count
        self.count += 1
        ranks = self.sets[0]
        name = self.name(may_be_automatic=True)
        grouped = kind in GROUPED and self.chance(0.3)
        tensors = tuple(
            self.tensor(kind, len(ranks)) for _ in range(self.number(1, 5) if grouped else 1)
        )
        operation = Operation(index, kind, 0, ranks, name, tensors, grouped, blocking)
        return Operation(**{**vars(self.with_details(operation)), "joined": joined})

    def segment(self) -> Segment:
        started: dict[tuple[object, ...], Operation] = {}
        for _ in range(self.number(1, 8)):
            operation = self.operation(blocking=False)
            if operation.name is None or operation.key not in started:
                key = operation.key if operation.name else (operation.index,)
                started[key] = operation
        blocking = self.operation(blocking=True) if self.chance(0.8) else None
        return Segment(tuple(started.values()), blocking)

    def operation(self, blocking: bool) -> Operation:
        index = self.count
        self.count += 1
        # Most operations are of all ranks, as in programs.
        set_number = 0 if self.chance(0.5) else self.number(0, len(self.sets) - 1)
        ranks = self.sets[set_number]
        if blocking and self.chance(0.1) and self.profile.alone:
            return Operation(index, "barrier", set_number, ranks, None, (), blocking=True)
        kind = str(self.random.choice(list(KINDS), p=list(KINDS.values())))
        name = self.name(may_be_automatic=kind != "sparse")
        grouped = kind in GROUPED and self.chance(0.3)
        tensors = tuple(
            self.tensor(kind, len(ranks)) for _ in range(self.number(1, 5) if grouped else 1)
        )
        operation = Operation(index, kind, set_number, ranks, name, tensors, grouped, blocking)
        return self.with_mistake(self.with_details(operation))

    def tensor(self, kind: str, members: int) -> Tensor:
        if kind == "sparse":
            shape = (self.number(1, 9), self.number(1, 3))
            return Tensor(str(self.pick(FLOATS)), (shape,) * members)
        dtypes = [d for d in self.dtypes if not (kind == "reducescatter" and d == BOOL)]
        dtype = str(self.pick(dtypes))
        large = self.chance(self.profile.large_share)
        shape = tuple(self.pick(self.profile.large if large else SHAPES))
        if kind in ("allreduce", "broadcast"):
            return Tensor(dtype, (shape,) * members)
        shape = shape or (3,)
        if kind == "reducescatter":
            return Tensor(dtype, (shape,) * members)
        rows = [self.number(0, max(shape[0], 1)) for _ in range(members)]
        return Tensor(dtype, tuple((count, *shape[1:]) for count in rows))

    def with_details(self, operation: Operation) -> Operation:
        """The arguments that belong to the operation's kind."""
        changes: dict[str, object] = {}
        if operation.kind in ("allreduce", "reducescatter"):
            changes.update(self.reduction(operation))
        if operation.kind == "sparse":
            changes["reduction"] = Reduction(str(self.pick(("Average", "Sum"))))
        if operation.kind in ("allreduce", "broadcast"):
            changes["in_place"] = self.chance(0.4) and not changes.get("compressed")
        if operation.kind == "broadcast":
            changes["root"] = self.pick(operation.ranks)
        if operation.kind == "alltoall":
            changes.update(self.splits(operation))
        return Operation(**{**vars(operation), **changes})

    def reduction(self, operation: Operation) -> dict[str, object]:
        dtypes = {tensor.dtype for tensor in operation.tensors}
        ops = ["Sum", "Average"]
        if operation.kind == "allreduce":
            ops += ["Min", "Max", "Product"]
        if BOOL in dtypes:
            ops.remove("Average")
        op = str(self.pick(ops))
        exact = dtypes.isdisjoint(FLOATS) or self.chance(0.7)
        adasum = operation.kind == "allreduce" and operation.set == 0 and dtypes <= set(FLOATS)
        if adasum and self.size & (self.size - 1) == 0 and self.chance(0.3):
            op, exact = "Adasum", False
        prescale = postscale = 1.0
        if BOOL not in dtypes and self.chance(0.4):
            exactly = exact and not dtypes.isdisjoint(FLOATS)
            prescale = float(self.pick((1.0, *(EXACT_PRESCALES if exactly else FACTORS))))
            postscale = float(self.pick((1.0, *FACTORS)))
        deprecated = operation.kind == "allreduce" and op in ("Sum", "Average")
        return {
            "reduction": Reduction(op, prescale, postscale),
            "exact": exact,
            "compressed": operation.blocking and exact and self.chance(0.2),
            "average": op == "Average" if deprecated and self.chance(0.1) else None,
        }

    def splits(self, operation: Operation) -> dict[str, object]:
        members = len(operation.ranks)
        tensor = operation.tensors[0]
        if self.chance(0.3):  # equal parts
            shapes = tuple((s[0] * members, *s[1:]) for s in tensor.shapes)
            return {"tensors": (Tensor(tensor.dtype, shapes),)}
        table = []
        for shape in tensor.shapes:
            rows = [self.number(0, shape[0] // members + 1) for _ in range(members)]
            while sum(rows) > shape[0]:
                rows[int(np.argmax(rows))] -= 1
            table.append(tuple(rows))
        return {"splits": tuple(table)}

    def with_mistake(self, operation: Operation) -> Operation:
        kinds = {
            "allreduce": ("dtype", "shape", "op", "prescale"),
            "broadcast": ("dtype", "shape", "root"),
            "allgather": ("dtype", "dimensions"),
            "reducescatter": ("dtype", "shape", "prescale"),
        }
        usable = (
            operation.blocking
            and operation.kind in kinds
            and not operation.in_place
            and not operation.compressed
            and len(operation.ranks) > 1
            and all(tensor.dtype not in (BOOL, *HALVES) for tensor in operation.tensors)
        )
        if not usable or not self.chance(0.12):
            return operation
        what = str(self.pick(kinds[operation.kind]))
        words = {
            "dtype": "Mismatched data types",
            "shape": f"Mismatched {operation.kind.upper()} tensor shapes",
            "dimensions": "tensor of rank",
            # Adasum is an operation of its own.
            "op": "Mismatched operations"
            if operation.reduction.op == "Adasum"
            else "Mismatched reduction operation",
            "prescale": "Mismatched prescale and/or postscale factors",
            "root": "Mismatched BROADCAST root ranks",
        }[what]
        rank = int(self.pick(operation.ranks))
        mistake = Mistake(what, rank, (words, f"rank {rank} has"))
        return Operation(**{**vars(operation), "mistake": mistake, "average": None})


def generate(
    seed: int,
    size: int,
    dtypes: Sequence[str] = (*FLOATS, *INTEGERS, BOOL),
    profile: Profile = EVERYDAY,
) -> Program:
    """The program of a seed for ``size`` ranks, using these types."""
    return _Generator(seed, size, dtypes, profile).program(seed)


def actions_of(program: Program, rank: int) -> Iterator[Action]:
    """What ``rank`` does, in its own order."""
    random = np.random.default_rng([program.seed, program.size, 1 + rank])
    under_way: dict[tuple[object, ...], Operation] = {}
    if program.added_set is not None:
        yield Action("add")
    for segment in program.segments:
        yield from _segment_actions(segment, rank, random, under_way)
    if program.steps is not None:
        for segment in program.uneven_steps[: program.steps[rank]]:
            yield from _segment_actions(segment, rank, random, under_way)
        yield Action("join")
    rest = list(under_way.values())
    for index in random.permutation(len(rest)):
        yield Action("finish", rest[int(index)])
    if program.added_set is not None:
        yield Action("remove")


def _segment_actions(
    segment: Segment,
    rank: int,
    random: np.random.Generator,
    under_way: dict[tuple[object, ...], Operation],
) -> Iterator[Action]:
    def begin(verb: str, operation: Operation) -> Iterator[Action]:
        key = operation.key if operation.name else (operation.index,)
        if key in under_way:  # the name must be free first
            yield Action("finish", under_way.pop(key))
        yield Action(verb, operation)
        if verb == "start":
            under_way[key] = operation

    mine = [operation for operation in segment.started if rank in operation.ranks]
    for operation in _own_order(mine, random):
        yield from begin("start", operation)
        if random.random() < 0.15:
            yield Action("poll", operation)
    for key in [key for key in under_way if random.random() < 0.3]:
        yield Action("finish", under_way.pop(key))
    if segment.blocking is None or rank not in segment.blocking.ranks:
        return
    if segment.mixed and random.random() < 0.4:
        apart = Operation(**{**vars(segment.blocking), "blocking": False})
        yield from begin("start", apart)
        yield Action("finish", under_way.pop(apart.key))
    else:
        yield from begin("run", segment.blocking)


def _own_order(operations: Sequence[Operation], random: np.random.Generator) -> list[Operation]:
    """A random order; unnamed operations of one set and kind stay in order, for that is how the
    ranks know which is which."""
    order = [operations[int(i)] for i in random.permutation(len(operations))]
    for family in {op.key for op in operations if op.name is None}:
        places = [place for place, op in enumerate(order) if op.key == family]
        inorder = sorted((order[place] for place in places), key=lambda op: op.index)
        for place, operation in zip(places, inorder, strict=True):
            order[place] = operation
    return order
