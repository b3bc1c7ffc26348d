"""Every operation on every data type, against float64 on the CPU: one rank of the job.

    hvdtune run -np 2 --share-gpu python benchmarks/gpu/conformance.py --device cuda --result FILE

Every rank knows all ranks' inputs, which are made from seeds, and computes the expected results.
Rank 0 writes {"cases": N, "failures": [...]} of all ranks. Sums may differ by the rounding of the
data type: n roundings, of n ranks, of a number as large as the sum of the absolute values.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import hvdtune.torch as hvd

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64)
SIZES = (1, 7, 1000, 65_537, 1 << 20)
#: The largest permitted error of an element: one number, or one for each element.
Error = torch.Tensor | float


class Conformance:
    """The cases of one rank."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.rank, self.size = hvd.rank(), hvd.size()
        self.cases = 0
        self.failures: list[str] = []
        #: Of the latest case: its number, elements and type, and all ranks' inputs.
        self._latest: tuple[tuple[Any, ...], torch.Tensor] = ((), torch.empty(0))

    def input(self, rank: int, case: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        """That rank's input of this case, on the CPU."""
        generator = torch.Generator().manual_seed(1000 * case + rank)
        if dtype.is_floating_point:
            return (4 * torch.rand(count, generator=generator) - 2).to(dtype)
        return torch.randint(0, 5, (count,), generator=generator).to(dtype)

    def inputs(self, case: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        """All ranks', [rank, element], in float64."""
        if self._latest[0] != (case, count, dtype):
            every = [self.input(rank, case, count, dtype) for rank in range(self.size)]
            self._latest = (case, count, dtype), torch.stack(every).to(torch.float64)
        return self._latest[1]

    def check(
        self,
        what: str,
        result: torch.Tensor,
        expected: torch.Tensor,
        error: torch.Tensor | float = 0,
    ) -> None:
        """Note whether every element is within `error`."""
        self.cases += 1
        found = result.cpu().to(torch.float64)
        if result.device.type != self.device.type:
            self.failures.append(f"{what}: the result is on {result.device}")
        elif found.shape != expected.shape:
            self.failures.append(f"{what}: shape {tuple(found.shape)}, not {tuple(expected.shape)}")
        elif not bool(((found - expected).abs() <= error).all()):
            worst = float((found - expected).abs().max())
            self.failures.append(f"{what}: off by {worst:g}")

    def rounding(self, dtype: torch.dtype, every: torch.Tensor) -> Error:
        """The largest permitted error of sums of these numbers."""
        if not dtype.is_floating_point:
            return 0.0
        return self.size * torch.finfo(dtype).eps * every.abs().sum(0)

    def reductions(self, case: int, count: int, dtype: torch.dtype) -> None:
        """Allreduce of all kinds."""
        every = self.inputs(case, count, dtype)
        own = self.input(self.rank, case, count, dtype).to(self.device)
        name = f"{dtype}.{count}"
        error = self.rounding(dtype, every)
        self.check(
            f"sum {name}", hvd.allreduce(own, op=hvd.Sum, name=f"s.{name}"), every.sum(0), error
        )
        for op, expected in ((hvd.Min, every.min(0).values), (hvd.Max, every.max(0).values)):
            self.check(f"{op} {name}", hvd.allreduce(own, op=op, name=f"{op}.{name}"), expected)
        if dtype.is_floating_point:
            result = hvd.allreduce(own, op=hvd.Average, name=f"a.{name}")
            self.check(f"average {name}", result, every.mean(0), error)
            result = hvd.allreduce(
                own, op=hvd.Sum, name=f"f.{name}", prescale_factor=0.5, postscale_factor=4.0
            )
            self.check(f"factors {name}", result, 2 * every.sum(0), 4 * error)
        in_place = own.clone()
        hvd.allreduce_(in_place, op=hvd.Sum, name=f"i.{name}")
        self.check(f"in place {name}", in_place, every.sum(0), error)

    def movements(self, case: int, count: int, dtype: torch.dtype) -> None:
        """Broadcast, allgather, alltoall and reducescatter, with unequal parts."""
        every = self.inputs(case, count, dtype)
        own = self.input(self.rank, case, count, dtype).to(self.device)
        name, root = f"{dtype}.{count}", case % self.size
        self.check(f"broadcast {name}", hvd.broadcast(own, root, name=f"b.{name}"), every[root])
        rows = [every[rank][: max(1, count - rank)] for rank in range(self.size)]
        mine = own[: max(1, count - self.rank)]
        self.check(f"allgather {name}", hvd.allgather(mine, name=f"g.{name}"), torch.cat(rows))
        splits = self.splits(count)
        begin = sum(splits[: self.rank])
        expected = torch.cat(
            [every[r][begin : begin + splits[self.rank]] for r in range(self.size)]
        )
        result, received = hvd.alltoall(
            own, torch.tensor(splits, dtype=torch.int32), name=f"t.{name}"
        )
        self.check(f"alltoall {name}", result, expected)
        if received.tolist() != [splits[self.rank]] * self.size:
            self.failures.append(f"alltoall {name}: received {received.tolist()}")
        even = [(count + self.size - 1 - r) // self.size for r in range(self.size)]
        begin = sum(even[: self.rank])
        part = slice(begin, begin + even[self.rank])
        error = self.rounding(dtype, every[:, part])
        result = hvd.reducescatter(own, op=hvd.Sum, name=f"r.{name}")
        self.check(f"reducescatter {name}", result, every.sum(0)[part], error)

    def splits(self, count: int) -> list[int]:
        """The number of elements for each rank: unequal if there are enough."""
        splits = [count // self.size] * self.size
        splits[0] += count % self.size
        if self.size > 1 and splits[-1] > 2:
            splits[-1] -= 2
            splits[0] += 2
        return splits

    def many_at_once(self, case: int) -> None:
        """Tensors that are fused, submitted in a different order on each rank, and a group."""
        counts = [1 + 37 * index for index in range(60)]
        order = sorted(range(60), key=lambda index: (index * (2 * self.rank + 7)) % 61)
        own = [
            self.input(self.rank, case + index, count, torch.float32).to(self.device)
            for index, count in enumerate(counts)
        ]
        handles = {i: hvd.allreduce_async(own[i], op=hvd.Sum, name=f"m.{i}") for i in order}
        grouped = hvd.grouped_allreduce(own, op=hvd.Sum, name="group")
        for index, count in enumerate(counts):
            every = self.inputs(case + index, count, torch.float32)
            error = self.rounding(torch.float32, every)
            self.check(f"fused {index}", hvd.synchronize(handles[index]), every.sum(0), error)
            self.check(f"grouped {index}", grouped[index], every.sum(0), error)

    def sets_and_join(self, case: int) -> None:
        """A process set of some ranks; and ranks that end before the others."""
        members = list(range(0, self.size, 2))
        own = self.input(self.rank, case, 1000, torch.float32).to(self.device)
        every = self.inputs(case, 1000, torch.float32)
        if self.size > 1:
            some = hvd.add_process_set(members)
            if self.rank in members:
                result = hvd.allreduce(own, op=hvd.Sum, name="set", process_set=some)
                error = self.rounding(torch.float32, every)
                self.check("process set", result, every[members].sum(0), error)
            hvd.remove_process_set(some)
        if self.rank > 0 or self.size == 1:
            for turn in range(2):
                result = hvd.allreduce(own, op=hvd.Sum, name=f"join.{turn}")
                expected = every[1:].sum(0) if self.size > 1 else every.sum(0)
                self.check("join", result, expected, self.rounding(torch.float32, every))
        hvd.join(self.device.index if self.device.type == "cuda" else -1)


def cases(sizes: Sequence[int]) -> Iterator[tuple[int, int, torch.dtype]]:
    """(number, elements, type) of the plain cases."""
    number = 0
    for dtype in (*FLOATS, *INTEGERS):
        for count in sizes:
            number += 1
            yield number, count, dtype


def main() -> int:
    """Run as a rank; 1 if something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="small tensors only")
    parser.add_argument("--result", type=Path, required=True)
    args = parser.parse_args()
    hvd.init()
    # All ranks compute the expected results on the CPU at the same time.
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // hvd.local_size()))
    device = torch.device("cpu")
    if args.device == "cuda":
        device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
        torch.cuda.set_device(device)
    one = Conformance(device)
    for number, count, dtype in cases(SIZES[:3] if args.quick else SIZES):
        one.reductions(number, count, dtype)
        one.movements(number, count, dtype)
    one.many_at_once(1000)
    one.sets_and_join(2000)
    told: list[Any] = hvd.allgather_object((one.cases, one.failures), name="told")
    failures = [f"rank {rank}: {text}" for rank, (_, texts) in enumerate(told) for text in texts]
    if hvd.rank() == 0:
        total = sum(count for count, _ in told)
        args.result.write_text(json.dumps({"cases": total, "failures": failures}))
        print(*failures[:20], sep="\n", file=sys.stderr)
    hvd.shutdown()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
