"""Adds up the gradients of several backward passes before the ranks reduce them, in graphs.

The helpers serve optimizers: ``compute_gradients`` takes the gradients of one pass, and
``apply_gradients`` applies the result after every ``backward_passes_per_step``-th. The optimizer's
iterations count passes, not updates. This helper is for sessions; `gradient_aggregation_eager` is
for eager mode and ``tf.function``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hvdtune.core.process_sets import ProcessSet, global_process_set
from hvdtune.tensorflow.gradient_reduction import divided_by_size
from hvdtune.tensorflow.util import key_of

Reduce = Callable[[list[Any], list[Any]], Sequence[Any]]


class Aggregation:
    """The part that both helpers share; a subclass has the variables."""

    counter: Any
    """The passes since the last update."""

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Reduce,
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        process_set: ProcessSet,
        scale_local_gradients: bool,
    ) -> None:
        if backward_passes_per_step <= 0:
            raise ValueError(
                f"backward_passes_per_step must be > 0, not {backward_passes_per_step}."
            )
        self.backward_passes_per_step = backward_passes_per_step
        self.allreduce_grads = allreduce_func
        self.sparse_as_dense = sparse_as_dense
        self.average_aggregated_gradients = average_aggregated_gradients
        self.process_set = process_set
        self.scale_local_gradients = scale_local_gradients
        self.locally_aggregated_grads: list[Any] = []  # one variable for each gradient, or None
        self._local: dict[int, Any] = {}

    def register_local_var(self, var: Any) -> None:
        """Do not reduce the gradient of ``var``."""
        self._local[key_of(var)] = var

    def _dense(self, gradient: Any) -> Any:
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        if not self.sparse_as_dense:
            raise ValueError(
                "IndexedSlices are not supported when backward_passes_per_step > 1 and "
                "sparse_as_dense is False."
            )
        return tf.convert_to_tensor(gradient)

    def _reduced(self, sums: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients for an update, from the sums of all passes; None stays None."""
        every, passes = list(sums), self.backward_passes_per_step
        if self.average_aggregated_gradients and passes > 1:
            every = [g if g is None else g / tf.cast(passes, g.dtype) for g in every]
        local = [key_of(variable) in self._local for variable in variables]
        shared = [i for i, is_local in enumerate(local) if not is_local]
        reduced = self.allreduce_grads([every[i] for i in shared], [variables[i] for i in shared])
        for i, gradient in zip(shared, reduced, strict=True):
            every[i] = gradient
        if self.scale_local_gradients:
            for i, is_local in enumerate(local):
                if is_local and every[i] is not None:
                    every[i] = divided_by_size(every[i], self.process_set)
        return every


class LocalGradientAggregationHelper(Aggregation):
    """For graphs that a session runs.

    Its variables are local ones of the graph. ``tf.compat.v1.local_variables_initializer()``
    initialises them; MonitoredTrainingSession runs that by itself.

    allreduce_func: takes gradients and their variables, and returns the reduced gradients.
    average_aggregated_gradients: divides the sums by ``backward_passes_per_step``.
    rank: names the variables. optimizer_type: one of the two below; tells what counts steps.
    Raises ValueError unless ``backward_passes_per_step`` is positive.
    """

    OPTIMIZER_TYPE_KERAS = "optimizer_type_keras"
    OPTIMIZER_TYPE_LEGACY = "optimizer_type_legacy"

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Reduce,
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        rank: int,
        optimizer_type: str,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
        name: str = "",
    ) -> None:
        super().__init__(
            backward_passes_per_step,
            allreduce_func,
            sparse_as_dense,
            average_aggregated_gradients,
            process_set,
            scale_local_gradients,
        )
        self.rank = rank
        self.optimizer_type = optimizer_type
        self._name = name
        self.counter = None

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """Add the gradients of a pass to those before it.

        Returns the reduced sums in the last pass of a step, else this rank's sums so far.
        Raises ValueError for IndexedSlices without ``sparse_as_dense``.
        """
        variables = list(vars)
        gradients = [self._dense(gradient) for gradient in grads]
        if self.backward_passes_per_step == 1:
            return self._reduced(gradients, variables)
        self._make_variables(gradients)
        there = [i for i, gradient in enumerate(gradients) if gradient is not None]
        sums = [self.locally_aggregated_grads[i] for i in there]

        def whole(values: Sequence[Any]) -> list[Any]:
            every: list[Any] = [None] * len(gradients)
            for i, value in zip(there, values, strict=True):
                every[i] = value
            return every

        added = [total.assign_add(gradients[i]) for i, total in zip(there, sums, strict=True)]
        with tf.control_dependencies(added):
            counted = self.counter.assign_add(1)

        def update() -> list[Any]:
            totals = [total.read_value() for total in sums]
            with tf.control_dependencies(totals):
                cleared = [total.assign(tf.zeros_like(total)) for total in sums]
                cleared.append(self.counter.assign(0))
            with tf.control_dependencies([one.op for one in cleared]):
                reduced = self._reduced(whole(totals), variables)
                return [tf.identity(reduced[i]) for i in there]

        with tf.control_dependencies([counted]):
            is_last = tf.equal(counted, self.backward_passes_per_step)
            results = tf.cond(is_last, update, lambda: [total.read_value() for total in sums])
        results = results if isinstance(results, list | tuple) else [results]
        return whole(results)

    def apply_gradients(
        self, apply_grads_closure: Callable[[], Any], optimizer: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """The operation that applies a step's gradients in its last pass, else counts the pass.

        ``args``, ``kwargs``: the arguments of the optimizer's ``apply_gradients``.
        """
        if self.backward_passes_per_step == 1:
            return apply_grads_closure()
        inputs = [
            value for value in tf.nest.flatten((args, kwargs)) if isinstance(value, tf.Tensor)
        ]
        with tf.control_dependencies(inputs):
            is_due = tf.equal(self.counter.read_value(), 0)

        def apply() -> Any:
            with tf.control_dependencies([apply_grads_closure()]):
                return tf.no_op()

        def count() -> Any:
            step = self._steps(optimizer, args, kwargs)
            with tf.control_dependencies([] if step is None else [step.assign_add(1)]):
                return tf.no_op()

        return tf.cond(is_due, apply, count)

    def _steps(self, optimizer: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if self.optimizer_type == self.OPTIMIZER_TYPE_KERAS:
            return optimizer.iterations
        return kwargs.get("global_step", args[1] if len(args) > 1 else None)

    def _make_variables(self, gradients: Sequence[Any]) -> None:
        if self.counter is not None:
            return

        def variable(name: str, shape: Any, dtype: Any) -> Any:
            return tf.compat.v1.get_variable(
                name,
                shape=shape,
                dtype=dtype,
                initializer=tf.compat.v1.zeros_initializer(),
                trainable=False,
                use_resource=True,
                collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
            )

        scope = f"aggregation_variables_{self._name}{self.rank}"
        with tf.compat.v1.variable_scope(scope, reuse=tf.compat.v1.AUTO_REUSE):
            self.counter = variable("aggregation_counter", (), tf.int32)
            self.locally_aggregated_grads = [
                None if one is None else variable(f"gradient_{i}", one.shape, one.dtype)
                for i, one in enumerate(gradients)
            ]
