"""Keras on TensorFlow, and tf-keras: see `Backend`. A training step is a traced function."""
# ruff: noqa: D103 (the protocol has the docstrings)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

import hvdtune.tensorflow.gradients  # noqa: F401  (registers the gradients)
from hvdtune.core.process_sets import ProcessSet
from hvdtune.core.reduce_ops import Average
from hvdtune.tensorflow import mpi_ops


def tensor(value: Any) -> Any:
    return tf.convert_to_tensor(value)


def cast(tensor: Any, dtype: Any) -> Any:
    return tf.cast(tensor, dtype)


def is_floating(tensor: Any) -> bool:
    return bool(tensor.dtype.is_floating)


def is_sparse(gradient: Any) -> bool:
    return isinstance(gradient, tf.IndexedSlices)


def dense(gradient: Any) -> Any:
    return tf.convert_to_tensor(gradient)


def divided(gradient: Any, divisor: int) -> Any:
    if not is_sparse(gradient):
        return gradient / tf.cast(divisor, gradient.dtype)
    values = gradient.values / tf.cast(divisor, gradient.dtype)
    return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)


def is_traced(tensor: Any) -> bool:
    return not tf.executing_eagerly()


def grouped_allreduce(
    tensors: Sequence[Any],
    name: str,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
) -> list[Any]:
    return list(
        mpi_ops._grouped_allreduce(
            list(tensors),
            name=_node_name(name),
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            process_set=process_set,
        )
    )


def sparse_allreduce(
    gradients: Sequence[Any], name: str, op: int, process_set: ProcessSet
) -> list[Any]:
    parts = [part for g in gradients for part in (g.values, g.indices)]
    gathered = mpi_ops.grouped_allgather(
        parts, name=_node_name(f"{name}.sparse"), process_set=process_set
    )
    divisor = (process_set.size() or 1) if op == Average else 1
    return [
        tf.IndexedSlices(values / tf.cast(divisor, values.dtype), indices, g.dense_shape)
        for g, values, indices in zip(gradients, gathered[::2], gathered[1::2], strict=True)
    ]


def allreduce(
    tensor: Any, name: str | None, op: int, prescale_factor: float, postscale_factor: float
) -> Any:
    return mpi_ops._allreduce(
        tensor,
        name=_node_name(name),
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )


def allgather(tensor: Any, name: str | None) -> Any:
    return mpi_ops.allgather(tensor, name=_node_name(name))


def broadcast(tensor: Any, root_rank: int, name: str | None) -> Any:
    return mpi_ops.broadcast(tensor, root_rank, name=_node_name(name))


def reducescatter(tensor: Any, name: str | None, op: int) -> Any:
    return mpi_ops._reducescatter(tensor, name=_node_name(name), op=op)


def _node_name(name: str | None) -> str | None:
    """`name` in the form that TensorFlow accepts for nodes."""
    if name is None:
        return None
    return "".join(c if (c.isalnum() and c.isascii()) or c in "_./" else "_" for c in name)
