"""The state of a PyTorch job: models, optimizers and samplers by handlers, the rest as objects."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import torch

from hvdtune.core.world import rank
from hvdtune.elastic.state import ObjectState
from hvdtune.torch.elastic.copies import Copying, Pairs, copied, copied_in_part
from hvdtune.torch.elastic.sampler import ElasticSampler
from hvdtune.torch.functions import (
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)


class StateHandler(ABC):
    """Saves, restores and synchronises ``value``, of which it keeps a deep copy."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.save()

    def set_value(self, value: Any) -> None:
        """Take care of ``value`` from now on, and save it."""
        self.value = value
        self.save()

    @abstractmethod
    def save(self) -> None:
        """Take a copy."""

    def save_later(self) -> Pairs:
        """Take a copy, but for the tensors of it that are returned, with where they are to go.

        Only an optimizer's step may change these until they are copied.
        """
        self.save()
        return []

    @abstractmethod
    def restore(self) -> None:
        """Make ``value`` what it was when the last copy was taken."""

    @abstractmethod
    def sync(self) -> None:
        """Make ``value`` on all ranks that of rank 0, without taking a copy."""


class _StateDictHandler(StateHandler):
    """For a value with ``state_dict()`` and ``load_state_dict()``."""

    _saved: Any = None

    def save(self) -> None:
        self._saved = copied(self.value.state_dict(), self._saved)

    def restore(self) -> None:
        # Loading may keep the very objects that it is given; the next step would change the copy.
        self.value.load_state_dict(copy.deepcopy(self._saved))


class _GradientHandler(_StateDictHandler):
    """For a value whose parameters have gradients, which are no part of the copy."""

    def save_later(self) -> Pairs:
        later: Pairs = []
        state = self.value.state_dict()
        self._saved = copied_in_part(state, self._saved, self._changed_by_steps(), later)
        return later

    @abstractmethod
    def _changed_by_steps(self) -> Iterable[str]:
        """The keys of ``state_dict()`` under which only an optimizer's step changes tensors."""

    def restore(self) -> None:
        """Drop the gradients, too: they are of what was done since the last copy."""
        # A DistributedOptimizer gives up what is being reduced, and begins a step.
        super().restore()
        self.value.zero_grad()


class ModelStateHandler(_GradientHandler):
    """For a ``torch.nn.Module``."""

    def _changed_by_steps(self) -> Iterable[str]:
        # Not the buffers: those of batch norm change in every forward pass.
        return (name for name, _ in self.value.named_parameters(remove_duplicate=False))

    def sync(self) -> None:
        """Broadcast parameters and buffers in place, and extra state as an object."""
        state = self.value.state_dict()
        tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
        broadcast_parameters(tensors, root_rank=0)
        extra = {name: value for name, value in state.items() if name not in tensors}
        if extra:
            state.update(broadcast_object(extra, root_rank=0, name="elastic.extra_state"))
            self.value.load_state_dict(state)


class OptimizerStateHandler(_GradientHandler):
    """For a ``torch.optim.Optimizer``."""

    def _changed_by_steps(self) -> Iterable[str]:
        return ("state",)  # schedulers change the options

    def sync(self) -> None:
        """Broadcast options and state."""
        broadcast_optimizer_state(self.value, root_rank=0)


class SamplerStateHandler(_StateDictHandler):
    """For an ``ElasticSampler``."""

    def sync(self) -> None:
        """Go on where rank 0's sampler is."""
        state = broadcast_object(self.value.state_dict(), root_rank=0, name="elastic.sampler")
        self.value.load_state_dict(state)


Registry = list[tuple[type, type[StateHandler]]]

_registry: Registry = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> Registry:
    """Which handler takes care of which type: the first entry that fits a value."""
    return _registry


def set_handler_registry(registry: Registry) -> None:
    """Replace the list of (type, handler class), for states made from now on."""
    global _registry
    _registry = registry


def _handler_of(value: Any) -> type[StateHandler] | None:
    return next((handler for kind, handler in _registry if isinstance(value, kind)), None)


class TorchState(ObjectState):
    """The state of training with PyTorch.

    Every argument becomes an attribute. Models, optimizers and samplers (``get_handler_registry``)
    are saved as deep copies of their ``state_dict()`` and synchronised in place; assigning another
    one saves it. Anything else is an object, as in ``ObjectState``.

    ``sync`` takes no copy of models, optimizers and samplers: a failure before the first
    ``commit`` goes back to what they were when the state was made.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        values = {**kwargs, "model": model, "optimizer": optimizer}
        self._check_names(values)
        self._copying = Copying()
        self._handlers: dict[str, StateHandler] = {}
        for name, value in values.items():
            handler = _handler_of(value)
            if handler:
                self._handlers[name] = handler(value)
        objects = {name: value for name, value in values.items() if name not in self._handlers}
        super().__init__(bcast_object=broadcast_object, get_rank=rank, **objects)
        for name in self._handlers:
            super().__setattr__(name, values[name])

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_handlers", ()):
            self._set_handled(name, value)
        super().__setattr__(name, value)

    def _set_handled(self, name: str, value: Any) -> None:
        self._copying.wait()
        handler = _handler_of(value)
        if handler is None:
            raise ValueError(
                f"TorchState: {name} is a {type(self._handlers[name].value).__name__}, and cannot "
                f"be replaced by a {type(value).__name__}."
            )
        if isinstance(self._handlers[name], handler):
            self._handlers[name].set_value(value)
        else:
            self._handlers[name] = handler(value)

    def commit_async(self) -> None:
        """``commit()`` whose copies of parameters and optimizers' states are made beside training.

        The next forward and backward pass may begin meanwhile; the next ``step()``, of whatever
        optimizer, waits until they are made. So nothing but a ``step()`` may change parameters and
        optimizers' states: a program that does so itself, such as one that clips weights or keeps
        averages of them in the state, calls ``commit()``.
        """
        self._copying.wait()
        later = [pair for handler in self._handlers.values() for pair in handler.save_later()]
        super().save()
        self._copying.start(later)
        self.check_host_updates()

    def save(self) -> None:
        """Copy everything."""
        self._copying.wait()
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Bring everything back to its last copy; gradients are dropped."""
        self._copying.wait()
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Make everything on all ranks what it is on rank 0."""
        self._copying.wait()
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def reset(self) -> None:
        """Deal what the samplers have left to the ranks that there are now."""
        for handler in self._handlers.values():
            if isinstance(handler.value, ElasticSampler):
                handler.value.reset()
