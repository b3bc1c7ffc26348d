"""The rank program of every face: runs blocks of the table and reports all that was wrong.

A fault does not end the program: all ranks go on with the next case, unless one of them raises
where the others wait. What runs is printed, so that the output of a job that hangs says where.
"""

from __future__ import annotations

import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from conformance import cases, gradients, training
from conformance.cases import Case
from conformance.face import (
    ALL_REDUCING,
    BROADCASTS,
    FORMS,
    GROUPED,
    Face,
    family,
    operation,
)
from conformance.mistakes import (
    DISAGREEMENTS,
    MISTAKES,
    NAMES_THE_MEMBER,
    NOTHING,
    Outcome,
    applies,
    arguments_of,
    outcome,
)

Key = tuple[str, ...]
MEMBERS = ([0, 1], [1, 2], [2], [0, 2])  # process sets of 3 ranks or more
OF_TWO = ([0], [1])  # of 2


@dataclass
class Report:
    """What one rank found."""

    cases: dict[Key, int] = field(default_factory=lambda: defaultdict(int))
    faults: dict[Key, list[str]] = field(default_factory=dict)
    same: list[int] = field(default_factory=list)
    """Digests of results that must be the same on all ranks."""
    own: list[int] = field(default_factory=list)
    """Digests of the other results."""
    outcomes: dict[Key, Outcome] = field(default_factory=dict)
    """What mistakes raised."""

    def fault(self, key: Key, text: str) -> None:
        self.faults.setdefault(key, []).append(text)

    def expect(self, key: Key, good: bool, text: object) -> None:
        """Count a case; a fault unless it is good."""
        self.cases[key] += 1
        if not good:
            self.fault(key, str(text))

    @property
    def all_faults(self) -> list[str]:
        """For tests of one operation."""
        return [f"{' '.join(key)}: {text}" for key, texts in self.faults.items() for text in texts]


def as_splits(face: Face, rows: list[int], how: str) -> Any:
    """The splits of a case in the form it wants."""
    if how == "tensor":
        return face.tensor(np.array(rows, np.int32), "int32")
    return {"": None, "list": rows, "tuple": tuple(rows)}[how]


class Runner:
    """Runs cases with a face."""

    def __init__(self, face: Face, thorough: bool) -> None:
        self.face = face
        self.hvd = face.hvd
        self.thorough = thorough
        self.report = Report()

    def begin(self, case: Case, process_set: Any = None) -> Callable[[], None]:
        """Call the case's form; what it returns waits for the result and checks it."""
        face, hvd = self.face, self.hvd
        process_set = process_set or hvd.global_process_set
        ranks = process_set.ranks
        place = ranks.index(hvd.rank())
        given = case.given(hvd.rank(), place, len(ranks))
        tensors = [
            face.tensor(values, dtype)
            for values, (dtype, _) in zip(given, case.members, strict=True)
        ]
        arguments: dict[str, Any] = {"process_set": process_set}
        if case.named:
            arguments["name"] = " ".join(case.key)
        if case.op:
            arguments["op"] = getattr(hvd, case.op)
            if (case.prescale, case.postscale) != (1.0, 1.0):
                arguments["prescale_factor"] = case.prescale
                arguments["postscale_factor"] = case.postscale
        if operation(case.form) == "broadcast":
            arguments["root_rank"] = ranks[case.root]
        if case.splits:
            arguments["splits"] = as_splits(face, case.splits_of(place, len(ranks)), case.splits)
        result = face.call(case.form, tensors, **arguments)

        def finish() -> None:
            got = hvd.synchronize(result) if "_async" in case.form else result
            for text in self.check(case, given, tensors, got, ranks, place):
                self.report.fault(case.key, f"{case}, ranks {ranks}: {text}")

        return finish

    def run(self, case: Case, process_set: Any = None) -> None:
        """The case, to its end."""
        self.report.cases[case.key] += 1
        try:
            self.begin(case, process_set)()
        except Exception as error:
            self.report.fault(case.key, f"{case}: {type(error).__name__}: {error}")

    def check(
        self,
        case: Case,
        given: Sequence[np.ndarray],
        tensors: list[Any],
        got: Any,
        ranks: Sequence[int],
        place: int,
    ) -> Iterator[str]:
        """What is wrong with a form's result."""
        face = self.face
        if operation(case.form) == "alltoall" and (case.splits or "_async" in case.form):
            if not isinstance(got, tuple) or len(got) != 2:
                yield f"returned a {type(got).__name__}, not a pair"
                return
            got, received = got
            expected = case.received(place, len(ranks))
            if face.dtype(received) != "int32" or face.values(received).tolist() != expected:
                yield f"received splits {received}, not {expected}"
        if case.form in GROUPED:
            container = face.container(case.form)
            if type(got) is not container:
                yield f"returned a {type(got).__name__}, not a {container.__name__}"
        results = list(got) if case.form in GROUPED else [got]
        if len(results) != len(tensors):
            yield f"{len(results)} results for {len(tensors)} tensors"
            return
        in_place = case.form.endswith("_")
        for member, (tensor, result, brought) in enumerate(
            zip(tensors, results, given, strict=True)
        ):
            if in_place and result is not tensor:
                yield f"member {member}: another tensor than the one that was given"
            if not in_place:
                now = face.values(tensor)
                if now.shape != brought.shape or not np.array_equal(now, brought):
                    yield f"member {member}: the input has changed"
            if not isinstance(result, face.kind):
                yield f"member {member}: a {type(result).__name__}"
                return
            if face.dtype(result) != case.members[member][0]:
                yield f"member {member}: {face.dtype(result)}, not {case.members[member][0]}"
        values = [face.values(tensor) for tensor in (tensors if in_place else results)]
        yield from case.faults(values, ranks, place)
        everywhere = case.same_everywhere and len(ranks) == self.hvd.size()
        digests = self.report.same if everywhere else self.report.own
        digests.extend(zlib.crc32(np.ascontiguousarray(x).tobytes()) for x in values)

    # ---- blocks ----

    def operations(self, names: Sequence[str]) -> None:
        """Blocks of ``cases.OPERATIONS``."""
        face, hvd = self.face, self.hvd
        for name in names:
            print(name, flush=True)
            for case in cases.OPERATIONS[name](face, hvd.size(), self.thorough):
                self.run(case)
            if name == "adasum" and hvd.size() in (1, 2):
                integers = [face.ones(2, dtype="int32")]
                seen = outcome(lambda i=integers: face.complete("allreduce", i, op=hvd.Adasum))
                self.report.outcomes["adasum", "int32"] = seen
            hvd.barrier()

    def groups(self) -> None:
        """Groups of nothing, and those that can be gone through only once."""
        hvd, face, key = self.hvd, self.face, ("groups", "mixed")
        for form in GROUPED:
            if form in face.forms:
                got = face.complete(form, [])
                container = face.container(form)
                # PyTorch's script may see the empty list that Horovod gives.
                good = type(got) is container or form == "grouped_allgather"
                self.report.expect(key, good and not got, f"{form} of nothing: {got!r}")
                if "_async" not in form:
                    got = face.complete(form, iter(face.group()), name="iterator")
                    self.report.expect(key, len(got) == 2, f"{form} of an iterator")
        # Described in one message at its first use, however many members it has.
        large = [face.tensor(np.full((1, 1, 1, 2), i), "int32") for i in range(8000)]
        for _ in range(2):
            got = hvd.grouped_allreduce(large, op=hvd.Max, name="large")
            same = all(face.values(x)[0, 0, 0, 1] == i for i, x in enumerate(got))
            self.report.expect(key, same and len(got) == len(large), "a large group")

    def averages(self) -> None:
        """Average is the default, and ``average`` another word for it."""
        import warnings

        face, size = self.face, self.hvd.size()
        mean = (size - 1) / 2
        for form in ALL_REDUCING:
            if form not in face.forms:
                continue
            for average, expected in ((None, mean), (True, mean), (False, mean * size)):
                tensor = face.tensor(np.full(4, float(self.hvd.rank())), "float64")
                with warnings.catch_warnings(record=True) as seen:
                    warnings.simplefilter("always")
                    got = face.complete(form, [tensor], average=average)
                got = face.values(got[0] if form in GROUPED else got)
                key = (form, "average")
                self.report.expect(key, (got == expected).all(), f"average={average}: {got}")
                deprecated = [w for w in seen if w.category is DeprecationWarning]
                self.report.expect(key, len(deprecated) == (average is not None), deprecated)
                for warning in deprecated:
                    # It must name the caller's file: Python hides it otherwise.
                    here = warning.filename.endswith("face.py") and "op=" in str(warning.message)
                    self.report.expect(key, here, warning)
        for form in ("reducescatter", "reducescatter_async", "grouped_reducescatter"):
            if form not in face.forms:
                continue
            call = getattr(self.hvd, form)
            rows = face.tensor(np.full(size, float(self.hvd.rank())), "float64")
            got = call([rows] if form in GROUPED else rows)
            got = self.hvd.synchronize(got) if "_async" in form else got
            got = face.values(got[0] if form in GROUPED else got)
            self.report.expect((form, "average"), got.tolist() == [mean], got)

    def sets(self, process_sets: Sequence[Any]) -> None:
        """Every form in every set, all under the same names; those of a set do not wait."""
        hvd = self.hvd
        mine = [one for one in [hvd.global_process_set, *process_sets] if one.included()]
        for case in cases.of_sets(self.face):
            self.report.cases[(case.form, "sets")] += 1
            before = len(self.report.faults.get(case.key, ()))
            try:
                if "_async" in case.form:
                    for finish in reversed([self.begin(case, one) for one in mine]):
                        finish()
                else:
                    for one in mine:
                        self.begin(case, one)()
            except Exception as error:
                self.report.fault(case.key, f"{case}: {type(error).__name__}: {error}")
            for text in self.report.faults.get(case.key, [])[before:]:
                self.report.fault((case.form, "sets"), text)
        for one in process_sets:
            key = ("sets", "sets")
            place = one.ranks.index(hvd.rank()) if one.included() else None
            self.report.expect(key, one.included() == (place is not None), one)
            if place is not None:
                self.report.expect(key, (one.rank(), one.size()) == (place, len(one.ranks)), one)
                hvd.barrier(process_set=one)
                root = one.ranks[-1]
                got = hvd.broadcast_object({"from": hvd.rank()}, root, process_set=one)
                self.report.expect(key, got == {"from": root}, got)
            for form in self.face.forms:
                arguments = {"name": "outside", "process_set": one}
                if place is not None:
                    # Ranks are global ones.
                    if form in BROADCASTS:
                        arguments["root_rank"] = min({0, 1, 2} - {*one.ranks})
                        seen = outcome(
                            lambda f=form, a=arguments: self.face.call(f, self.face.group(), **a)
                        )
                        self.report.outcomes["root outside", form, str(one.ranks)] = seen
                        arguments["root_rank"] = one.ranks[0]
                    # A caller outside does no harm to the members.
                    self.face.complete(form, self.face.group(), **arguments)
                    continue
                seen = outcome(
                    lambda f=form, a=arguments: self.face.call(f, self.face.group(), **a)
                )
                self.report.outcomes["outside", form] = seen
            if place is None:
                seen = outcome(lambda one=one: hvd.barrier(process_set=one))
                self.report.outcomes["outside", "barrier"] = seen
        self.alive("sets")

    def special(self) -> None:
        """NaN wins over numbers in Min and Max on every rank; infinities and zeros pass."""
        hvd, face = self.hvd, self.face
        values = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0]
        functions = {"Min": np.minimum, "Max": np.maximum, "Sum": np.add}
        first, second = np.repeat(values, len(values)), np.tile(values, len(values))
        for dtype in ("float16", "bfloat16", "float32", "float64"):
            if dtype not in face.dtypes:
                continue
            for op, function in functions.items():
                for holder in range(hvd.size()):
                    mine = face.tensor(first if hvd.rank() == holder else second, dtype)
                    got = face.values(hvd.allreduce(mine, op=getattr(hvd, op)))
                    expected = first
                    with np.errstate(invalid="ignore"):
                        for _ in range(hvd.size() - 1):
                            expected = function(expected, second)
                    same = np.array_equal(got, expected, equal_nan=True)
                    self.report.expect((f"special {op}", dtype), same, f"holder {holder}: {got}")

    def handles(self) -> None:
        """Handles: numbers that grow, can be asked, and give their result once."""
        if not self.face.asynchronous:
            return
        hvd, face, key = self.hvd, self.face, ("handles", "float32")
        expect = self.report.expect
        first = hvd.allreduce_async(face.ones(2))
        second = hvd.allreduce_async(face.ones(2))
        expect(key, type(first) is int and second > first > 0, (first, second))
        while not hvd.poll(second):
            time.sleep(0)
        expect(key, face.values(hvd.synchronize(second)).tolist() == [1, 1], "result")
        expect(key, hvd.synchronize(second) is None, "a second result")
        for unknown in (second, 0, -1, 987_654, None, "5"):
            expect(key, hvd.synchronize(unknown) is None, f"synchronize({unknown!r})")
            kind, text = outcome(lambda u=unknown: hvd.poll(u))
            good = kind == "ValueError" and "was not created or has been cleared" in text
            expect(key, good, f"poll({unknown!r}): {kind}: {text}")
        hvd.init()  # once more: nothing changes, and handles stay valid
        expect(key, hvd.synchronize(first) is not None, "a handle from before init")
        # Names match; the order is each rank's own.
        order = np.random.default_rng(hvd.rank()).permutation(100).tolist()
        started = {
            i: hvd.allreduce_async(face.ones(i + 1), op=hvd.Sum, name=f"n{i}") for i in order
        }
        for i in reversed(order):
            got = face.values(hvd.synchronize(started[i]))
            expect(key, got.tolist() == [hvd.size()] * (i + 1), f"n{i}: {got}")
        # The same name in another operation is another name.
        forms = [form for form in face.forms if form.endswith("_async")]
        one = [face.call(form, face.group(2 * hvd.size()), name="one") for form in forms]
        for handle in reversed(one):
            expect(key, hvd.synchronize(handle) is not None, "the same name")

    def barrier(self) -> None:
        """No rank leaves a barrier before the last one has entered it."""
        hvd = self.hvd
        for late in range(hvd.size()):
            if hvd.rank() == late:
                time.sleep(0.05)
            entered = time.monotonic_ns()
            self.report.expect(("barrier", "late"), hvd.barrier() is None, "a result")
            left = time.monotonic_ns()
            times = np.array(hvd.allgather_object((entered, left)))
            good = times[:, 1].min() >= times[:, 0].max()
            self.report.expect(("barrier", "late"), good, f"rank {late} late: {times}")

    def join(self) -> None:
        """Ranks that have joined give zeros; the last one to join is known to all."""
        hvd, face, key = self.hvd, self.face, ("join", "mixed")
        forms = [form for form in ALL_REDUCING if form in face.forms]
        for last in range(hvd.size()):
            if hvd.rank() == last:
                # The others may join before or during these.
                while hvd.size() > 1:
                    time.sleep(0.001)
                    got = hvd.allreduce(face.ones(2), op=hvd.Sum, name="wait")
                    if face.values(got)[0] == 1.0:
                        break
                for form in forms:
                    for op, expected in (("Sum", 6.0), ("Average", 6.0 / hvd.size())):
                        tensors = [face.tensor(np.full((2, 2), 6.0), "float64")]
                        got = face.complete(form, tensors, op=getattr(hvd, op))
                        got = face.values(got[0] if form in GROUPED else got)
                        good = np.allclose(got, expected, rtol=1e-15)
                        self.report.expect(key, good, f"{form} {op}, others joined: {got}")
                for form in FORMS if hvd.size() > 1 else ():
                    if form not in face.forms or form in ALL_REDUCING:
                        continue
                    tensors = face.group(2 * hvd.size())
                    kind, text = outcome(lambda f=form, t=tensors: face.complete(f, t, name="j"))
                    wanted = face.raised("joined", "HorovodInternalError")
                    good = kind == wanted and "is not supported with Join" in text
                    self.report.expect(key, good, f"{form}, others joined: {kind}: {text}")
            elif hvd.size() > 1:
                for _ in range(hvd.rank()):
                    if face.values(hvd.allreduce(face.ones(2), op=hvd.Sum, name="wait"))[0] == 1.0:
                        self.report.fault(key, "a rank that has not joined gives nothing")
            got = hvd.join()
            # A number, or the framework's tensor of one.
            self.report.expect(key, int(got) == last, f"last: {got}, not {last}")
        self.alive("join")

    def objects(self) -> None:
        """Objects of every rank, and of one."""
        hvd, key = self.hvd, ("objects", "pickled")
        mine = {"rank": hvd.rank(), "text": "ä" * 10 * hvd.rank(), "array": np.arange(hvd.rank())}
        everybody = hvd.allgather_object(mine, name="objects")
        self.report.expect(key, [x["rank"] for x in everybody] == list(range(hvd.size())), mine)
        good = all(len(x["array"]) == len(x["text"]) // 10 == x["rank"] for x in everybody)
        self.report.expect(key, good, everybody)
        for root in range(hvd.size()):
            got = hvd.broadcast_object(mine, root)
            self.report.expect(key, got["rank"] == root, got)
            self.report.expect(key, (got is mine) == (hvd.rank() == root), "the root's own object")

    def gradients(self, process_sets: Sequence[Any]) -> None:
        """Only faces with autodiff."""
        if self.face.autodiff:
            gradients.run(self.face, self.report, process_sets)

    def training(self) -> None:
        """Only faces with an optimizer."""
        if self.face.training:
            training.run(self.face, self.report)

    # ---- mistakes ----

    def alive(self, what: object) -> None:
        """The engine still works."""
        hvd, face = self.hvd, self.face
        total = face.values(hvd.allreduce(face.ones(3), op=hvd.Sum, name="alive")).tolist()
        assert total == [hvd.size()] * 3, (what, total)

    def disagreements(self) -> None:
        """Every mismatch in every form; the ranks take turns as the odd one."""
        hvd, face, turn = self.hvd, self.face, 0
        for what, case in DISAGREEMENTS.items():
            for form in case.forms:
                if not applies(case, face, form):
                    continue
                turn += 1
                for odd in range(hvd.size()) if self.thorough else [turn % hvd.size()]:
                    # The name is known and cached when the ranks come to disagree about it.
                    face.complete(form, case.tensors(face), name="x", **case.arguments)
                    is_odd = hvd.rank() == odd
                    tensors = case.odd_tensors(face) if is_odd else case.tensors(face)
                    arguments = case.odd_arguments if is_odd else case.arguments
                    seen = outcome(
                        lambda f=form, t=tensors, a=arguments: face.complete(f, t, name="x", **a)
                    )
                    self.report.outcomes["disagreement", what, form, str(odd)] = seen
                    face.complete(form, case.tensors(face), name="x", **case.arguments)
            self.alive(what)

    def mistakes(self) -> None:
        """Every rank in turn makes one alone, in an unnamed call, and then the right call."""
        hvd, face, turn = self.hvd, self.face, 0
        for what, mistake in MISTAKES.items():
            print(what, flush=True)
            for form in face.forms:
                if not applies(mistake, face, form):
                    continue
                turn += 1
                if hvd.rank() == turn % hvd.size():
                    places = 2 if form in GROUPED and what in NAMES_THE_MEMBER else 1
                    for place in range(places):
                        tensors = mistake.tensors(face)
                        if place:
                            tensors = tensors[::-1]
                        arguments = arguments_of(mistake, face, form)
                        seen = outcome(lambda f=form, t=tensors, a=arguments: face.call(f, t, **a))
                        assert seen != NOTHING, f"{what} is not refused by {form}"
                        self.report.outcomes["mistake", what, form, str(place)] = seen
                face.complete(form, face.group())
        self.alive("mistakes")

    def names_in_flight(self) -> None:
        """Each rank in turn: the others are behind the barrier, so "twice" is in flight."""
        hvd, face = self.hvd, self.face
        for turn, form in enumerate(face.in_flight):
            guilty = turn % hvd.size()
            if hvd.rank() == guilty:
                first = face.call(form, face.group(), name="twice")
                for other in face.forms:  # in whatever form, and a group of whatever size
                    if family(other) == family(form):
                        for tensors in (face.group(), [face.ones(9)]):
                            seen = outcome(lambda o=other, t=tensors: face.call(o, t, name="twice"))
                            key = ("in flight", form, f"{other} {len(tensors)}")
                            self.report.outcomes[key] = seen
                hvd.barrier()
            else:
                hvd.barrier()
                first = face.call(form, face.group(), name="twice")
            face.finish(first)
        self.alive("names in flight")

    def automatic_names(self) -> None:
        """They count the operations of a family, in whatever form; two rounds."""
        face = self.face
        odd = self.hvd.rank() == 1
        for turn in ("1", "2"):
            for form in face.forms:
                tensors = [face.ones(6), face.ones(6, 2, dtype="float64" if odd else "float32")]
                seen = outcome(lambda f=form, t=tensors: face.complete(f, t))
                self.report.outcomes["unnamed", form, turn] = seen
                scalars = [face.ones(6), face.ones()]
                if operation(form) == "allgather" and turn == "1":
                    seen = outcome(lambda f=form, t=scalars: face.complete(f, t, name="s"))
                    self.report.outcomes["scalars", form] = seen

    def uninitialised(self, when: str) -> None:
        """Queries and operations before init and after shutdown."""
        hvd, face = self.hvd, self.face
        for query in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"):
            self.report.outcomes["down", when, query] = outcome(getattr(hvd, query))
        self.report.outcomes["down", when, "is_homogeneous"] = outcome(hvd.is_homogeneous)
        for form in face.forms:
            root = {"root_rank": 0} if form in BROADCASTS else {}
            seen = outcome(lambda f=form, r=root: face.call(f, face.group(), **r))
            self.report.outcomes["down", when, form] = seen
        self.report.outcomes["down", when, "barrier"] = outcome(hvd.barrier)


EVERYTHING = (
    *cases.OPERATIONS,
    *("groups", "averages", "special", "handles", "barrier", "join", "objects"),
    *("sets", "gradients", "training"),
)


def run(face: Face, blocks: Sequence[str], thorough: bool) -> Report:
    """Run blocks, from before init to after shutdown."""
    import os

    hvd = face.hvd
    runner = Runner(face, thorough)
    size = int(os.environ.get("HOROVOD_SIZE") or os.environ.get("OMPI_COMM_WORLD_SIZE") or 1)
    wanted = {1: (), 2: OF_TWO}.get(size, MEMBERS) if {"sets", "gradients"} & {*blocks} else ()
    process_sets = [hvd.ProcessSet(ranks) for ranks in wanted]
    if "down" in blocks:
        hvd.shutdown()  # without init: nothing happens
        runner.uninitialised("before")
    hvd.init(process_sets=process_sets)
    if "automatic_names" in blocks:  # the first of all: they are counted
        runner.automatic_names()
    for block in blocks:
        if block in ("down", "automatic_names"):
            continue
        if block in cases.OPERATIONS:
            runner.operations([block])
            continue
        print(block, flush=True)
        if block in ("sets", "gradients"):
            getattr(runner, block)(process_sets)
        else:
            getattr(runner, block)()
        hvd.barrier()
    hvd.shutdown()
    if "down" in blocks:
        hvd.shutdown()
        runner.uninitialised("after")
    runner.report.cases = dict(runner.report.cases)
    return runner.report
