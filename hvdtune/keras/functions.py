"""Collectives on values of Keras' backend, and functions that make ranks equal."""

from __future__ import annotations

from typing import Any

from hvdtune.core.reduce_ops import Average
from hvdtune.faces.arguments import allreduce_op
from hvdtune.keras import backends
from hvdtune.keras.compression import Compression


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Reduce `value` over all ranks into a new tensor of the backend; the average by default.

    `value`: a number, list, array, tensor or variable, of one dtype and shape on all ranks.
    `average` is the deprecated form of `op`; giving both is a ValueError. If the ranks differ, they
    raise what the backend's collectives raise (`HorovodInternalError`, TensorFlow's own errors).
    """
    op = allreduce_op(op, average)
    backend = backends.current()
    compressed, context = compression.compress(backend.tensor(value))
    result = backend.allreduce(compressed, name, op, prescale_factor, postscale_factor)
    return compression.decompress(result, context)


def allgather(value: Any, name: str | None = None) -> Any:
    """Join every rank's `value` along the first dimension, which may differ, in rank order."""
    backend = backends.current()
    return backend.allgather(backend.tensor(value), name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The `value` of rank `root_rank`, on every rank, as a new tensor."""
    backend = backends.current()
    return backend.broadcast(backend.tensor(value), root_rank, name)


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """Reduce `value` over all ranks (Average or Sum); this rank's share of the rows."""
    backend = backends.current()
    return backend.reducescatter(backend.tensor(value), name, op)


def broadcast_global_variables(root_rank: int) -> Any:
    """Horovod's function for sessions: an operation that makes all global variables equal.

    Only graphs of TensorFlow 1 have global variables. Elsewhere it raises RuntimeError: use
    `broadcast_variables` or `callbacks.BroadcastGlobalVariablesCallback`.
    """
    import sys

    tf = sys.modules.get("tensorflow")
    if tf is None or tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() does not support eager execution. Please use "
            "`hvd.broadcast_variables(<model/optimizer variables>)` instead."
        )
    backend = backends.current()
    return tf.group(
        *(
            variable.assign(backend.broadcast(variable, root_rank, f"global_variables.{index}"))
            for index, variable in enumerate(tf.compat.v1.global_variables())
        )
    )
