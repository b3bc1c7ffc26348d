"""Overwriting many tensors with those of one rank, all of them in flight at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hvdtune.faces.broadcast import Finisher, Named, finish_all
from hvdtune.torch import async_ops
from hvdtune.torch.adapter import as_buffer


def check_tensor(what: str, tensor: Any) -> None:
    """Raise ValueError, beginning with ``what``, for anything that cannot be broadcast in place."""
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{what} is a {type(tensor).__name__}, not a tensor.")
    if torch.nn.parameter.is_lazy(tensor):
        raise ValueError(f"{what} has no shape yet: run the model once before broadcasting it.")
    probe = tensor.detach()
    if probe.layout is torch.strided and not probe.is_contiguous():
        probe = probe.new_empty(0)  # a contiguous copy is sent in its place
    try:
        as_buffer(probe, "broadcast")
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from error


def broadcast_tensors(named: Sequence[Named], root_rank: int) -> None:
    """Overwrite the tensors, in place, with those of global rank ``root_rank``.

    A pair is (name or None, tensor), checked by ``check_tensor``. Waits for all of them even if
    some fail; then raises the first error.
    """
    finish_all([_start(name, tensor, root_rank) for name, tensor in named])


def _start(name: str | None, tensor: torch.Tensor, root_rank: int) -> Finisher:
    """Start the broadcast of one tensor. Returns a function that waits and stores the result."""
    target = tensor.detach()
    dense = target.contiguous()
    handle = async_ops.broadcast_async_(dense, root_rank, name)

    def finish() -> None:
        async_ops.synchronize(handle)
        if dense is not target:
            _store(dense, target)

    return finish


def _store(values: torch.Tensor, target: torch.Tensor) -> None:
    """Copy ``values`` into ``target``, which may have been made with expand()."""
    for dim, stride in enumerate(target.stride()):
        if stride == 0 and target.shape[dim] > 1:  # all of it is the same memory
            values, target = values.narrow(dim, 0, 1), target.narrow(dim, 0, 1)
    target.copy_(values)
