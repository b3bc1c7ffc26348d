"""One call of a collective: its parameters, without the arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hvdtune.arrays.adapter import Array
from hvdtune.core import operations
from hvdtune.core.operations import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCESCATTER
from hvdtune.core.process_sets import ProcessSet, id_of
from hvdtune.core.reduce_ops import Sum
from hvdtune.faces.broadcast import finish_all
from hvdtune.jax.adapter import collectives

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """`name` is None for an eager call without one."""

    kind: int
    process_set: ProcessSet
    name: str | None = None
    grouped: bool = False
    op: int = Sum
    prescale_factor: float = 1.0
    postscale_factor: float = 1.0
    root_rank: int = 0
    #: Allgather: for every array, the rows of each rank of the set. None: as many as on this rank.
    sizes: tuple[Shape, ...] | None = None
    #: Alltoall: rows to each rank, and from each rank. None: equal parts.
    splits: Shape | None = None
    received: Shape | None = None
    #: (Ranks of the set, this rank's place in it) if what is compiled depends on them.
    place: tuple[int, int] | None = None

    @property
    def operation(self) -> str:
        """Its name in messages and at the front of wire names."""
        return ("grouped_" if self.grouped else "") + operations.KIND_NAMES[self.kind]

    def result_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        """The shapes of the results for arrays of these shapes."""
        if self.kind in (ALLREDUCE, BROADCAST):
            return list(shapes)
        return [(self._result_rows(i, shape[0]), *shape[1:]) for i, shape in enumerate(shapes)]

    def _result_rows(self, index: int, rows: int) -> int:
        assert self.place is not None
        members, place = self.place
        if self.kind == REDUCESCATTER:
            return rows // members + (place < rows % members)
        if self.kind == ALLTOALL:
            return rows if self.received is None else sum(self.received)
        return rows * members if self.sizes is None else sum(self.sizes[index])

    def attributes(self) -> dict[str, Any]:
        """The attributes of XLA's custom call: see `_native.xla_collective_call`."""
        assert self.name is not None
        members, place = self.place or (0, 0)
        equal = self.sizes is None and self.splits is None
        numbers = (self.kind, self.op, self.root_rank, id_of(self.process_set), self.grouped)
        splits = (*(self.splits or ()), *(self.received or ()))
        return {
            "name": operations.name_on_wire(self.operation, self.name),
            "numbers": np.array([*numbers, members, place, equal], np.int64),
            "factors": np.array([self.prescale_factor, self.postscale_factor], np.float64),
            "splits": np.array(splits, np.int64),
        }

    def check_place(self) -> None:
        """Raise ValueError if the call was compiled for another place than this process has now."""
        if self.place is None or (now := members_of(self.process_set)) == self.place:
            return
        assert self.name is not None
        (members, place), (members_now, place_now) = self.place, now
        raise ValueError(
            f"tensor {operations.name_on_wire(self.operation, self.name)}: the program was "
            f"compiled for rank {place} of {members}, and this is rank {place_now} of "
            f"{members_now}, for which its results may differ; after a change of the ranks compile "
            "it anew (with JAX: jax.clear_caches())"
        )

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Perform it now, on arrays in host memory. Raises what `faces.collectives` raises."""
        name, process_set = self.name, self.process_set
        reduction = (self.op, process_set, self.prescale_factor, self.postscale_factor)
        first = arrays[0]
        if self.kind == ALLREDUCE:
            options = (None, name, self.op, *reduction[2:], process_set)
            if self.grouped:
                return collectives.grouped_allreduce(arrays, *options)
            return [collectives.allreduce(first, *options)]
        if self.kind == ALLGATHER:
            if self.grouped:
                return list(collectives.grouped_allgather(arrays, name, process_set))
            return [collectives.allgather(first, name, process_set)]
        if self.kind == REDUCESCATTER:
            if self.grouped:
                return collectives.grouped_reducescatter(arrays, name, *reduction)
            return [collectives.reducescatter(first, name, *reduction)]
        if self.kind == ALLTOALL:
            return [rows for rows, _ in self.exchange(arrays)]
        assert self.kind == BROADCAST
        return self._finish_all(
            [
                collectives.broadcast_async(array, self.root_rank, one, process_set)
                for array, one in zip(arrays, self._names(len(arrays)), strict=True)
            ]
        )

    def exchange(self, arrays: Sequence[Array]) -> list[tuple[Array, Array]]:
        """Perform an alltoall: for every array, the rows received, and their number by sender."""
        return self._finish_all(
            [
                collectives.alltoall_async(array, self.splits, one, self.process_set)
                for array, one in zip(arrays, self._names(len(arrays)), strict=True)
            ]
        )

    def _names(self, count: int) -> list[str | None]:
        """The names of the arrays of an operation without groups."""
        if self.name is None or count == 1:
            return [self.name] * count
        return [f"{self.name}.{index}" for index in range(count)]

    @staticmethod
    def _finish_all(handles: Sequence[int]) -> list[Any]:
        results: dict[int, Any] = {}
        finish_all([partial(_fetch, handle, results) for handle in handles])
        return [results[handle] for handle in handles]


def _fetch(handle: int, results: dict[int, Any]) -> None:
    results[handle] = operations.synchronize(handle)


def members_of(process_set: ProcessSet) -> tuple[int, int]:
    """(ranks of a set, this rank's place in it). Raises ValueError if this rank is not in it."""
    operations.running_engine()
    id_of(process_set)
    size, place = process_set.size(), process_set.rank()
    assert size is not None  # it is registered
    assert place is not None
    return size, place
