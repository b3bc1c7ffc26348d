"""Rank programs of the NumPy matrix: each runs one family of operations over all its cases.

A program returns a ``Report``: how many cases ran, which were wrong on this rank, and a digest of
every result that must be the same on all ranks. Where all ranks get the same result, each rank
checks its share of the elements against NumPy: equal digests carry that to the others' shares.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from rank_programs.numpy_cases import DTYPES, SIZES, rank_input, wrong

import hvdtune as hvd

OPS = ("Sum", "Average", "Min", "Max", "Product")
SCALES = ((0.5, 1.0), (1.0, 3.0), (0.25, 2.5))


@dataclass
class Report:
    cases: int = 0
    faults: list[str] = field(default_factory=list)
    digests: list[int] = field(default_factory=list)

    def check(self, case: str, wrong_elements: int) -> None:
        self.cases += 1
        if wrong_elements:
            self.faults.append(f"{case}: {wrong_elements} elements wrong")

    def same_everywhere(self, array: np.ndarray) -> None:
        self.digests.append(zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8)))


def one_after_another(names: Sequence[str]) -> dict[str, Report]:
    """The programs of these names in the same processes: a job for each only costs more."""
    return {name: globals()[name]() for name in names}


def names_of(programs: Iterable[Callable[[], Report]]) -> list[str]:
    return [program.__name__ for program in programs]


def check_reports(reports: Sequence[dict[str, Report]]) -> None:
    """What every rank's `one_after_another` returned: no fault, and the same bits on all ranks."""
    assert reports[0]
    for rank, own in enumerate(reports):
        assert own.keys() == reports[0].keys()
        for name, report in own.items():
            assert not report.faults, f"{name}, rank {rank}: " + "\n".join(report.faults[:20])
            assert report.cases > 0, name
            assert report.digests == reports[0][name].digests, f"{name}: rank {rank} has other bits"


def my_share(count: int) -> slice:
    """This rank's part of ``count`` elements; the parts cover everything."""
    share = -(-count // hvd.size())
    return slice(hvd.rank() * share, min((hvd.rank() + 1) * share, count))


def check_reduced(
    report: Report,
    case: str,
    got: np.ndarray,
    dtype: str,
    count: int,
    op: str,
    prescale: float = 1.0,
    postscale: float = 1.0,
) -> None:
    """Check a result that every rank has, of inputs ``rank_input(dtype, rank, count)``."""
    if got.size != count or got.dtype != dtype:
        report.faults.append(f"{case}: got {got.dtype}{got.shape}")
        return
    share = my_share(count)
    inputs = [rank_input(dtype, rank, count)[share] for rank in range(hvd.size())]
    flat = got.reshape(-1)
    report.check(case, wrong(flat[share], inputs, op, prescale, postscale))
    report.same_everywhere(got)


def ops_of(dtype: str) -> tuple[str, ...]:
    return tuple(op for op in OPS if not (dtype == "bool" and op == "Average"))


def allreduce() -> Report:
    """Every operator, type and size; out of place, in place and asynchronous in turn."""
    hvd.init()
    report = Report()
    for dtype, count in product(DTYPES, SIZES):
        for index, op in enumerate(ops_of(dtype)):
            case = f"allreduce {op} {dtype} {count}"
            mine = rank_input(dtype, hvd.rank(), count)
            code = getattr(hvd, op)
            if index % 3 == 0:
                got = hvd.allreduce(mine, op=code, name=case)
            elif index % 3 == 1:
                array = mine.copy()
                got = hvd.allreduce_(array, op=code, name=case)
                if got is not array:
                    report.faults.append(f"{case}: allreduce_ returned another array")
            else:
                got = hvd.synchronize(hvd.allreduce_async(mine, op=code, name=case))
            check_reduced(report, case, got, dtype, count, op)
    for shape in ((), (1,), (3, 0, 2), (7, 11, 13)):
        count = int(np.prod(shape))
        got = hvd.allreduce(rank_input("float32", hvd.rank(), count).reshape(shape), op=hvd.Sum)
        if got.shape != shape:
            report.faults.append(f"shape {shape} became {got.shape}")
        check_reduced(report, f"shape {shape}", got, "float32", count, "Sum")
    hvd.shutdown()
    return report


def scaled_allreduce() -> Report:
    """Prescale and postscale with every operator; one million elements for three types."""
    hvd.init()
    report = Report()
    for dtype, count, (before, after) in product(DTYPES[:-1], SIZES, SCALES):
        if count > 1000 and dtype not in ("int32", "float16", "float32"):
            continue
        for op in OPS:
            case = f"allreduce {op} {dtype} {count} prescale {before} postscale {after}"
            got = hvd.allreduce(
                rank_input(dtype, hvd.rank(), count),
                op=getattr(hvd, op),
                prescale_factor=before,
                postscale_factor=after,
            )
            check_reduced(report, case, got, dtype, count, op, before, after)
    hvd.shutdown()
    return report


def check_groups_from_iterators(report: Report) -> None:
    """Groups that can be gone through only once."""
    for call in (hvd.grouped_allreduce, hvd.grouped_allreduce_):
        arrays = [rank_input("int32", hvd.rank(), count) for count in (3, 1000)]
        case = f"{call.__name__} of an iterator"
        results = call(iter([array.copy() for array in arrays]), op=hvd.Sum, name=case)
        for count, got in zip((3, 1000), results, strict=True):
            check_reduced(report, case, got, "int32", count, "Sum")
    mine = rank_input("int32", hvd.rank(), hvd.size())
    (gathered,) = hvd.grouped_allgather(iter([mine]), name="iterator")
    inputs = [rank_input("int32", rank, hvd.size()) for rank in range(hvd.size())]
    report.check("grouped_allgather", np.count_nonzero(gathered != np.concatenate(inputs)))
    (part,) = hvd.grouped_reducescatter(iter([mine]), op=hvd.Sum, name="iterator")
    sums = np.sum(inputs, axis=0, dtype=np.int32)
    report.check("grouped_reducescatter", np.count_nonzero(part != sums[hvd.rank()]))


def grouped_allreduce() -> Report:
    """Groups of mixed types and sizes, for every operator, in place and out of place."""
    hvd.init()
    report = Report()
    members = [(dtype, count) for count in (1000, 0, 1, 4099) for dtype in DTYPES[:-1]]
    members += [("float32", SIZES[-1]), ("int64", SIZES[-1])]
    for op, in_place in product(OPS, (False, True)):
        arrays = [rank_input(dtype, hvd.rank(), count) for dtype, count in members]
        call = hvd.grouped_allreduce
        if in_place:
            arrays, call = [array.copy() for array in arrays], hvd.grouped_allreduce_
        results = call(arrays, op=getattr(hvd, op), name=f"{op} {in_place}", postscale_factor=2.0)
        if len(results) != len(members):
            report.faults.append(f"group of {len(members)} gave {len(results)}")
        for (dtype, count), array, got in zip(members, arrays, results, strict=True):
            case = f"grouped_allreduce {op} {dtype} {count} in place {in_place}"
            if in_place and got is not array:
                report.faults.append(f"{case}: returned another array")
            check_reduced(report, case, got, dtype, count, op, 1.0, 2.0)
    report.check("empty group", len(hvd.grouped_allreduce([], name="empty")))
    check_groups_from_iterators(report)
    hvd.shutdown()
    return report


def rows_of(rank: int, count: int) -> int:
    """First dimension that ``rank`` gives to allgather: it differs, and some give nothing."""
    if count <= 1:
        return count if rank % 2 == 0 else 0
    return 0 if rank % 3 == 1 else count - 5 * rank


def allgather() -> Report:
    hvd.init()
    report = Report()
    size = hvd.size()
    for dtype, count in product(DTYPES, SIZES):
        # One rank's million is an eighth of the result at np 8: the result has a million.
        per_rank = count if count <= 1000 else count // size
        blocks = [rank_input(dtype, rank, rows_of(rank, per_rank)) for rank in range(size)]
        case = f"allgather {dtype} {count}"
        got = hvd.allgather(blocks[hvd.rank()], name=case)
        report.check(case, different(got, np.concatenate(blocks)))
        report.same_everywhere(got)
    shaped = [rank_input("int16", r, 15 * (r + 1)).reshape(r + 1, 3, 5) for r in range(size)]
    got = hvd.allgather(shaped[hvd.rank()])
    report.check("allgather of rows 3 x 5", different(got, np.concatenate(shaped)))
    hvd.shutdown()
    return report


def different(got: np.ndarray, expected: np.ndarray) -> int:
    """How many elements differ, bit for bit; a wrong type or shape counts as everything."""
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return max(1, expected.size)
    return int(np.count_nonzero(got != expected))


def broadcast() -> Report:
    """From every root; the largest size takes the roots in turn over the types."""
    hvd.init()
    report = Report()
    size = hvd.size()
    for index, (dtype, count) in enumerate(product(DTYPES, SIZES)):
        roots = range(size) if count <= 1000 else [(index // len(SIZES)) % size]
        for root in roots:
            case = f"broadcast {dtype} {count} from {root}"
            expected = rank_input(dtype, root, count)
            mine = rank_input(dtype, hvd.rank(), count)
            if (root + index) % 2:
                got = hvd.broadcast(mine, root, name=case)
            else:
                array = mine.copy()
                got = hvd.broadcast_(array, root, name=case)
                if got is not array:
                    report.faults.append(f"{case}: broadcast_ returned another array")
            report.check(case, different(got, expected))
            report.same_everywhere(got)
    hvd.shutdown()
    return report


def splits_of(sender: int, size: int, count: int) -> list[int]:
    """Uneven blocks for the receivers, some empty, of at most ``count`` rows in all."""
    random = np.random.default_rng((sender, size, count))
    weights = random.random(size) * (random.random(size) < 0.7)
    if count == 0 or weights.sum() == 0:
        return [0] * size
    return [int(w) for w in np.floor(weights / weights.sum() * count * random.choice([1.0, 0.9]))]


def alltoall() -> Report:
    hvd.init()
    report = Report()
    size, me = hvd.size(), hvd.rank()
    for dtype, count in product(DTYPES, SIZES):
        share = count // size
        case = f"alltoall {dtype} {count} even"
        got = hvd.alltoall(rank_input(dtype, me, share * size), name=case)
        inputs = [rank_input(dtype, sender, share * size) for sender in range(size)]
        blocks = [x[me * share : (me + 1) * share] for x in inputs]
        report.check(case, different(got, np.concatenate(blocks)))

        case = f"alltoall {dtype} {count} uneven"
        splits = [splits_of(sender, size, count) for sender in range(size)]
        got, received = hvd.alltoall(rank_input(dtype, me, count), splits=splits[me], name=case)
        starts = [sum(row[:me]) for row in splits]
        blocks = [
            rank_input(dtype, sender, count)[start : start + row[me]]
            for sender, (start, row) in enumerate(zip(starts, splits, strict=True))
        ]
        report.check(case, different(got, np.concatenate(blocks)))
        expected = np.array([row[me] for row in splits], np.int32)
        report.check(f"{case}: received splits", different(np.asarray(received), expected))
    rows = rank_input("float64", me, 6 * size * 2).reshape(size * 2, 3, 2)
    senders = [rank_input("float64", s, 12 * size).reshape(size * 2, 3, 2) for s in range(size)]
    expected_rows = np.concatenate([x[2 * me : 2 * me + 2] for x in senders])
    report.check("alltoall of rows 3 x 2", different(hvd.alltoall(rows), expected_rows))
    hvd.shutdown()
    return report


def my_rows(rows: int) -> slice:
    """The rows that reducescatter gives to this rank: the first ranks get one more."""
    share, extra = divmod(rows, hvd.size())
    start = hvd.rank() * share + min(hvd.rank(), extra)
    return slice(start, start + share + (hvd.rank() < extra))


def reducescatter() -> Report:
    hvd.init()
    report = Report()
    dtypes = DTYPES[:-1]
    for dtype, count, op in product(dtypes, SIZES, ("Sum", "Average")):
        scales = ((1.0, 1.0), (0.5, 3.0)) if count <= 1000 else ((1.0, 1.0),)
        for before, after in scales:
            case = f"reducescatter {op} {dtype} {count} prescale {before} postscale {after}"
            got = hvd.reducescatter(
                rank_input(dtype, hvd.rank(), count),
                op=getattr(hvd, op),
                name=case,
                prescale_factor=before,
                postscale_factor=after,
            )
            mine = my_rows(count)
            inputs = [rank_input(dtype, rank, count)[mine] for rank in range(hvd.size())]
            report.check(case, wrong(got, inputs, op, before, after))
    # Rows of several elements: 2 * size + 1 of them, so that rank 0 has one more.
    rows = 2 * hvd.size() + 1
    inputs = [rank_input("int32", r, rows * 4).reshape(rows, 4) for r in range(hvd.size())]
    got = hvd.reducescatter(inputs[hvd.rank()], op=hvd.Sum)
    expected = [x[my_rows(rows)] for x in inputs]
    report.check("reducescatter of rows of 4", wrong(got, expected, "Sum", 1.0, 1.0))
    hvd.shutdown()
    return report


def grouped_gathers() -> Report:
    """grouped_allgather and grouped_reducescatter over mixed types and sizes."""
    hvd.init()
    report = Report()
    size, me = hvd.size(), hvd.rank()
    members = [(dtype, count) for count in (1000, 1, 0) for dtype in DTYPES]
    blocks = [[rank_input(d, r, rows_of(r, n)) for r in range(size)] for d, n in members]
    results = hvd.grouped_allgather([block[me] for block in blocks], name="group")
    for member, block, got in zip(members, blocks, results, strict=True):
        report.check(f"grouped_allgather {member}", different(got, np.concatenate(block)))
        report.same_everywhere(got)
    members = [(dtype, count) for count in (1003, 1, 0) for dtype in DTYPES[:-1]]
    inputs = [rank_input(dtype, me, count) for dtype, count in members]
    results = hvd.grouped_reducescatter(inputs, op=hvd.Sum, name="group")
    for (dtype, count), got in zip(members, results, strict=True):
        mine = my_rows(count)
        parts = [rank_input(dtype, rank, count)[mine] for rank in range(size)]
        case = f"grouped_reducescatter {dtype} {count}"
        report.check(case, wrong(got, parts, "Sum", 1.0, 1.0))
    hvd.shutdown()
    return report


def special_values() -> Report:
    """NaN wins over numbers in Min and Max on every rank; infinities and zeros pass."""
    hvd.init()
    report = Report()
    values = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0]
    for dtype, op in product(("float16", "float32", "float64"), ("Min", "Max", "Sum")):
        # Every pair (mine, others'), each rank in turn holding the first value.
        for holder in range(hvd.size()):
            first = np.repeat(values, len(values)).astype(dtype)
            second = np.tile(values, len(values)).astype(dtype)
            mine = first if hvd.rank() == holder else second
            got = hvd.allreduce(mine, op=getattr(hvd, op))
            function = {"Min": np.minimum, "Max": np.maximum, "Sum": np.add}[op]
            expected = first
            for _ in range(hvd.size() - 1):
                with np.errstate(invalid="ignore"):
                    expected = function(expected, second)
            equal = (got == expected) | (np.isnan(got) & np.isnan(expected))
            report.check(f"{op} {dtype} holder {holder}", int(np.count_nonzero(~equal)))
    hvd.shutdown()
    return report


def barrier() -> Report:
    """No rank leaves a barrier before the last one has entered it."""
    hvd.init()
    report = Report()
    for late in range(hvd.size()):
        if hvd.rank() == late:
            time.sleep(0.05)
        entered = time.monotonic_ns()
        hvd.barrier()
        left = time.monotonic_ns()
        times = hvd.allgather(np.array([[entered, left]], np.int64))
        report.check(f"barrier, rank {late} late", int(times[:, 1].min() < times[:, 0].max()))
    hvd.shutdown()
    return report


# Each operation in all forms, types and sizes.
OPERATIONS = (
    allreduce,
    scaled_allreduce,
    grouped_allreduce,
    allgather,
    broadcast,
    alltoall,
    reducescatter,
)
