"""Making ranks equal: parameters, optimizer state, and any Python object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from hvdtune.core.objects import allgather_object, broadcast_object
from hvdtune.torch.optimizer_state import broadcast_optimizer_state
from hvdtune.torch.tensor_broadcast import Named, broadcast_tensors, check_tensor

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
    ``model.named_parameters()``. Collective over all ranks. Raises ValueError on every rank, naming
    the rank and the parameter, for something that is no tensor or of a type that cannot be sent,
    for a name given twice, and when the ranks' names differ; HorovodInternalError when the tensors
    differ in type or shape.
    """
    named, fault = _checked(params)
    names = Counter(name for name, _ in named)
    every = allgather_object((fault, names), name="broadcast_parameters")
    faults = [f"on rank {other}: {text}" for other, (text, _) in enumerate(every) if text]
    if faults:
        raise ValueError(fault or f"broadcast_parameters {faults[0]}")
    _check_equal([others for _, others in every])
    broadcast_tensors(named, root_rank)


def _checked(params: Any) -> tuple[list[Named], str | None]:
    """The pairs of ``params``, and what is wrong with this rank's, if something is."""
    try:
        named = _named_tensors(params)
        for index, (name, tensor) in enumerate(named):
            check_tensor(f"Parameter {index if name is None else repr(name)}", tensor)
    except ValueError as error:
        return [], str(error)
    return named, None


def _named_tensors(params: Any) -> list[Named]:
    """``params`` of any accepted form as (name or None, tensor) pairs."""
    if isinstance(params, Mapping):
        # Dictionaries of the same content may differ in order.
        pairs = sorted(params.items(), key=lambda item: str(item[0]))
    elif isinstance(params, torch.Tensor | str) or not isinstance(params, Iterable):
        raise ValueError(
            f"invalid params of type: {type(params)}; broadcast_parameters takes a state_dict, "
            "or an iterable of tensors or (name, tensor) pairs."
        )
    else:
        pairs = [item if isinstance(item, tuple) else (None, item) for item in params]
    for pair in pairs:
        if len(pair) != 2:
            raise ValueError(f"broadcast_parameters takes pairs (name, tensor), not {pair!r}.")
    named = [(None if name is None else str(name), tensor) for name, tensor in pairs]
    counts = Counter(name for name, _ in named if name is not None)
    repeated = sorted(name for name, count in counts.items() if count > 1)
    if repeated:
        raise ValueError(f"Parameter names must be different; given twice: {', '.join(repeated)}.")
    return named


def _check_equal(every: list[Counter[str | None]]) -> None:
    """Raise ValueError, on all ranks, unless all have tensors of the same names."""
    for other, names in enumerate(every):
        if names[None] != every[0][None]:
            raise ValueError(
                f"broadcast_parameters: rank {other} has {names[None]} tensors without a name, "
                f"rank 0 has {every[0][None]}; they must be equal."
            )
        for has, lacks, name in [
            *((other, 0, name) for name in names - every[0]),
            *((0, other, name) for name in every[0] - names),
        ]:
            raise ValueError(
                f"broadcast_parameters: rank {has} has a parameter {name!r}, rank {lacks} has "
                "not; all ranks pass the same parameters."
            )
