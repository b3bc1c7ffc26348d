"""One class for each operation of the sweep: its buffers, one call, and the expected result."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

from hvdtune.bench import pattern
from hvdtune.bench.arrays import Arrays


class Collective(ABC):
    """One operation at one size on this rank.

    `hvd` is the face, `arrays` the kind of arrays measured with. `size_bytes` is the size as
    nccl-tests counts it (see `metrics`), a multiple of `granularity`. `count` is nccl-tests'
    column: the elements of the array, or of one rank's part for operations that gather or scatter.
    The call is blocking; `run` keeps its result for `count_wrong`.
    """

    redop = "none"
    root = -1
    has_in_place = False
    splits_array = False

    def __init__(self, hvd: Any, arrays: Arrays, dtype: str, size_bytes: int, check: bool) -> None:
        import numpy as np

        self.hvd = arrays.hvd
        self.arrays = arrays
        self.ranks: int = hvd.size()
        self.rank: int = hvd.rank()
        self.size_bytes = size_bytes
        self.elements = size_bytes // np.dtype(dtype).itemsize
        self.count = self.elements // (self.ranks if self.splits_array else 1)
        self.name = f"bench.{type(self).__name__.lower()}.{self.size_bytes}"
        self.data = arrays.ones(self.input_elements(), dtype)
        self.result: Any = None
        if check:
            self.tiles = [pattern.tile(rank, self.ranks, dtype) for rank in range(self.ranks)]
            self.expected_sum = pattern.tile_sum(self.ranks, dtype)

    @classmethod
    def granularity(cls, ranks: int, itemsize: int) -> int:
        """Every size must be a multiple of this many bytes: an element, or one for every rank."""
        return itemsize * (ranks if cls.splits_array else 1)

    def input_elements(self) -> int:
        """Elements of this rank's input."""
        return self.elements

    def fill(self) -> None:
        """Write this rank's own test data into its input."""
        self.arrays.fill(self.data, self.tiles[self.rank])

    @abstractmethod
    def run(self, in_place: bool) -> None:
        """Carry out the operation once and wait for it."""

    @abstractmethod
    def count_wrong(self) -> int:
        """Wrong elements on this rank in the result of `fill` and one `run`."""


class Allreduce(Collective):
    """Sum of all ranks' arrays, on every rank."""

    redop = "sum"
    has_in_place = True

    def run(self, in_place: bool) -> None:
        """Allreduce into the input or into a new array."""
        hvd = self.hvd
        if in_place:
            self.result = hvd.allreduce_(self.data, op=hvd.Sum, name=f"{self.name}.in_place")
        else:
            self.result = hvd.allreduce(self.data, op=hvd.Sum, name=self.name)

    def count_wrong(self) -> int:
        """Compare with the sum of all tiles."""
        return self.arrays.count_wrong(self.result, self.expected_sum)


class Allgather(Collective):
    """The arrays of all ranks, one after another, on every rank."""

    splits_array = True

    def input_elements(self) -> int:
        """One part of the gathered array."""
        return self.count

    def run(self, in_place: bool) -> None:
        """Allgather into a new array."""
        self.result = self.hvd.allgather(self.data, name=self.name)

    def count_wrong(self) -> int:
        """Compare every part with its rank's tile."""
        parts = self.result.reshape(self.ranks, -1)
        return sum(
            self.arrays.count_wrong(part, values)
            for part, values in zip(parts, self.tiles, strict=True)
        )


class Broadcast(Collective):
    """The array of rank 0, on every rank."""

    root = 0
    has_in_place = True

    def run(self, in_place: bool) -> None:
        """Broadcast into the input or into a new array."""
        hvd = self.hvd
        if in_place:
            self.result = hvd.broadcast_(self.data, self.root, name=f"{self.name}.in_place")
        else:
            self.result = hvd.broadcast(self.data, self.root, name=self.name)

    def count_wrong(self) -> int:
        """Compare with the root's tile."""
        return self.arrays.count_wrong(self.result, self.tiles[self.root])


class Alltoall(Collective):
    """Part j of rank i's array becomes part i of rank j's, all parts equal."""

    splits_array = True

    def run(self, in_place: bool) -> None:
        """Alltoall into a new array."""
        self.result = self.hvd.alltoall(self.data, name=self.name)

    def count_wrong(self) -> int:
        """Compare part i with this rank's part of rank i's array."""
        parts = self.result.reshape(self.ranks, -1)
        return sum(
            self.arrays.count_wrong(part, values, self.rank * self.count)
            for part, values in zip(parts, self.tiles, strict=True)
        )


class Reducescatter(Collective):
    """Part i of the sum of all ranks' arrays, on rank i."""

    redop = "sum"
    splits_array = True

    def run(self, in_place: bool) -> None:
        """Reducescatter into a new array."""
        hvd = self.hvd
        self.result = hvd.reducescatter(self.data, op=hvd.Sum, name=self.name)

    def count_wrong(self) -> int:
        """Compare with this rank's part of the sum of all tiles."""
        return self.arrays.count_wrong(self.result, self.expected_sum, self.rank * self.count)


class Barrier(Collective):
    """Only waits for the other ranks."""

    def __init__(self, hvd: Any, arrays: Arrays, dtype: str, size_bytes: int, check: bool) -> None:
        self.hvd = hvd
        self.size_bytes = self.count = 0
        self.entered = self.left = 0.0

    def fill(self) -> None:
        """Let the ranks arrive one after another."""
        time.sleep(0.002 * self.hvd.rank())

    def run(self, in_place: bool) -> None:
        """Wait for all ranks."""
        self.entered = time.monotonic()
        self.hvd.barrier()
        self.left = time.monotonic()

    def count_wrong(self) -> int:
        """1 if this rank left before the last one came: all ranks of a machine share one clock."""
        import numpy as np

        entered = np.array([self.entered])
        last = self.hvd.allreduce(entered, op=self.hvd.Max, name="bench.barrier.last")
        return int(self.left < last[0])


COLLECTIVES: dict[str, type[Collective]] = {
    "allreduce": Allreduce,
    "allgather": Allgather,
    "broadcast": Broadcast,
    "alltoall": Alltoall,
    "reducescatter": Reducescatter,
    "barrier": Barrier,
}
