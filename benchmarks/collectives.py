"""Every collective through hvdtune.torch, compared with the bound that this machine's memory sets.

For each operation, size and number of ranks: the median time of a blocking call, the bound, and
the time as a multiple of the bound. Sizes are counted as nccl-tests does: the array that every
rank holds (allreduce, broadcast), the whole gathered array (allgather), the whole array before
scattering (reducescatter), everything one rank sends, itself included (alltoall).

Where the results go:

  in place   into the input (allreduce_, broadcast_)
  warm       into a new tensor; the previous result was dropped, so its memory can be used again
  fresh      into a new tensor while all earlier ones are kept, so into memory never touched before

The bound of `in place` and `warm` is `memory_bound_seconds` of hvdtune/bench/metrics.py, whose
docstring derives it: the bytes that n ranks must copy (bytes/B_copy) and add up (bytes/B_stream) if
every rank's data passes through shared memory once. A broadcast into new tensors also copies S on
the root. The rates are measured in the same run, with arrays of S bytes (hvdtune/bench/memory.py).
`fresh` adds the time that the kernel needs to allocate and clear the new memory, all ranks
together:

  new bytes · (1/B_new − 1/B_copy)       B_new: bytes/s of copying into untouched huge pages

with nS new bytes for allreduce, broadcast, allgather and alltoall, S for reducescatter.

With several --dtypes the same bytes are moved (and summed) as each of them, in turns.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import ranks

from hvdtune.bench import memory, metrics
from hvdtune.bench.sizes import format_size, parse_size

OPERATIONS = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter")
IN_PLACE = ("allreduce", "broadcast")
DTYPES = ("float32", "float16", "bfloat16", "float64", "int32", "uint8")
# Below this size an operation consists of latencies: it has no bound and no `fresh` memory.
LEAST_BOUNDED = 64 << 10
LEAST_FRESH = 4 << 20
# The most bytes that a rank's kept results may take.
KEPT_BYTES = 512 << 20


@dataclass
class Case:
    """One operation on a number of bytes of one type in one form, on this rank."""

    operation: str
    size: int
    dtype: str
    form: str
    call: Callable[[], Any]
    result_bytes: int
    durations: list[float] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Its name in the results."""
        return f"{self.operation} {self.size} {self.dtype} {self.form}"

    def turn(self, hvd: Any, most: int, seconds: float) -> None:
        """Time as many calls as fit into `seconds`, the same number on all ranks."""
        fresh = self.form == "fresh"
        if fresh:
            most = max(1, min(most, KEPT_BYTES // self.result_bytes - 2))
            ctypes.CDLL(None).malloc_trim(0)
        kept = [self.call() for _ in range(2)]
        _, estimate = self._timed()
        agreed = hvd.allreduce(np.array([estimate]), op=hvd.Max, name="estimate")
        if not fresh:
            kept.clear()
        hvd.barrier()
        for _ in range(max(1, min(most, int(seconds / agreed[0])))):
            result, duration = self._timed()
            self.durations.append(duration)
            if fresh:
                kept.append(result)
            del result

    def _timed(self) -> tuple[Any, float]:
        started = time.perf_counter()
        result = self.call()
        return result, time.perf_counter() - started


def main() -> int:
    """Measure; with `--worker`, be one rank."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--np", nargs="+", type=int, default=[2], help="ranks (default: 2)")
    parser.add_argument("--operations", nargs="+", choices=OPERATIONS, default=list(OPERATIONS))
    parser.add_argument("--sizes", nargs="+", default=["1K", "64K", "1M", "16M", "64M"])
    parser.add_argument("--forms", nargs="+", default=["in place", "warm", "fresh"])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["float32"])
    parser.add_argument("--rounds", type=int, default=3, help="turns of each case (default: 3)")
    parser.add_argument("--seconds", type=float, default=0.3, help="length of a turn")
    parser.add_argument("--json", type=Path, default=None, help="also write all figures here")
    parser.add_argument("--worker", type=Path, default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args)
        return 0
    arguments = ["--rounds", str(args.rounds), "--seconds", str(args.seconds)]
    arguments += ["--operations", *args.operations, "--sizes", *args.sizes, "--forms", *args.forms]
    arguments += ["--dtypes", *args.dtypes]
    found = []
    for number in args.np:
        rows = ranks.measure(__file__, number, arguments)
        show(number, rows)
        found += rows
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))
    return 0


def show(number: int, rows: list[dict[str, Any]]) -> None:
    """Print the figures of one run."""
    print(
        f"np {number}        operation       size  type      "
        "results     median us   bound us  x bound"
    )
    for row in rows:
        bound = row["bound"]
        beside = f"{bound * 1e6:11.1f}{row['median'] / bound:9.2f}" if bound else ""
        print(
            f"{row['operation']:>22}{format_size(row['size']):>11}  {row['dtype']:<9} "
            f"{row['form']:<9}{row['median'] * 1e6:12.1f}{beside}",
            flush=True,
        )


def worker(args: argparse.Namespace) -> None:
    """Measure on this rank."""
    import torch

    import hvdtune as hvd
    import hvdtune.torch as torch_hvd

    hvd.init()
    torch.set_num_threads(1)
    sizes = [parse_size(text) for text in args.sizes]
    cases = [
        case
        for operation in args.operations
        for size in sizes
        for dtype in args.dtypes
        for case in cases_of(torch_hvd, torch, operation, size, dtype, args.forms)
    ]
    for number in range(args.rounds):
        start = number * len(cases) // args.rounds
        for case in cases[start:] + cases[:start]:
            case.turn(hvd, 1000, args.seconds)
    bounded = sorted({case.size for case in cases if case.size >= LEAST_BOUNDED})
    limits = {size: rates(hvd, size) for size in bounded}
    rows = []
    for case in cases:
        durations = np.concatenate(hvd.allgather_object(case.durations))
        bound = bound_of(case, hvd.size(), *limits[case.size]) if case.size in limits else None
        rows.append(
            {
                "np": hvd.size(),
                "operation": case.operation,
                "size": case.size,
                "dtype": case.dtype,
                "form": case.form,
                "median": ranks.median(durations.tolist()),
                "bound": bound,
            }
        )
    ranks.report(args.worker, hvd.rank(), rows)
    hvd.shutdown()


def cases_of(
    hvd: Any, torch: Any, operation: str, size: int, dtype: str, forms: list[str]
) -> list[Case]:
    """The forms of one operation at one size, of one type."""
    members = hvd.size()
    kind = getattr(torch, dtype)
    elements = max(size // kind.itemsize // members, 1) * members
    divided = members if operation == "allgather" else 1
    data = torch.full((elements // divided,), 0, dtype=kind)  # written: its pages are its own
    name = f"{operation}.{size}.{dtype}"

    def in_place() -> Any:
        if operation == "allreduce":
            return hvd.allreduce_(data, op=hvd.Sum, name=name)
        return hvd.broadcast_(data, 0, name=name)

    def new() -> Any:
        # Forward only: autograd's time belongs to the program.
        if operation == "allreduce":
            return hvd.allreduce(data, op=hvd.Sum, name=name)
        if operation == "broadcast":
            return hvd.broadcast(data, 0, name=name)
        if operation == "reducescatter":
            return hvd.reducescatter(data, op=hvd.Sum, name=name)
        return getattr(hvd, operation)(data, name=name)

    whole = elements * kind.itemsize
    result = whole // (members if operation == "reducescatter" else 1)
    cases = []
    for form in forms:
        if form == "in place" and operation not in IN_PLACE:
            continue
        if form == "fresh" and result < LEAST_FRESH:
            continue
        call = in_place if form == "in place" else new
        cases.append(Case(operation, whole, dtype, form, call, result))
    return cases


def rates(hvd: Any, size: int) -> tuple[float, float, float]:
    """(B_copy, B_stream, B_new) with arrays of `size` bytes, on all CPUs at once; bytes/s."""
    from hvdtune.core.libraries.machine import usable_cpus

    workers = min(usable_cpus(), hvd.size())

    def slowest(value: float) -> float:
        return float(hvd.allreduce(np.array([value]), op=hvd.Max, name="slowest")[0])

    curve = memory.measure(hvd.rank(), workers, [size], hvd.barrier, slowest)
    copy, stream = curve.rates(size)
    source = np.ones(size, np.uint8)
    best = float("inf")
    for _ in range(5):
        hvd.barrier()
        took = 0.0
        if hvd.rank() < workers:
            mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            mapped.madvise(mmap.MADV_HUGEPAGE)
            started = time.perf_counter()
            np.copyto(np.frombuffer(mapped, np.uint8), source)
            took = time.perf_counter() - started
        best = min(best, slowest(took))
    return copy, stream, workers * size / best


def bound_of(case: Case, members: int, copy: float, stream: float, new: float) -> float | None:
    """Seconds that the memory needs at least; None if no bound is known."""
    bound = metrics.memory_bound_seconds(case.operation, case.size, members, copy, stream)
    if bound is None:
        return None
    if case.operation == "broadcast" and case.form != "in place":
        bound += case.size / copy
    if case.form == "fresh":
        bound += members * case.result_bytes * max(0.0, 1 / new - 1 / copy)
    return bound


if __name__ == "__main__":
    sys.exit(main())
