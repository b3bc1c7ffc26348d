"""Keras on JAX: see `Backend`. A training step is compiled; a collective in it is one call."""
# ruff: noqa: D103 (the protocol has the docstrings)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental import sparse
from keras import ops

import hvdtune.jax as hvd
from hvdtune.core.process_sets import ProcessSet


def tensor(value: Any) -> Any:
    return ops.convert_to_tensor(value)


def cast(tensor: Any, dtype: Any) -> Any:
    return ops.cast(tensor, dtype)


def is_floating(tensor: Any) -> bool:
    return bool(jax.numpy.issubdtype(tensor.dtype, jax.numpy.floating))


def is_sparse(gradient: Any) -> bool:
    return False


def dense(gradient: Any) -> Any:
    return gradient.todense() if isinstance(gradient, sparse.JAXSparse) else gradient


def divided(gradient: Any, divisor: int) -> Any:
    return dense(gradient) / divisor


def is_traced(tensor: Any) -> bool:
    return isinstance(tensor, jax.core.Tracer)


def grouped_allreduce(
    tensors: Sequence[Any],
    name: str,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
) -> list[Any]:
    return list(
        hvd.grouped_allreduce(
            list(tensors),
            name=name,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            process_set=process_set,
        )
    )


def sparse_allreduce(
    gradients: Sequence[Any], name: str, op: int, process_set: ProcessSet
) -> list[Any]:
    raise NotImplementedError  # no gradient `is_sparse`


def allreduce(
    tensor: Any, name: str | None, op: int, prescale_factor: float, postscale_factor: float
) -> Any:
    return hvd.allreduce(
        tensor,
        name=name,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )


def allgather(tensor: Any, name: str | None) -> Any:
    return hvd.allgather(tensor, name=name)


def broadcast(tensor: Any, root_rank: int, name: str | None) -> Any:
    return hvd.broadcast(tensor, root_rank, name=name)


def reducescatter(tensor: Any, name: str | None, op: int) -> Any:
    return hvd.reducescatter(tensor, name=name, op=op)
