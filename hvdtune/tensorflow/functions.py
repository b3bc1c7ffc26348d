"""Makes ranks equal: variables, and any Python object."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvdtune.arrays import collectives
from hvdtune.arrays.adapter import ArrayAdapter
from hvdtune.core import objects, tables
from hvdtune.core.operations import synchronize
from hvdtune.core.process_sets import ProcessSet, global_process_set
from hvdtune.faces.broadcast import finish_all
from hvdtune.tensorflow import mpi_ops
from hvdtune.tensorflow.util import value_of

_KNOWN = ArrayAdapter().codes  # NumPy's types that can be sent


def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Make the variables of all ranks equal to those of global rank ``root_rank``.

    ``variables``: TensorFlow's or Keras's, in the same number and order on all ranks. In eager
    mode they are equal on return; in a graph, returns the operation that makes them equal.
    ``inplace``: in graphs, uses one operation for all variables of a device.

    In eager mode raises ValueError, on all ranks, if their numbers of variables differ;
    HorovodInternalError if their types or shapes do, or a rank is gone. In graphs, TensorFlow's
    errors (see ``mpi_ops``).
    """
    every = [value_of(variable) for variable in variables]
    if tf.executing_eagerly():
        values = [variable.numpy() for variable in every]
        received = broadcast_values(values, root_rank, process_set, "broadcast_variables")
        for variable, value in zip(every, received, strict=True):
            variable.assign(value)
        return None
    if inplace:
        by_device: dict[str, list[Any]] = {}
        for variable in every:
            by_device.setdefault(variable.device, []).append(variable)
        done = [
            mpi_ops.broadcast_(of_one, root_rank, process_set=process_set)
            for of_one in by_device.values()
        ]
        return tf.group(*tf.nest.flatten(done))
    values = [mpi_ops.value_of_root(v, root_rank, _label(v), process_set) for v in every]
    return tf.group(*(v.assign(value) for v, value in zip(every, values, strict=True)))


def broadcast_values(
    values: Sequence[Any], root_rank: int, process_set: ProcessSet, name: str
) -> list[Any]:
    """The arrays of ``root_rank``, given those of each rank; all are in flight at once.

    Raises ValueError, on all ranks, if their numbers differ; HorovodInternalError if types or
    shapes do.
    """
    own = np.array([len(values)], dtype=np.int64)
    counts = tables.gather({f"{name}.count": own}, process_set)[0].tolist()
    if len(set(counts)) > 1:
        pairs = zip(process_set.ranks or (), counts, strict=True)
        told = ", ".join(f"rank {rank}: {number}" for rank, number in pairs)
        raise ValueError(f"{name}: all ranks must pass equally many variables ({told}).")
    copies = [np.array(value, copy=True, order="C") for value in values]
    handles = [
        collectives.broadcast_async_(_sendable(copy), root_rank, f"{name}.{i}", process_set)
        for i, copy in enumerate(copies)
    ]
    finish_all([functools.partial(synchronize, handle) for handle in handles])
    return copies


def _sendable(array: Any) -> Any:
    """The array, or its bytes if only TensorFlow knows the type (Keras's seeds are uint32)."""
    if array.dtype in _KNOWN or array.dtype.hasobject:
        return array
    return array.reshape(-1).view(np.uint8)


def _label(variable: Any) -> str:
    return "HorovodBroadcast_" + re.sub(r"[^A-Za-z0-9_]", "_", variable.name)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """A picklable object of ``root_rank``, on every rank of the set; see ``core.objects``.

    It uses no graph, so ``session``, which Horovod needs, is ignored.
    """
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """``broadcast_object`` as a function of the object alone."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Every rank's picklable object, in rank order; ``session`` is ignored."""
    return objects.allgather_object(obj, name, process_set)


def broadcast_global_variables(root_rank: int) -> Any:
    """The operation that gives a graph's global variables ``root_rank``'s values on all ranks.

    Raises RuntimeError in eager mode, which has none.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() does not support eager execution; use "
            "hvd.broadcast_variables(<variables of the model and the optimizer>, root_rank)."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Makes global variables equal to ``root_rank``'s on all ranks, when a session has begun.

    For MonitoredTrainingSession, which by then has initialised them or restored them from a
    checkpoint. ``device``: where TensorFlow puts the operations.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Any = None

    def begin(self) -> None:
        """Add the operation to the graph."""
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            with tf.device(self.device):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run it."""
        session.run(self.bcast_op)
