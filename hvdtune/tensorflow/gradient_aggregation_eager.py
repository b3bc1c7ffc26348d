"""Adds up the gradients of several backward passes, in eager mode and in ``tf.function``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hvdtune.core.process_sets import ProcessSet, global_process_set
from hvdtune.tensorflow.gradient_aggregation import Aggregation, Reduce


class LocalGradientAggregationHelperEager(Aggregation):
    """For eager mode and functions; see `gradient_aggregation`.

    ``counter`` is a tf.Variable (int32). Raises ValueError unless ``backward_passes_per_step`` is
    positive.
    """

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Reduce,
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        super().__init__(
            backward_passes_per_step,
            allreduce_func,
            sparse_as_dense,
            average_aggregated_gradients,
            process_set,
            scale_local_gradients,
        )
        with tf.init_scope():
            self.counter = tf.Variable(0, trainable=False, dtype=tf.int32)

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """Add the gradients of a pass to those before it.

        Returns the reduced sums in the last pass of a step, else this rank's sums so far;
        None for a variable that had no gradient in any pass. Raises ValueError for IndexedSlices
        without ``sparse_as_dense``.
        """
        variables = list(vars)
        gradients = list(grads)
        if self.backward_passes_per_step == 1:
            return self._reduced(gradients, variables)
        gradients = [self._dense(gradient) for gradient in gradients]
        self._make_sums(gradients, variables)
        sums = self.locally_aggregated_grads
        there = [i for i, total in enumerate(sums) if total is not None]
        for i in there:
            if gradients[i] is not None:
                sums[i].assign_add(gradients[i])
        self.counter.assign_add(1)

        def update() -> list[Any]:
            totals = [None if total is None else total.read_value() for total in sums]
            reduced = self._reduced(totals, variables)
            for i in there:
                # Multiplying by zero would leave an infinity in the next step's sum.
                sums[i].assign(tf.zeros_like(sums[i]))
            self.counter.assign(0)
            return [tf.identity(reduced[i]) for i in there]

        results = tf.cond(
            tf.equal(self.counter, self.backward_passes_per_step),
            update,
            lambda: [sums[i].read_value() for i in there],
        )
        every: list[Any] = [None] * len(gradients)
        for i, result in zip(there, results, strict=True):
            every[i] = result
        return every

    def apply_gradients(
        self, apply_grads_closure: Callable[[], Any], optimizer: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Apply a step's gradients in its last pass; else only count the pass.

        Returns the optimizer's iterations, or, with one pass per step, the closure's result.
        """
        if self.backward_passes_per_step == 1:
            return apply_grads_closure()

        def apply() -> tf.Tensor:
            apply_grads_closure()
            return tf.convert_to_tensor(optimizer.iterations)

        def count() -> tf.Tensor:
            optimizer.iterations.assign(optimizer.iterations + 1)
            return tf.convert_to_tensor(optimizer.iterations)

        return tf.cond(tf.equal(self.counter, 0), apply, count)

    def _make_sums(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        if not self.locally_aggregated_grads:
            self.locally_aggregated_grads = [None] * len(gradients)
        if len(self.locally_aggregated_grads) != len(gradients):
            raise ValueError(
                f"All passes of a step must have equally many gradients: there were "
                f"{len(self.locally_aggregated_grads)}, and now {len(gradients)}."
            )
        with tf.init_scope():
            for i, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
                if self.locally_aggregated_grads[i] is None and gradient is not None:
                    zeros = tf.zeros(variable.shape, gradient.dtype)
                    self.locally_aggregated_grads[i] = tf.Variable(zeros, trainable=False)
