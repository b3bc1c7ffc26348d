"""Collectives on arbitrary Python objects, built on a face's byte collectives."""

from __future__ import annotations

from typing import Any

from hvdtune.core import operations, world
from hvdtune.core.operations import Buffer, Completed
from hvdtune.core.process_sets import ProcessSet, global_process_set


def _pickled(obj: Any) -> Any:
    import cloudpickle
    import numpy as np

    return np.frombuffer(cloudpickle.dumps(obj), dtype=np.uint8)


def _buffer(data: Any) -> Buffer:
    address = operations.array_address(data)
    return Buffer(address, operations.DTYPES[data.dtype.name], tuple(data.shape), data)


def _gather(data: Any, name: str, process_set: ProcessSet) -> Any:
    def only(completed: Completed) -> Any:
        return completed.outputs[0]

    handle = operations.allgather_async(
        [_buffer(data)], name=name, process_set=process_set, finish=only
    )
    return operations.synchronize(handle)


def _broadcast_in_place(data: Any, root_rank: int, name: str, process_set: ProcessSet) -> None:
    def nothing(completed: Completed) -> None:
        pass

    buffer = _buffer(data)
    handle = operations.broadcast_async(
        buffer, buffer, root_rank, name=name, process_set=process_set, finish=nothing
    )
    operations.synchronize(handle)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send a picklable object from `root_rank` to every rank of the set.

    Returns the root's own object on the root, a copy of it elsewhere; what the others pass does not
    matter. Two broadcasts: ``<name>.sz`` (length) and ``<name>.t`` (bytes).
    """
    import cloudpickle
    import numpy as np

    base = name if name is not None else "broadcast_object"
    root = world.rank() == root_rank
    data = _pickled(obj).copy() if root else None
    length = np.array([0 if data is None else data.size], dtype=np.int64)
    _broadcast_in_place(length, root_rank, f"{base}.sz", process_set)
    if data is None:
        data = np.empty(int(length[0]), dtype=np.uint8)
    _broadcast_in_place(data, root_rank, f"{base}.t", process_set)
    return obj if root else cloudpickle.loads(data.tobytes())


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Every rank's picklable object, in rank order. Names ``<name>.sz`` and ``<name>.t``."""
    import cloudpickle
    import numpy as np

    base = name if name is not None else "allgather_object"
    data = _pickled(obj)
    sizes = _gather(np.array([data.size], dtype=np.int64), f"{base}.sz", process_set)
    everything = _gather(data, f"{base}.t", process_set)
    objects = []
    begin = 0
    for size in sizes.tolist():
        objects.append(cloudpickle.loads(everything[begin : begin + size].tobytes()))
        begin += size
    return objects
