"""``DistributedOptimizer`` with op=Adasum: combines the ranks' steps, not their gradients.

Each rank's optimizer takes its own steps. After every ``backward_passes_per_step`` of them, the
variables become their old values plus the ranks' differences since then, combined by Adasum:

    w  ←  start + adasum over ranks (w - start);  start  ←  w
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvdtune.core import operations
from hvdtune.tensorflow.gradient_reduction import GradientReducer, Reduction


class DistributedAdasumOptimizer(tf.compat.v1.train.Optimizer):
    """Wraps an optimizer of ``tf.compat.v1.train``.

    The slot ``delta_start`` holds a variable's old value. Like all slots it is a global variable:
    it is saved in checkpoints and broadcast with the other global variables.
    """

    def __init__(
        self, optimizer: Any, name: str, use_locking: bool, reduction: Reduction, passes: int
    ) -> None:
        operations.check_adasum(reduction.process_set)
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer = optimizer
        self._reducer = GradientReducer(reduction)
        self._passes = passes
        self._steps: Any = None

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """The wrapped optimizer's gradients, unchanged."""
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        """Take this rank's step, and combine it with the others' if it is due."""
        pairs = list(grads_and_vars)
        variables = [variable for gradient, variable in pairs if gradient is not None]
        with tf.init_scope():
            starts = [
                self._get_or_make_slot(variable, _beginning(variable), "delta_start", self._name)
                for variable in variables
            ]
            if self._steps is None:
                with tf.name_scope(self._name):
                    self._steps = tf.compat.v1.Variable(
                        0, name="step_count", trainable=False, use_resource=True
                    )
        applied = self._optimizer.apply_gradients(pairs, global_step, name)
        with tf.control_dependencies([] if tf.executing_eagerly() else [applied]):
            counted = self._steps.assign_add(1)

        def combine() -> tf.Tensor:
            here = [tf.identity(variable.read_value()) for variable in variables]
            before = [tf.identity(start.read_value()) for start in starts]
            steps = [now - then for now, then in zip(here, before, strict=True)]
            combined = self._reducer(steps, variables)
            reached = [then + step for then, step in zip(before, combined, strict=True)]
            done = [
                place.assign(value)
                for places in (starts, variables)
                for place, value in zip(places, reached, strict=True)
            ]
            with tf.control_dependencies([] if tf.executing_eagerly() else done):
                return tf.constant(True)

        is_due = tf.equal(counted % self._passes, 0)
        return tf.cond(is_due, combine, lambda: tf.constant(False))

    def get_slot(self, var: Any, name: str) -> Any:
        """A slot: the old value of ``var``, or one of the wrapped optimizer."""
        own = super().get_slot(var, name)
        return self._optimizer.get_slot(var, name) if own is None else own

    def get_slot_names(self) -> list[str]:
        """The names of all slots."""
        return [*super().get_slot_names(), *self._optimizer.get_slot_names()]

    def variables(self) -> list[Any]:
        """The variables of both optimizers."""
        return [*super().variables(), *self._optimizer.variables()]


def _beginning(variable: Any) -> tf.Tensor:
    """The value of a variable; if it has none yet, its initial value."""
    if tf.executing_eagerly():
        return variable.read_value()
    is_there = tf.compat.v1.is_variable_initialized(variable)
    return tf.cond(is_there, variable.read_value, lambda: variable.initial_value)
