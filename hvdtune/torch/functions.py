"""Making ranks equal: parameters, optimizer state, and any Python object."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from hvdtune.core.objects import allgather_object, broadcast_object
from hvdtune.core.world import rank, size
from hvdtune.torch import async_ops

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]

Named = tuple[str | None, torch.Tensor]


def broadcast_parameters(
    params: Mapping[str, torch.Tensor] | Iterable[torch.Tensor | Named], root_rank: int
) -> None:
    """Make the tensors of all ranks equal to those of global rank ``root_rank``, in place.

    ``params`` is a ``state_dict()``, or any iterable of tensors or (name, tensor) pairs, such as
    ``model.named_parameters()``. Collective over all ranks. Raises ValueError, naming the
    parameter, for something that is no tensor or of a type that cannot be sent, and
    HorovodInternalError when the ranks' tensors differ in type or shape.
    """
    named = _named_tensors(params)
    finishers = [_start_broadcast(name, tensor, root_rank) for name, tensor in named]
    # The last one first: by the time that it is waited for, all others have been submitted.
    for finish in reversed(finishers):
        finish()


def _named_tensors(params: Any) -> list[Named]:
    """``params`` of any accepted form as (name or None, tensor) pairs, in an order of all ranks."""
    if isinstance(params, Mapping):
        pairs = sorted(params.items())
    elif isinstance(params, torch.Tensor | str) or not isinstance(params, Iterable):
        raise ValueError(
            f"invalid params of type: {type(params)}; broadcast_parameters takes a state_dict, "
            "or an iterable of tensors or (name, tensor) pairs."
        )
    else:
        pairs = [item if isinstance(item, tuple) else (None, item) for item in params]
    for index, (name, tensor) in enumerate(pairs):
        what = f"Parameter {index if name is None else repr(name)}"
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"{what} is a {type(tensor).__name__}, not a tensor.")
        if torch.nn.parameter.is_lazy(tensor):
            raise ValueError(f"{what} has no shape yet: run the model once before broadcasting it.")
    return pairs


def _start_broadcast(name: str | None, tensor: torch.Tensor, root_rank: int) -> Callable[[], None]:
    """Start the broadcast of one parameter. Returns what waits for it and stores the result."""
    target = tensor.detach()
    dense = target.contiguous()
    try:
        handle = async_ops.broadcast_async_(dense, root_rank, name)
    except (TypeError, ValueError) as error:
        raise ValueError(f"Parameter {name!r}: {error}" if name else str(error)) from error

    def finish() -> None:
        async_ops.synchronize(handle)
        if dense is not target:
            target.copy_(dense)

    return finish


@dataclass(frozen=True)
class _TensorPlace:
    """Stands for a tensor in the state that the root sends; the values follow."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    key: str


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Make the options and the state of ``optimizer`` on all ranks those of ``root_rank``.

    State that a rank does not have yet is made there, and state that the root does not have is
    dropped; no parameter changes and no step is taken. ``model`` is not needed and is accepted
    because Horovod has it. Collective over all ranks. Raises ValueError for torch.optim.LBFGS, and
    on every rank when the number of parameters differs from the root's.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        # Its state is a history of this rank's own line search.
        raise ValueError("broadcast_optimizer_state does not support torch.optim.LBFGS.")
    if size() == 1:
        return
    root = rank() == root_rank
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    tensors: dict[str, torch.Tensor] = {}
    occurrences: Counter[str] = Counter()

    def pack(value: Any, name: str) -> Any:
        if isinstance(value, torch.Tensor):
            occurrences[name] += 1
            key = f"{name}.{occurrences[name]}"
            tensors[key] = value
            return _TensorPlace(tuple(value.shape), value.dtype, key)
        return _rebuilt(value, lambda item: pack(item, name))

    packed = None
    if root:
        options = [_without_params(group) for group in optimizer.param_groups]
        states = [
            {name: pack(value, str(name)) for name, value in optimizer.state[p].items()}
            if p in optimizer.state
            else None
            for p in parameters
        ]
        counts = [len(group["params"]) for group in optimizer.param_groups]
        packed = (counts, options, states)
    packed = broadcast_object(packed, root_rank, name="optimizer_state")
    _check_counts(optimizer, packed[0], root_rank)
    if not root:
        _, options, states = packed
        for group, values in zip(optimizer.param_groups, options, strict=True):
            group.update(values)
        for parameter, state in zip(parameters, states, strict=True):
            _take_state(optimizer, parameter, state, tensors)
    broadcast_parameters(tensors, root_rank)


def _without_params(group: Mapping[str, Any]) -> dict[str, Any]:
    return {option: value for option, value in group.items() if option != "params"}


def _rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """``value`` with ``change`` applied to what its containers hold; itself when it has none."""
    if isinstance(value, dict):
        return {key: change(item) for key, item in value.items()}
    if isinstance(value, list | deque) or type(value) is tuple:
        return type(value)(change(item) for item in value)
    return value


def _check_counts(optimizer: torch.optim.Optimizer, counts: list[int], root_rank: int) -> None:
    """Raise ValueError, on all ranks, when one has other parameters than the root."""
    own = [len(group["params"]) for group in optimizer.param_groups]
    every = allgather_object(own, name="optimizer_state.counts")
    for other, numbers in enumerate(every):
        if numbers != counts:
            raise ValueError(
                f"broadcast_optimizer_state: rank {other} has {numbers} parameters by parameter "
                f"group, rank {root_rank} has {counts}; they must be equal."
            )


def _take_state(
    optimizer: torch.optim.Optimizer,
    parameter: torch.Tensor,
    state: dict[Any, Any] | None,
    tensors: dict[str, torch.Tensor],
) -> None:
    """Give ``parameter`` the root's ``state``; tensors yet to be filled go to ``tensors``."""
    before = optimizer.state.pop(parameter, {})
    if state is None:
        return

    def unpack(value: Any, old: Any) -> Any:
        if isinstance(value, _TensorPlace):
            usable = (
                isinstance(old, torch.Tensor)
                and tuple(old.shape) == value.shape
                and old.dtype == value.dtype
            )
            tensor = old if usable else torch.empty(value.shape, dtype=value.dtype)
            tensors[value.key] = tensor
            return tensor
        return _rebuilt(value, lambda item: unpack(item, None))

    optimizer.state[parameter] = {
        name: unpack(value, before.get(name)) for name, value in state.items()
    }
