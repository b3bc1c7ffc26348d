"""Collectives on arbitrary Python objects, built on a face's byte collectives.

An object that cannot be pickled is an error on every rank, not only on its own: the error's text is
sent in its place, announced by a negative length, so that nobody waits for bytes that never come.
"""

from __future__ import annotations

import time
from typing import Any

from hvdtune.core import tables, world
from hvdtune.core.observation import marks
from hvdtune.core.process_sets import ProcessSet, global_process_set


def _packed(obj: Any, name: str) -> tuple[Any, int, Exception | None]:
    """(bytes to send, their number, None), or (error text, minus its length, the error)."""
    import cloudpickle
    import numpy as np

    begin = time.monotonic()
    try:
        data = np.frombuffer(cloudpickle.dumps(obj), dtype=np.uint8)
        _took(begin, name)
        return data, data.size, None
    except Exception as error:  # whatever the object's own __reduce__ raises
        text = f"a {type(obj).__name__} that cannot be pickled ({type(error).__name__}: {error})"
        data = np.frombuffer(text.encode(errors="replace"), dtype=np.uint8)
        return data, -data.size, error


def _loaded(data: Any, sender: int, call: str, name: str) -> Any:
    """The object that global rank ``sender`` sent as ``data``."""
    import cloudpickle

    begin = time.monotonic()
    try:
        obj = cloudpickle.loads(data)
        _took(begin, name)
        return obj
    except Exception as error:
        raise ValueError(
            f"{call}: rank {world.rank()} cannot load the object of rank {sender} "
            f"({type(error).__name__}: {error})"
        ) from error


def _took(begin: float, name: str) -> None:
    """Record how long the pickling or unpickling of an object took."""
    if marks.are_recorded():
        marks.counter(f"pickling {name} (s)", time.monotonic() - begin)


def _text(data: Any) -> str:
    return bytes(data).decode()


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send a picklable object from `root_rank` to every rank of the set.

    Returns the root's own object on the root, a copy of it elsewhere; the others' own objects are
    ignored. Two broadcasts: ``<name>.sz`` (length) and ``<name>.t`` (bytes). Raises ValueError on
    every rank if the root's object cannot be pickled, and on a rank that cannot load it.
    """
    import numpy as np

    # Without the type's name, unlike Horovod: ranks that pass different types would never meet.
    base = name if name is not None else "broadcast_object"
    root = world.rank() == root_rank
    data, number, error = _packed(obj, f"broadcast.{base}") if root else (None, 0, None)
    length = np.array([number], dtype=np.int64)
    tables.broadcast(length, root_rank, f"{base}.sz", process_set)
    received = int(length[0])
    if not root:
        data = np.empty(abs(received), dtype=np.uint8)
    tables.broadcast(data, root_rank, f"{base}.t", process_set)
    if received < 0:
        raise ValueError(f"broadcast_object: rank {root_rank} has {_text(data)}") from error
    return obj if root else _loaded(data, root_rank, "broadcast_object", f"broadcast.{base}")


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Every rank's picklable object, in rank order. Names ``<name>.sz`` and ``<name>.t``.

    Raises ValueError on every rank if an object cannot be pickled, and on a rank that cannot load
    one.
    """
    import numpy as np

    base = name if name is not None else "allgather_object"
    data, number, error = _packed(obj, f"allgather.{base}")
    length = np.array([number], dtype=np.int64)
    lengths = tables.gather({f"{base}.sz": length}, process_set)[0].tolist()
    everything = tables.gather({f"{base}.t": data}, process_set)[0]
    ends = np.cumsum(np.abs(lengths)).tolist()
    parts = [everything[end - abs(n) : end] for n, end in zip(lengths, ends, strict=True)]
    ranks = process_set.ranks or range(len(parts))
    faults = [
        f"rank {rank} has {_text(part)}"
        for rank, part, n in zip(ranks, parts, lengths, strict=True)
        if n < 0
    ]
    if faults:
        raise ValueError(f"allgather_object: {'; '.join(faults)}") from error
    return [
        _loaded(part, rank, "allgather_object", f"allgather.{base}")
        for rank, part in zip(ranks, parts, strict=True)
    ]
