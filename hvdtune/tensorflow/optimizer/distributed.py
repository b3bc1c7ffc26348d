"""``DistributedOptimizer``, for the optimizers of ``tf.compat.v1.train``.

It is such an optimizer itself, and wraps another one, whose gradients it reduces in
``compute_gradients``. `adasum` has the one for Adasum; the Keras face wraps Keras's optimizers.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hvdtune.core.process_sets import ProcessSet, global_process_set
from hvdtune.core.reduce_ops import Adasum, Average
from hvdtune.core.world import rank
from hvdtune.faces.buckets import Groups
from hvdtune.tensorflow.compression import Compression
from hvdtune.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from hvdtune.tensorflow.gradient_reduction import GradientReducer, Reduction, groups_or_number
from hvdtune.tensorflow.optimizer.adasum import DistributedAdasumOptimizer
from hvdtune.tensorflow.util import keras_classes

Pairs = list[tuple[Any, Any]]


class _DistributedOptimizer(tf.compat.v1.train.Optimizer):
    """Wraps an optimizer of ``tf.compat.v1.train``, and delegates everything else to it."""

    def __init__(
        self,
        optimizer: Any,
        name: str,
        use_locking: bool,
        reducer: GradientReducer,
        helper: LocalGradientAggregationHelper | None,
    ) -> None:
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer = optimizer
        self._reducer = reducer
        self._agg_helper = helper

    def register_local_var(self, var: Any) -> None:
        """Do not reduce the gradient of ``var``."""
        (self._agg_helper or self._reducer).register_local_var(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Pairs:
        """The wrapped optimizer's gradients, reduced over the ranks, with their variables."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        gradients = [gradient for gradient, _ in pairs]
        variables = [variable for _, variable in pairs]
        reduce: Callable[..., list[Any]] = self._reducer
        if self._agg_helper is not None:
            reduce = self._agg_helper.compute_gradients
        return list(zip(reduce(gradients, variables), variables, strict=True))

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        """The wrapped optimizer's ``apply_gradients``, in the last pass of a step."""
        pairs = list(grads_and_vars)

        def apply() -> Any:
            return self._optimizer.apply_gradients(pairs, global_step, name)

        if self._agg_helper is None:
            return apply()
        return self._agg_helper.apply_gradients(apply, self._optimizer, pairs, global_step)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """A slot of the wrapped optimizer."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> list[str]:
        """The names of the wrapped optimizer's slots."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> list[Any]:
        """The variables of the wrapped optimizer."""
        return self._optimizer.variables(*args, **kwargs)


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """An optimizer that applies ``optimizer`` to gradients reduced over the ranks.

    optimizer: of ``tf.compat.v1.train``, or of Keras, which ``hvdtune.tensorflow.keras`` wraps.
    name: the scope of the reductions; ``Distributed`` and the optimizer's class, if None.
    backward_passes_per_step: gradients are reduced after adding up over this many passes; for
        optimizers of ``tf.compat.v1.train`` in graphs only.
    op: ``Adasum`` combines the ranks' steps instead of their gradients (needs 2^n ranks).
    average_aggregated_gradients: divides the sums of several passes by their number.
    The others are those of ``DistributedGradientTape``.

    Raises ValueError for wrong arguments, NotImplementedError if Adasum cannot work.
    """
    groups = groups_or_number(groups, num_groups)
    options = {
        "device_dense": device_dense,
        "device_sparse": device_sparse,
        "compression": compression,
        "sparse_as_dense": sparse_as_dense,
        "op": op,
        "gradient_predivide_factor": gradient_predivide_factor,
        "process_set": process_set,
    }
    if backward_passes_per_step <= 0:
        raise ValueError(f"backward_passes_per_step must be > 0, not {backward_passes_per_step}.")
    if op == Adasum and average_aggregated_gradients:
        raise ValueError("op=Adasum does not support average_aggregated_gradients=True.")
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        if isinstance(optimizer, (_DistributedOptimizer, DistributedAdasumOptimizer)):
            raise ValueError("The optimizer is a DistributedOptimizer already.")
        called = type(optimizer).__name__
        if op == Adasum:
            scope = name or f"DistributedDelta{called}"
            reduction = Reduction(scope, **options)
            passes = backward_passes_per_step
            return DistributedAdasumOptimizer(optimizer, scope, use_locking, reduction, passes)
        scope = name or f"Distributed{called}"
        reducer = GradientReducer(Reduction(scope, **options), groups, scale_local_gradients)
        helper = None
        if backward_passes_per_step > 1:
            if tf.executing_eagerly():
                raise ValueError(
                    "backward_passes_per_step > 1 is not yet supported for _LegacyOptimizer with "
                    "eager execution; use an optimizer of Keras."
                )
            helper = LocalGradientAggregationHelper(
                backward_passes_per_step=backward_passes_per_step,
                allreduce_func=reducer,
                sparse_as_dense=sparse_as_dense,
                average_aggregated_gradients=average_aggregated_gradients,
                rank=rank(),
                optimizer_type=LocalGradientAggregationHelper.OPTIMIZER_TYPE_LEGACY,
                process_set=process_set,
                scale_local_gradients=scale_local_gradients,
                name=scope,
            )
        return _DistributedOptimizer(optimizer, scope, use_locking, reducer, helper)
    if isinstance(optimizer, keras_classes("Optimizer")):
        if op == Adasum:
            raise ValueError("op=Adasum is not supported yet with Keras optimizers.")
        # The Keras face stands above this package, and knows it.
        package = __name__.partition(".optimizer")[0]
        keras = importlib.import_module(f"{package}.keras")
        return keras.DistributedOptimizer(
            optimizer,
            name=name,
            backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients,
            groups=groups,
            scale_local_gradients=scale_local_gradients,
            **options,
        )
    raise ValueError(
        "DistributedOptimizer wraps an optimizer of tf.compat.v1.train or of Keras, not a "
        f"{type(optimizer).__name__}."
    )
