"""An optimizer that reduces gradients before it updates, for `Module.fit` and Trainers."""

from __future__ import annotations

import functools
from typing import Any

import mxnet as mx
from mxnet.kvstore import KVStore

from hvdtune.core.process_sets import ProcessSet, global_process_set
from hvdtune.mxnet import gradients

_OWN = ("_optimizer", "_options", "_first")


class DistributedOptimizer(mx.optimizer.Optimizer):
    """An MXNet optimizer that first averages the gradients over the ranks.

    Everything else, also setting attributes, is delegated to the given optimizer. For
    `Module.fit(optimizer=..., kvstore=None)` and `gluon.Trainer(params, ..., kvstore=None)`: a
    kvstore that updates weights itself refuses this optimizer with a ValueError.
    """

    def __init__(
        self,
        optimizer: mx.optimizer.Optimizer,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """``gradient_predivide_factor``: 1/factor before the sum, factor/size after it.

        ``num_groups``: the gradients of one update are reduced in this many groups; 0: each alone.
        ``process_set``: other ranks update with their own gradients.
        """
        gradients.check_options(gradient_predivide_factor, num_groups)
        self._optimizer = optimizer
        self._options = (process_set, gradient_predivide_factor, num_groups)
        self._first: Any = None  # the index of the first update of a step

    def __getattr__(self, name: str) -> Any:
        if name in _OWN or name.startswith("__"):  # not set yet, or not an optimizer's attribute
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            super().__setattr__(name, value)
        else:
            setattr(self._optimizer, name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in _OWN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def create_state(self, index: Any, weight: Any) -> Any:
        """The optimizer's."""
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        """The optimizer's."""
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Reduce the gradient, or list of gradients, in place, and update."""
        self._reduce(index, weight, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """The same, with weights of higher precision than the model's."""
        self._reduce(index, weight, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        """Set the optimizer's."""
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: Any) -> None:
        """Set the optimizer's factors of learning rates."""
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Any) -> None:
        """Set the optimizer's factors of weight decay."""
        self._optimizer.set_wd_mult(args_wd_mult)

    def _reduce(self, index: Any, weight: Any, grad: Any) -> None:
        several = isinstance(index, tuple | list)
        rows = list(zip(index, weight, grad, strict=True)) if several else [(index, weight, grad)]
        first = rows[0][0]
        if self._first is None:
            self._first = first
        elif self._first == first:
            gradients.step_ends(self, [rows[0][1]])  # the previous step
        # Gradients may be new in each step; the weights are not, so they tie the steps together.
        named = [(str(one), gradient, tie) for one, tie, gradient in rows]
        gradients.reduce(named, *self._options)


_set_optimizer = KVStore.set_optimizer


@functools.wraps(_set_optimizer)
def _refuse_distributed(self: KVStore, optimizer: Any) -> None:
    if isinstance(optimizer, DistributedOptimizer):
        raise ValueError(
            f"DistributedOptimizer: a kvstore ({self.type}) would update the weights itself, "
            "without the other ranks; give Module.fit and gluon.Trainer kvstore=None."
        )
    _set_optimizer(self, optimizer)


KVStore.set_optimizer = _refuse_distributed
