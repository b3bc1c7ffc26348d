"""How a distributed optimizer of tf-keras differs from the wrapped one.

tf-keras has two kinds: `optimizers.legacy`, and the newer ones. Both have a method that reduces
gradients over the replicas of a `tf.distribute` strategy. `apply_gradients` and loss scaling call
it before they look at the gradients, so it is overridden here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from hvdtune.core.observation import marks
from hvdtune.core.reduce_ops import Average
from hvdtune.faces import reduced
from hvdtune.keras.gradients import GradientReduction
from hvdtune.keras.variables import CallableList


class Passes:
    """Sums gradients over several calls of `apply_gradients`; Horovod's `_agg_helper`."""

    def __init__(self, number: int, averages: bool, sparse_as_dense: bool) -> None:
        self.backward_passes_per_step = number
        self.average_aggregated_gradients = averages
        self.sparse_as_dense = sparse_as_dense
        self.counter = tf.Variable(0, trainable=False, dtype=tf.int32, name="hvd_counter")
        self._sums: list[Any] = []

    def add(self, gradients: Sequence[Any], variables: Sequence[Any]) -> Any:
        """Add these. Returns whether to take the step now. Raises ValueError for sparse ones."""
        if any(isinstance(g, tf.IndexedSlices) for g in gradients) and not self.sparse_as_dense:
            raise ValueError(
                "IndexedSlices are not supported when backward_passes_per_step > 1; pass "
                "sparse_as_dense=True."
            )
        if not self._sums:
            self._sums = [None] * len(gradients)
        if len(self._sums) != len(gradients):
            raise ValueError(
                f"backward_passes_per_step: {len(gradients)} gradients, {len(self._sums)} before."
            )
        for index, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            if gradient is None:
                continue
            if self._sums[index] is None:  # no earlier pass had one for this variable
                with tf.init_scope():  # gradients may be traced without a shape
                    zeros = tf.zeros(variable.shape, gradient.dtype)
                    self._sums[index] = tf.Variable(zeros, trainable=False)
            self._sums[index].assign_add(tf.convert_to_tensor(gradient))
        self.counter.assign_add(1)
        return tf.equal(self.counter, self.backward_passes_per_step)

    def take(self) -> list[Any]:
        """The accumulated gradients; the sums begin at zero again."""
        divisor = self.backward_passes_per_step if self.average_aggregated_gradients else 1
        taken = [
            None if s is None else s.read_value() / tf.cast(divisor, s.dtype) for s in self._sums
        ]
        with tf.control_dependencies([gradient for gradient in taken if gradient is not None]):
            self.drop()
        return taken

    def drop(self) -> None:
        """Drop what has accumulated, for example in an earlier job, and begin a new step."""
        for total in self._sums:
            if total is not None:
                total.assign(tf.zeros(total.shape, total.dtype))
        self.counter.assign(0)


class LegacyHook:
    """Precedes the wrapped class in the method resolution order, for both kinds."""

    _reduction: GradientReduction | None = None
    _agg_helper: Passes | None = None

    @classmethod
    def from_config(cls: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
        """A distributed optimizer with this class's settings."""
        optimizer = super().from_config(config, *args, **kwargs)  # type: ignore[misc]
        cls._distribute(optimizer)
        return optimizer

    def register_local_var(self: Any, var: Any) -> None:
        """Do not reduce the gradient of the variable `var`."""
        self._reduction.keep_local(var)

    @property
    def process_set(self: Any) -> Any:
        """The ranks whose gradients are reduced together."""
        return self._reduction.process_set

    @property
    def scale_local_gradients(self: Any) -> bool:
        """Whether gradients of local variables are divided by the number of ranks."""
        return bool(self._reduction.scale_local_gradients)

    def _compute_gradients(
        self: Any, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> list[tuple[Any, Any]]:
        """The wrapped optimizer's pairs, reduced; `apply_gradients` does not reduce them again.

        For loss scaling they are not reduced: the unscaled gradients are reduced when applied.
        """
        parent: Any = super()
        if hasattr(parent, "_compute_gradients"):
            pairs = parent._compute_gradients(loss, var_list, grad_loss=grad_loss, tape=tape)
        else:
            if not callable(var_list):  # only the other kind takes lists of lists
                var_list = tf.nest.flatten(var_list)
            pairs = parent.compute_gradients(loss, var_list, tape=tape)
        return pairs if self._is_scaled else self._reduced_pairs(pairs)

    def compute_gradients(
        self: Any, loss: Any, var_list: Any, tape: Any = None
    ) -> list[tuple[Any, Any]]:
        """As `_compute_gradients`."""
        return self._compute_gradients(loss, var_list, tape=tape)

    def get_gradients(self: Any, loss: Any, params: Any) -> list[Any]:
        """The wrapped optimizer's gradients of a tensor in a graph, reduced as above."""
        parent: Any = super()
        if hasattr(parent, "get_gradients"):
            gradients = parent.get_gradients(loss, params)
        else:
            gradients = tf.gradients(loss, params)
        if self._is_scaled:
            return list(gradients)
        return list(self._allreduce(gradients, tf.nest.flatten(params)))

    def aggregate_gradients(self: Any, grads_and_vars: Any) -> list[tuple[Any, Any]]:
        """The pairs, reduced over the ranks instead of over replicas."""
        return self._reduced_pairs(grads_and_vars)

    def _aggregate_gradients(self: Any, grads_and_vars: Any) -> list[tuple[Any, Any]]:
        return self._reduced_pairs(grads_and_vars)

    @property
    def _is_scaled(self: Any) -> bool:
        """Whether a loss-scaling optimizer contains this one; tf-keras notes that."""
        return bool(getattr(self, "_is_wrapped_by_loss_scale_optimizer", False))

    def _check_loss_scaling(self: Any) -> None:
        """Check again: this one may have been put into a loss-scaling one, or compiled, since."""
        if self._is_scaled:
            passes = getattr(self._agg_helper, "backward_passes_per_step", 1)
            refuse_with_loss_scaling(passes, self._reduction.op)

    def _reduced_pairs(self: Any, grads_and_vars: Any) -> list[tuple[Any, Any]]:
        pairs = list(grads_and_vars)
        if not pairs:
            return []
        gradients, variables = zip(*pairs, strict=True)
        return list(zip(self._allreduce(gradients, variables), variables, strict=True))

    def _allreduce(self: Any, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """The gradients, reduced; unchanged if they accumulate first."""
        self._check_loss_scaling()
        if self._agg_helper is not None:
            return list(grads)
        results: list[Any] = self._reduction(grads, vars)
        reduced.mark(results)
        return results

    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's, with reduced gradients. Collective."""
        self._check_loss_scaling()
        pairs = list(grads_and_vars)
        if self._agg_helper is None or not pairs:
            result = super().apply_gradients(pairs, *args, **kwargs)  # type: ignore[misc]
        else:
            result = self._apply_when_due(pairs, super().apply_gradients, args, kwargs)  # type: ignore[misc]
        if tf.executing_eagerly():
            marks.step_ended(self)
        return result

    def _apply_when_due(self: Any, pairs: Any, apply: Any, args: Any, kwargs: Any) -> Any:
        gradients, variables = zip(*pairs, strict=True)
        with tf.init_scope():  # variables cannot be made inside a condition
            if hasattr(self, "_create_all_weights"):
                _ = self.iterations
                self._create_all_weights(variables)
            else:
                self.build(variables)

        def step() -> Any:
            totals = self._reduction(self._agg_helper.take(), variables)
            reduced.mark(totals)
            with tf.control_dependencies(
                [tf.group(apply(list(zip(totals, variables, strict=True)), *args, **kwargs))]
            ):
                return tf.identity(self.iterations)

        def wait() -> Any:
            return tf.identity(self.iterations.assign_add(1))

        return tf.cond(self._agg_helper.add(gradients, variables), step, wait)


class NewStyleHook(LegacyHook):
    """For the optimizers that tf-keras has had since 2.11."""

    @property
    def variables(self: Any) -> CallableList:
        """The wrapped optimizer's, as a list that can also be called."""
        return CallableList(super().variables)  # type: ignore[misc]


def hook_of(wrapped: type) -> type:
    """The class that precedes an optimizer class of either kind."""
    old = tf_keras.optimizers.legacy.Optimizer
    return LegacyHook if issubclass(wrapped, old) else NewStyleHook


def refuse_with_loss_scaling(passes: int, op: int) -> None:
    """Raise ValueError for settings that loss scaling does not allow.

    Each process decides whether tf-keras skips a step, so gradients must be reduced before.
    """
    if passes > 1 or op != Average:
        raise ValueError(
            "With tf-keras and loss scaling (the policy mixed_float16, or a LossScaleOptimizer), "
            "DistributedOptimizer takes only op=Average and backward_passes_per_step=1."
        )


def prepare(optimizer: Any, reduction: GradientReduction, passes: int, averages: bool) -> None:
    """Give a new optimizer of a distributed class what it needs.

    Raises ValueError for settings that loss scaling does not allow.
    """
    if tf_keras.mixed_precision.global_policy().name == "mixed_float16":
        refuse_with_loss_scaling(passes, reduction.op)
    # tf-keras sets it on GPUs, for which XLA has no operation that reduces gradients.
    if hasattr(optimizer, "jit_compile"):
        optimizer.jit_compile = False
    object.__setattr__(optimizer, "_reduction", reduction)
    if passes > 1:
        helper = Passes(passes, averages, reduction.sparse_as_dense)
        object.__setattr__(optimizer, "_agg_helper", helper)
