"""NumPy arrays that ranks exchange for their own bookkeeping, in host memory on every face."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hvdtune.core import operations
from hvdtune.core.exceptions import HorovodInternalError
from hvdtune.core.operations import Buffer, Completed
from hvdtune.core.process_sets import ProcessSet, global_process_set


def gather(tables: Mapping[str, Any], process_set: ProcessSet = global_process_set) -> list[Any]:
    """Join every table, by its name on the wire, with the others' along the first dimension."""
    handles = [
        operations.allgather_async(
            [_buffer(table)], name=name, process_set=process_set, finish=_first
        )
        for name, table in tables.items()
    ]
    return _results(handles)


def reduce(
    tables: Mapping[str, Any], op: int, process_set: ProcessSet = global_process_set
) -> None:
    """Reduce every table, by its name on the wire, in place."""
    handles = []
    for name, table in tables.items():
        buffers = [_buffer(table)]
        handles.append(
            operations.allreduce_async(
                buffers, buffers, name=name, op=op, process_set=process_set, finish=_nothing
            )
        )
    _results(handles)


def broadcast(
    table: Any, root_rank: int, name: str, process_set: ProcessSet = global_process_set
) -> None:
    """Overwrite the table with that of global rank `root_rank`."""
    buffer = _buffer(table)
    handle = operations.broadcast_async(
        buffer, buffer, root_rank, name=name, process_set=process_set, finish=_nothing
    )
    operations.synchronize(handle)


def _buffer(table: Any) -> Buffer:
    address = operations.array_address(table)
    return Buffer(address, operations.DTYPES[table.dtype.name], tuple(table.shape), table)


def _first(completed: Completed) -> Any:
    return completed.outputs[0]


def _nothing(completed: Completed) -> None:
    pass


def _results(handles: Sequence[int]) -> list[Any]:
    """Wait for all, even after one has failed: until then their names are in use."""
    results, problems = [], []
    for handle in handles:
        try:
            results.append(operations.synchronize(handle))
        except HorovodInternalError as problem:
            problems.append(problem)
    if problems:
        raise problems[0]
    return results
