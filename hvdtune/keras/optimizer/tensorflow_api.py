"""Methods of Keras 2's optimizers that Keras 3's lack; scripts call them on TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvdtune.faces import reduced
from hvdtune.tensorflow.calls import compiled as compiled_calls
from hvdtune.tensorflow.calls import step_ends
from hvdtune.tensorflow.util import value_of


class TensorFlowHook:
    """Precedes `DistributedHook`. Gradients that these methods return are reduced.

    If a script gives the wrapped class `compute_gradients` or `get_gradients`, these compute the
    gradients.
    """

    def _compute_gradients(
        self: Any, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> list[tuple[Any, Any]]:
        """Pairs (gradient, variable) for `loss`: a function, or a tensor computed under `tape`.

        `apply_gradients` does not reduce these again. Raises ValueError for a tensor without a
        tape.
        """
        parent: Any = super()
        if hasattr(parent, "compute_gradients"):
            given = {} if grad_loss is None else {"grad_loss": grad_loss}
            pairs = list(parent.compute_gradients(loss, var_list, tape=tape, **given))
            return list(zip(self.aggregate_gradients(pairs), (v for _, v in pairs), strict=True))
        if callable(loss):
            tape = tf.GradientTape() if tape is None else tape
            with tape:
                loss = loss()
        elif tape is None:
            raise ValueError("`tape` is required when a `Tensor` loss is passed.")
        variables = tf.nest.flatten(var_list() if callable(var_list) else var_list)
        gradients = tape.gradient(loss, variables, grad_loss)
        return list(zip(self._allreduce(gradients, variables), variables, strict=True))

    def compute_gradients(
        self: Any, loss: Any, var_list: Any, tape: Any = None, grad_loss: Any = None
    ) -> list[tuple[Any, Any]]:
        """As `_compute_gradients`."""
        return self._compute_gradients(loss, var_list, grad_loss, tape)

    def minimize(self: Any, loss: Any, var_list: Any, tape: Any = None) -> Any:
        """`compute_gradients`, then `apply_gradients`."""
        return self.apply_gradients(self._compute_gradients(loss, var_list, tape=tape))

    def get_gradients(self: Any, loss: Any, params: Any) -> list[Any]:
        """The gradients of a tensor in a graph (a `tf.function`'s, or a session's), reduced."""
        variables = tf.nest.flatten(params)
        parent: Any = super()
        if hasattr(parent, "get_gradients"):
            gradients = parent.get_gradients(loss, params)
        else:
            gradients = tf.gradients(loss, [value_of(variable) for variable in variables])
        return list(self._allreduce(gradients, variables))

    def aggregate_gradients(self: Any, grads_and_vars: Any) -> list[Any]:
        """The gradients of these pairs, reduced."""
        pairs = list(grads_and_vars)
        return list(self._allreduce([g for g, _ in pairs], [v for _, v in pairs]))

    _aggregate_gradients = aggregate_gradients

    def _allreduce(self: Any, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """The gradients, reduced; unchanged if they accumulate first."""
        if self.gradient_accumulation_steps:
            return list(grads)
        results: list[Any] = self._reduction(grads, vars)
        reduced.mark(results)
        return results

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        """`DistributedHook.apply`. Raises ValueError if XLA compiles the step but cannot reduce."""
        compiled = self._reduction.is_needed and compiled_calls.is_compiling()
        if compiled and (reason := compiled_calls.missing()):
            raise ValueError(
                f"The training step is compiled by XLA, and {reason}. Call model.compile(..., "
                "jit_compile=False), or give fit() "
                "hvd.callbacks.BroadcastGlobalVariablesCallback, which turns XLA off by itself."
            )
        grads = self._checked_for_accumulation(list(grads))
        super().apply(grads, trainable_variables)  # type: ignore[misc]

    def _mark_step(self: Any, grads: Sequence[Any]) -> None:
        """In a function, a graph node reports the step; if gradients accumulate, callbacks do."""
        if tf.executing_eagerly():
            super()._mark_step(grads)  # type: ignore[misc]
        elif not self.gradient_accumulation_steps:
            step_ends.tell(self, grads)

    def _checked_for_accumulation(self: Any, grads: list[Any]) -> list[Any]:
        if not self.gradient_accumulation_steps:
            return grads
        if self._reduction.sparse_as_dense:
            return [
                None if gradient is None else tf.convert_to_tensor(gradient) for gradient in grads
            ]
        if any(isinstance(gradient, tf.IndexedSlices) for gradient in grads):
            raise ValueError(
                "IndexedSlices are not supported when gradients accumulate "
                "(backward_passes_per_step or gradient_accumulation_steps > 1); pass "
                "sparse_as_dense=True."
            )
        return grads
