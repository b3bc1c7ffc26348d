"""The state of a PyTorch job: handlers keep models, optimizers, samplers; the rest is objects."""

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
    """Saves, restores and synchronises ``value``; keeps a deep copy of it."""

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
        """Take a copy, except of the tensors that are returned with their destinations.

        Only an optimizer's step may change these tensors until the caller has copied them.
        """
        self.save()
        return []

    @abstractmethod
    def restore(self) -> None:
        """Restore ``value`` from the last copy."""

    @abstractmethod
    def sync(self) -> None:
        """Make ``value`` on all ranks equal to rank 0's, without taking a copy."""


class _StateDictHandler(StateHandler):
    """For a value with ``state_dict()`` and ``load_state_dict()``."""

    _saved: Any = None

    def save(self) -> None:
        self._saved = copied(self.value.state_dict(), self._saved)

    def restore(self) -> None:
        # Loading may keep the objects that it is given, and the next step would change the copy.
        self.value.load_state_dict(copy.deepcopy(self._saved))


class _GradientHandler(_StateDictHandler):
    """For a value whose parameters have gradients, which are not copied."""

    def save_later(self) -> Pairs:
        later: Pairs = []
        state = self.value.state_dict()
        self._saved = copied_in_part(state, self._saved, self._changed_by_steps(), later)
        return later

    @abstractmethod
    def _changed_by_steps(self) -> Iterable[str]:
        """The keys of ``state_dict()`` under which only an optimizer's step changes tensors."""

    def restore(self) -> None:
        """Restore, and drop the gradients: they belong to work done since the last copy."""
        # A DistributedOptimizer gives up reductions under way, and begins a step.
        super().restore()
        self.value.zero_grad()


class ModelStateHandler(_GradientHandler):
    """For a ``torch.nn.Module``."""

    def _changed_by_steps(self) -> Iterable[str]:
        # Not the buffers: batch norm changes them in every forward pass.
        return (name for name, _ in self.value.named_parameters(remove_duplicate=False))

    def sync(self) -> None:
        """Broadcast parameters and buffers in place, and the extra state as an object."""
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
        """Continue where rank 0's sampler is."""
        state = broadcast_object(self.value.state_dict(), root_rank=0, name="elastic.sampler")
        self.value.load_state_dict(state)


Registry = list[tuple[type, type[StateHandler]]]

_registry: Registry = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> Registry:
    """The handlers by type: the first entry that fits a value takes care of it."""
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
    are saved as deep copies of their ``state_dict()`` and synchronised in place; assigning a new
    one saves it. Any other argument is kept as an object, as in ``ObjectState``.

    ``sync`` does not copy models, optimizers and samplers: a failure before the first ``commit``
    restores what they were when the state was made.
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
        """``commit()``, but parameters and optimizers' states are copied during training.

        The next forward and backward pass may begin meanwhile; the next ``step()``, of any
        optimizer, waits for the copies. (With ``op=Adasum`` the backward pass takes the steps, and
        waits.) So nothing but a step may change parameters and optimizers' states: a program that
        does so itself, for example to clip weights or to keep averages of them in the state, must
        call ``commit()``.
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
        """Restore everything from its last copy; gradients are dropped."""
        self._copying.wait()
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Make everything on all ranks equal to rank 0's."""
        self._copying.wait()
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def reset(self) -> None:
        """Deal the samplers' remaining indices to the current ranks."""
        for handler in self._handlers.values():
            if isinstance(handler.value, ElasticSampler):
                handler.value.reset()
