"""``broadcast_optimizer_state``: gives all ranks the options and state of one rank's optimizer.

The root sends its state as one object in which placeholders stand for the tensors. The tensors
follow in broadcasts of their own, named ``<state name>.<occurrence>``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from hvdtune.core.objects import allgather_object, broadcast_object
from hvdtune.core.world import rank, size
from hvdtune.faces.state_transfer import Filling, Packing, Place
from hvdtune.torch.tensor_broadcast import broadcast_tensors, check_tensor

Optimizer = torch.optim.Optimizer


@dataclass(frozen=True)
class _Packed:
    """What the root sends: options by group, state by parameter, and state under other keys."""

    options: list[dict[str, Any]]
    states: list[Any]  # None for a parameter without state
    others: dict[Any, Any]


def broadcast_optimizer_state(
    optimizer: Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Make the options and state of ``optimizer`` on all ranks equal to those of ``root_rank``.

    A rank creates state that it does not have yet, and drops state that the root does not have.
    No parameter changes and no step is taken. If the root has no state at all, missing gradients
    become zeros on every rank, as in Horovod, except sparse ones: those of SparseAdam and of the
    sparse embeddings of ``model``. Collective over all ranks.

    Raises ValueError, on every rank, for torch.optim.LBFGS, if the number of parameters by group
    differs from the root's, and for state that cannot be pickled.
    """
    _check(optimizer, root_rank)
    if size() > 1:
        _broadcast(optimizer, root_rank)
    if not optimizer.state:
        _fill_gradients(optimizer, model)


def _check(optimizer: Optimizer, root_rank: int) -> None:
    """Raise ValueError, on all ranks, if one rank's optimizer cannot take the root's state."""
    fault, own = None, None
    if isinstance(optimizer, torch.optim.LBFGS):
        # Its state is a history of this rank's own line search.
        fault = "broadcast_optimizer_state does not support torch.optim.LBFGS."
    elif not (hasattr(optimizer, "param_groups") and hasattr(optimizer, "state")):
        fault = f"broadcast_optimizer_state takes an optimizer, not a {type(optimizer).__name__}."
    else:
        own = [len(group["params"]) for group in optimizer.param_groups]
    every = allgather_object((fault, own), name="optimizer_state.counts")
    for other, (problem, _) in enumerate(every):
        if fault or problem:
            raise ValueError(fault or f"rank {other}: {problem}")
    counts = every[root_rank][1] if 0 <= root_rank < len(every) else own
    for other, (_, numbers) in enumerate(every):
        if numbers != counts:
            raise ValueError(
                f"broadcast_optimizer_state: rank {other} has {numbers} parameters by parameter "
                f"group, rank {root_rank} has {counts}; they must be equal."
            )


def _broadcast(optimizer: Optimizer, root_rank: int) -> None:
    root = rank() == root_rank
    packing, filling = Packing(_is_sendable), Filling(_storage_for)
    packed = _pack(optimizer, packing) if root else None
    packed = broadcast_object(packed, root_rank, name="optimizer_state")
    if not root:
        _take(optimizer, packed, filling)
    tensors = packing.tensors if root else filling.tensors
    broadcast_tensors(sorted(tensors.items()), root_rank)


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _pack(optimizer: Optimizer, packing: Packing) -> _Packed:
    """The state to send."""
    state = optimizer.state
    return _Packed(
        [
            {option: value for option, value in group.items() if option != "params"}
            for group in optimizer.param_groups
        ],
        [packing.pack(state[p]) if p in state else None for p in _parameters(optimizer)],
        {key: packing.pack(state[key]) for key in state if not isinstance(key, torch.Tensor)},
    )


def _is_sendable(value: Any) -> bool:
    """Whether a broadcast takes it; others (complex, sparse, …) are sent in the pickled object."""
    if not isinstance(value, torch.Tensor):
        return False
    try:
        check_tensor("", value)
    except ValueError:
        return False
    return True


def _take(optimizer: Optimizer, packed: _Packed, filling: Filling) -> None:
    """Give `optimizer` the root's state, with tensors that broadcasts will fill."""
    for group, options in zip(optimizer.param_groups, packed.options, strict=True):
        group.update(options)
    before = dict(optimizer.state)
    optimizer.state.clear()
    for parameter, state in zip(_parameters(optimizer), packed.states, strict=True):
        if state is not None:
            optimizer.state[parameter] = filling.fill(state, before.get(parameter), parameter)
    for key, state in packed.others.items():
        optimizer.state[key] = filling.fill(state, before.get(key))


def _storage_for(place: Place, old: Any, parameter: torch.Tensor | None) -> torch.Tensor:
    """The tensor that a broadcast fills: the existing one, if it fits.

    All ranks need it on one kind of device, that of the root's: a new one is on the device of its
    ``parameter``, if this is of that kind, or else on the current one.
    """
    wanted = (place.shape, place.dtype, place.device_type)
    if _is_sendable(old) and (tuple(old.shape), old.dtype, old.device.type) == wanted:
        return old
    device = torch.device(place.device_type)
    if parameter is not None and parameter.device.type == place.device_type:
        device = parameter.device
    try:
        return torch.empty(place.shape, dtype=place.dtype, device=device)
    except (RuntimeError, AssertionError):  # there is none: the broadcast says so on all ranks
        return torch.empty(place.shape, dtype=place.dtype, device="cpu")


def _fill_gradients(optimizer: Optimizer, model: torch.nn.Module | None) -> None:
    """Give zeros to parameters without a gradient; scripts read them afterwards."""
    if isinstance(optimizer, torch.optim.SparseAdam):
        return
    embeddings = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    sparse = {
        module.weight
        for module in (model.modules() if model is not None else ())
        if isinstance(module, embeddings) and module.sparse
    }
    for parameter in _parameters(optimizer):
        if parameter.requires_grad and parameter.grad is None and parameter not in sparse:
            parameter.grad = torch.zeros_like(parameter.detach())
