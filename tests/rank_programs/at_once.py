"""Rank programs: blocking collectives under the same names over and over.

From the second time on they can go past the coordinator. Their results are compared with those of
handles under other names, which never do; now and then a rank uses a handle under the same name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from conformance import numpy_face, reference

import hvdtune as hvd
import hvdtune.torch as hvd_torch

ROUNDS = 4
ROWS = (0, 1, 30, 3000)  # of a member: beside the slot, and on the stage
TORCH_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.int64, torch.bool)
KINDS = ("allgather", "allgather of other lengths", "broadcast", "alltoall", "reducescatter")

Call = Callable[[Any, str, bool], Any]


def calls_of(face: Any, kind: str, number: int) -> Call:
    """call(tensor, name, blocking) of one kind of collective of a face."""
    root = number % hvd.size()
    # Not every type can be averaged.
    averages = number % 2 == 0

    def call(tensor: Any, name: str, blocking: bool) -> Any:
        operation, *arguments = {
            "broadcast": ("broadcast", root),
            "alltoall": ("alltoall",),
            "reducescatter": ("reducescatter",),
        }.get(kind, ("allgather",))
        options: dict[str, Any] = {"name": name}
        if operation == "reducescatter":
            is_bool = tensor.dtype in (torch.bool, np.dtype("bool"))
            options["op"] = hvd.Average if averages and not is_bool else hvd.Sum
            options["prescale_factor"] = 1.0 if is_bool or number % 3 else 0.5
        if blocking:
            return getattr(face, operation)(tensor, *arguments, **options)
        result = hvd.synchronize(getattr(face, f"{operation}_async")(tensor, *arguments, **options))
        return result[0] if operation == "alltoall" else result

    return call


def rows_of(kind: str, rows: int) -> int:
    """How many rows this rank brings."""
    if kind == "allgather of other lengths":
        return rows * (hvd.rank() % 3) + 1
    if kind == "alltoall":
        return rows * hvd.size()
    return rows + hvd.size() if kind == "reducescatter" else rows


def same(one: Any, other: Any) -> bool:
    """The same type, shape and bits."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if 0 in one.shape:
        return True
    if isinstance(one, torch.Tensor):
        raw = [np.array(x.contiguous().view(torch.uint8)) for x in (one, other)]
    else:
        raw = [np.ascontiguousarray(x).view(np.uint8) for x in (one, other)]
    return np.array_equal(*raw)


def inputs() -> list[tuple[str, Any, Callable[[int, int], Any]]]:
    """(name, face, make(rows, seed)) of every type of both faces."""

    def array(dtype: str) -> Callable[[int, int], Any]:
        return lambda rows, seed: reference.rank_input(dtype, hvd.rank() + seed, (rows, 2)).copy()

    def tensor(dtype: torch.dtype) -> Callable[[int, int], Any]:
        whole = array("int16")
        return lambda rows, seed: torch.from_numpy(whole(rows, seed)).to(dtype)

    arrays = [(f"numpy {dtype}", hvd, array(dtype)) for dtype in numpy_face.FACE.dtypes]
    return [*arrays, *((str(dtype), hvd_torch, tensor(dtype)) for dtype in TORCH_DTYPES)]


def every_type() -> list[str]:
    """What went wrong on this rank."""
    hvd.init()
    faults = []
    number = 0
    for label, face, make in inputs():
        for kind in KINDS:
            for rows in ROWS:
                number += 1
                call = calls_of(face, kind, number)
                case = f"{label} {kind} {rows}"
                for turn in range(ROUNDS):
                    mine = make(rows_of(kind, rows), turn)
                    kept = mine.copy() if face is hvd else mine.clone()
                    # Some rank may take the other way under the same name.
                    blocking = turn != 2 or number % (hvd.size() + 2) != hvd.rank()
                    got = call(mine, case, blocking)
                    wanted = call(mine, f"{case} beside", False)
                    if not same(got, wanted):
                        faults.append(f"{case}, turn {turn}: another result")
                    if not same(mine, kept):
                        faults.append(f"{case}, turn {turn}: the input has changed")
    return faults


def special_forms() -> list[str]:
    """Forms that only the ordinary way knows, some of them on one rank alone."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    faults: list[str] = []

    def expect(case: str, good: bool) -> None:
        if not good:
            faults.append(case)

    for turn in range(3):
        odd = turn % size == rank
        # In place, of scalars, and without any elements.
        scalar = torch.tensor(float(rank))
        expect("a scalar", hvd_torch.broadcast_(scalar, size - 1, name="scalar") is scalar)
        expect("a scalar's value", scalar.item() == size - 1)
        array = np.full(7, rank)
        expect("an array", hvd.broadcast_(array, 0, name="array") is array and not array.any())
        empty = hvd.broadcast(np.empty((0, 3)), 0, name="empty")
        expect("nothing", empty.shape == (0, 3))
        nobody = hvd_torch.allgather(torch.empty(0 if odd else 2, 3), name="no rows here")
        expect("no rows of one", nobody.shape == (2 * (size - 1), 3))
        one = hvd.reducescatter(np.ones(1), op=hvd.Sum, name="fewer rows than ranks")
        expect("fewer rows than ranks", one.tolist() == ([size] if rank == 0 else []))
        # What cannot be written to, and what is not dense.
        constant = np.arange(4)
        constant.flags.writeable = not odd
        expect("constant", hvd.allgather(constant, name="constant").shape == (4 * size,))
        # Splits that say the same, which bring the received ones along.
        table = torch.arange(size) + 10 * rank
        received = [10 * sender + rank for sender in range(size)]
        if odd:
            got, splits = hvd_torch.alltoall(table, [1] * size, name="splits")
            expect("splits", splits.tolist() == [1] * size)
        else:
            got = hvd_torch.alltoall(table, name="splits")
        expect("received", got.tolist() == received)
        # Another length for everybody, whose sum may be what a rank expects.
        rows = size * (rank + 1)
        got = hvd.alltoall(np.full(rows, rank), name="uneven")
        expected = [sender for sender in range(size) for _ in range(sender + 1)]
        expect("uneven", got.tolist() == expected)
        # Gradients.
        weight = torch.ones(3, requires_grad=True)
        hvd_torch.allgather(weight * (rank + 1), name="gradient").sum().backward()
        expect("gradient", weight.grad is not None and weight.grad.tolist() == [rank + 1.0] * 3)
        hvd_torch.alltoall(torch.ones(size, requires_grad=True), name="g2").sum().backward()
        hvd.barrier()
    return faults


def mistakes() -> list[str]:
    """The words of errors that only some turns have, after turns that went well."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    words = []
    for turn in range(4):
        odd = rank == turn % size
        good = turn % 2 == 0
        attempts: list[Callable[[], Any]] = [
            lambda odd=odd: hvd.allgather(np.ones((2, 3 if odd else 2)), name="columns"),
            lambda odd=odd: hvd_torch.broadcast(torch.ones(2), int(odd), name="roots"),
            lambda odd=odd: hvd.broadcast_(np.ones(2, "f4" if odd else "f8"), 0, name="types"),
            lambda odd=odd: hvd_torch.reducescatter(
                torch.ones(4), op=hvd.Sum if odd else hvd.Average, name="operators"
            ),
            lambda: hvd.broadcast(np.ones(2), size, name="no such root"),
            lambda: hvd.alltoall(np.ones(size + 1), name="not divisible"),
            lambda: hvd.reducescatter(np.array(1.0), name="scalar"),
            lambda: hvd_torch.reducescatter(torch.ones(3), op=hvd.Max, name="maximum"),
        ]
        if good:  # the four that the ranks can disagree about, without a disagreement
            hvd.allgather(np.ones((2, 2)), name="columns")
            hvd_torch.broadcast(torch.ones(2), 0, name="roots")
            hvd.broadcast_(np.ones(2), 0, name="types")
            hvd_torch.reducescatter(torch.ones(4), op=hvd.Average, name="operators")
            continue
        for attempt in attempts:
            try:
                attempt()
                words.append("nothing")
            except Exception as error:
                words.append(f"{type(error).__name__}: {error}")
    return words


def in_sets() -> list[str]:
    """Every kind, in overlapping process sets, whose ranks are not their places."""
    size = 3
    sets = [hvd.ProcessSet([0, 1]), hvd.ProcessSet([1, 2]), hvd.ProcessSet([2])]
    hvd.init(process_sets=sets)
    rank = hvd.rank()
    assert hvd.size() == size
    faults = []
    for turn in range(6):
        for one in [*sets, hvd.global_process_set]:
            if not one.included():
                continue
            ranks = one.ranks or []
            mine = np.full((len(ranks), 2), rank + 10 * turn)
            gathered = hvd.allgather(mine, name="x", process_set=one)
            if [row[0] - 10 * turn for row in gathered[:: len(ranks)]] != ranks:
                faults.append(f"allgather in {ranks}: {gathered}")
            got = hvd.broadcast(mine, ranks[-1], name="x", process_set=one)
            if (got != ranks[-1] + 10 * turn).any():
                faults.append(f"broadcast in {ranks}: {got}")
            got = hvd.alltoall(mine, name="x", process_set=one)
            if [row[0] - 10 * turn for row in got] != ranks:
                faults.append(f"alltoall in {ranks}: {got}")
            got = hvd.reducescatter(mine, name="x", op=hvd.Sum, process_set=one)
            if (got != sum(ranks) + 10 * turn * len(ranks)).any() or len(got) != 1:
                faults.append(f"reducescatter in {ranks}: {got}")
            hvd.barrier(process_set=one)
    for case in ("allgather", "barrier"):
        try:
            other = sets[2] if rank != 2 else sets[0]
            if case == "barrier":
                hvd.barrier(process_set=other)
            else:
                hvd.allgather(np.ones(2), name="y", process_set=other)
            faults.append(f"{case} in a set of others")
        except ValueError as error:
            if "is not a member" not in str(error):
                faults.append(str(error))
    return faults
