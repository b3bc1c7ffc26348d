"""Making ranks equal: parameters, optimizer state, and any Python object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from hvdtune.core.objects import allgather_object, broadcast_object
from hvdtune.faces.broadcast import Named, checked_parameters
from hvdtune.torch.optimizer_state import broadcast_optimizer_state
from hvdtune.torch.tensor_broadcast import broadcast_tensors, check_tensor

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]


def broadcast_parameters(
    params: Mapping[str, torch.Tensor] | Iterable[torch.Tensor | Named], root_rank: int
) -> None:
    """Make the tensors of all ranks equal to those of global rank ``root_rank``, in place.

    ``params`` is a ``state_dict()``, or any iterable of tensors or (name, tensor) pairs, such as
    ``model.named_parameters()``. Collective over all ranks. Raises ValueError on every rank for
    anything but a tensor of a type that can be sent (naming the rank and the parameter), for a
    name given twice, and if the ranks' names differ; HorovodInternalError if the tensors differ in
    type or shape.
    """
    named = checked_parameters(params, torch.Tensor, check_tensor)
    broadcast_tensors(named, root_rank)
