"""Keras on PyTorch: see `Backend`. Training steps run eagerly, in Python."""
# ruff: noqa: D103 (the protocol has the docstrings)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from keras import ops

import hvdtune.torch as hvd
from hvdtune.core.process_sets import ProcessSet
from hvdtune.torch.async_ops import collectives


def tensor(value: Any) -> Any:
    return ops.convert_to_tensor(value)


def cast(tensor: Any, dtype: Any) -> Any:
    return ops.cast(tensor, dtype)


def is_floating(tensor: Any) -> bool:
    return bool(tensor.dtype.is_floating_point)


def is_sparse(gradient: Any) -> bool:
    return False


def dense(gradient: Any) -> Any:
    return gradient.to_dense() if gradient.layout is not torch.strided else gradient


def divided(gradient: Any, divisor: int) -> Any:
    return dense(gradient) / divisor


def is_traced(tensor: Any) -> bool:
    # On this device, without memory, Keras computes only shapes.
    return bool(tensor.device.type == "meta")


def grouped_allreduce(
    tensors: Sequence[Any],
    name: str,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
) -> list[Any]:
    return collectives.grouped_allreduce(
        [tensor.detach().contiguous() for tensor in tensors],
        name=name,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
    )


def sparse_allreduce(
    gradients: Sequence[Any], name: str, op: int, process_set: ProcessSet
) -> list[Any]:
    raise NotImplementedError  # no gradient `is_sparse`


def allreduce(
    tensor: Any, name: str | None, op: int, prescale_factor: float, postscale_factor: float
) -> Any:
    return hvd.allreduce(
        tensor.contiguous(),
        name=name,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )


def allgather(tensor: Any, name: str | None) -> Any:
    return hvd.allgather(tensor.contiguous(), name=name)


def broadcast(tensor: Any, root_rank: int, name: str | None) -> Any:
    return hvd.broadcast(tensor.contiguous(), root_rank, name=name)


def reducescatter(tensor: Any, name: str | None, op: int) -> Any:
    return hvd.reducescatter(tensor.contiguous(), name=name, op=op)
