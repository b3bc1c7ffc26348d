"""Reduces the gradients of a step, for the tape and the optimizers.

All gradients are sent as one group, unless ``groups`` divides them. In eager mode the reduction
is a traced function, shared by all tapes with the same settings.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from hvdtune.core.process_sets import ProcessSet, global_process_set, id_of
from hvdtune.core.reduce_ops import Adasum, Average, Max, Min, Product, Sum
from hvdtune.core.world import size
from hvdtune.faces.buckets import Groups, check_groups, split_evenly
from hvdtune.tensorflow import mpi_ops
from hvdtune.tensorflow.compression import Compression
from hvdtune.tensorflow.reductions import grouped_allreduce, set_size, sizes_may_change
from hvdtune.tensorflow.util import keras_classes, key_of

Runs = tuple[tuple[int, ...], ...]  # which gradients are sent together, by position


@dataclass(frozen=True)
class Reduction:
    """How gradients are reduced; ``name`` is the scope of the operations in graphs."""

    name: str
    device_dense: str = ""
    device_sparse: str = ""
    compression: Any = Compression.none
    sparse_as_dense: bool = False
    op: int = Average
    gradient_predivide_factor: float = 1.0
    process_set: ProcessSet = global_process_set

    def __post_init__(self) -> None:
        if self.op not in (Average, Sum, Adasum, Min, Max, Product):
            raise ValueError(
                f"op={self.op!r} is unknown; it must be Average, Sum, Adasum, Min, Max or Product."
            )
        if self.gradient_predivide_factor != 1.0 and self.op != Average:
            raise ValueError("gradient_predivide_factor is not supported with op != Average.")
        if not self.gradient_predivide_factor > 0:
            raise ValueError(
                f"gradient_predivide_factor={self.gradient_predivide_factor} must be > 0."
            )
        id_of(self.process_set)


class GradientReducer:
    """Reduces lists of gradients, except those of local variables.

    groups: None (all together), a number of groups, or lists of variables; a variable in none of
    them is sent alone. scale_local_gradients: divides the gradients of local variables by the
    number of ranks, like the average of the others.
    """

    def __init__(
        self,
        reduction: Reduction,
        groups: Groups | None = None,
        scale_local_gradients: bool = True,
    ) -> None:
        check_groups(groups, variable_class(), "variables")
        self._reduction = reduction
        self._groups = groups
        self._scales_local = scale_local_gradients
        self._local: dict[int, Any] = {}

    def register_local_var(self, variable: Any) -> None:
        """Do not reduce the gradient of ``variable``."""
        self._local[key_of(variable)] = variable

    def is_local(self, variable: Any) -> bool:
        """Whether the gradient of ``variable`` is not reduced."""
        return key_of(variable) in self._local

    def __call__(
        self,
        gradients: Iterable[Any],
        variables: Iterable[Any] | None = None,
        use_generic_names: bool = False,
    ) -> list[Any]:
        """The reduced gradients, None if there is none.

        ``variables`` are those of the gradients, in the same order; without them none is local and
        all gradients are one group. ``use_generic_names``: names contain only the gradients'
        positions, so that ranks match even if their variables have different names.
        """
        every = list(gradients)
        owners = list(variables) if variables is not None else [None] * len(every)
        shared = [
            i
            for i, (gradient, owner) in enumerate(zip(every, owners, strict=True))
            if gradient is not None and not self.is_local(owner)
        ]
        runs = self._runs(shared, owners)
        given = [every[i] for i in shared]
        results = reduce(self._reduction, given, runs, use_generic_names)
        for i, reduced in zip(shared, results, strict=True):
            every[i] = reduced
        if self._scales_local:
            for i, owner in enumerate(owners):
                if every[i] is not None and self.is_local(owner):
                    every[i] = divided_by_size(every[i], self._reduction.process_set)
        return every

    def _runs(self, shared: Sequence[int], owners: Sequence[Any]) -> Runs:
        """The gradients that are sent together, by position among the shared ones."""
        places = list(range(len(shared)))
        if not places:
            return ()
        if self._groups is None:
            return (tuple(places),)
        if isinstance(self._groups, int):
            return tuple(tuple(run) for run in split_evenly(places, self._groups))
        place_of = {key_of(owners[i]): place for place, i in enumerate(shared)}
        runs = [
            tuple(place_of[key] for key in map(key_of, group) if key in place_of)
            for group in self._groups
        ]
        grouped = {place for run in runs for place in run}
        return (*(run for run in runs if run), *((p,) for p in places if p not in grouped))


def reduce(
    reduction: Reduction, gradients: list[Any], runs: Runs, use_generic_names: bool = False
) -> list[Any]:
    """The gradients, reduced in these runs. A non-member's gradients are returned unchanged."""
    if not gradients or (not sizes_may_change() and not _has_others(reduction.process_set)):
        return [_as_dense(one) if reduction.sparse_as_dense else one for one in gradients]
    if not tf.executing_eagerly():
        return _reduce(reduction, runs, use_generic_names, gradients)
    # The trace also depends on the ranks, and on the kinds of gradients.
    ranks = (id_of(reduction.process_set), size(), sizes_may_change())
    traced = _traced(reduction, runs, use_generic_names, ranks, tuple(map(_kind, gradients)))
    return list(traced(gradients))


@functools.cache
def _traced(
    reduction: Reduction, runs: Runs, use_generic_names: bool, *_: Any
) -> Callable[..., Any]:
    """The reduction as a function that is traced once, or twice if numbers of rows vary."""
    reduce_these = functools.partial(_reduce, reduction, runs, use_generic_names)
    return tf.function(reduce_these, reduce_retracing=True)


def _kind(gradient: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return (gradient.dtype, gradient.indices.dtype, *gradient.values.shape[1:])
    return (gradient.dtype, *gradient.shape)


def _reduce(
    reduction: Reduction, runs: Runs, use_generic_names: bool, gradients: list[Any]
) -> list[Any]:
    divisor = reduction.gradient_predivide_factor
    if reduction.sparse_as_dense:
        gradients = [_as_dense(one) for one in gradients]

    def reduced() -> list[Any]:
        results = list(gradients)
        for number, run in enumerate(runs):
            sent = grouped_allreduce(
                [gradients[place] for place in run],
                device_dense=reduction.device_dense,
                device_sparse=reduction.device_sparse,
                compression=reduction.compression,
                op=reduction.op,
                prescale_factor=1.0 / divisor,
                postscale_factor=divisor,
                process_set=reduction.process_set,
                ignore_name_scope=use_generic_names,
                name=f"{'grad' if use_generic_names else 'HorovodGroupedAllreduce'}_{number}",
            )
            for place, result in zip(run, sent, strict=True):
                results[place] = result
        return results

    with tf.name_scope(f"{reduction.name}_Allreduce"):
        if not sizes_may_change():
            return reduced()
        number = id_of(reduction.process_set)
        with tf.device("/cpu:0"):
            has_others = tf.logical_and(
                mpi_ops.size_op(number) > 1, mpi_ops.process_set_included_op(number) > 0
            )
            return tf.cond(has_others, reduced, lambda: [_identity(one) for one in gradients])


def _has_others(process_set: ProcessSet) -> bool:
    return bool(process_set.included()) and (process_set.size() or 1) > 1


def divided_by_size(gradient: Any, process_set: ProcessSet) -> Any:
    """A local gradient, scaled like gradients that are averages. A non-member's is unchanged."""
    if not process_set.included():
        return gradient
    return _scaled(gradient, set_size(process_set))


def _scaled(gradient: Any, divisor: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values / tf.cast(divisor, gradient.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(divisor, gradient.dtype)


def _as_dense(gradient: Any) -> Any:
    is_sparse = isinstance(gradient, tf.IndexedSlices)
    return tf.convert_to_tensor(gradient) if is_sparse else gradient


def _identity(gradient: Any) -> Any:
    return tf.nest.map_structure(tf.identity, gradient, expand_composites=True)


def variable_class() -> Any:
    """The classes of variables: TensorFlow's, and those of each Keras that is loaded."""
    return functools.reduce(lambda one, other: one | other, keras_classes("Variable"), tf.Variable)


def groups_or_number(groups: Groups | None, num_groups: int) -> Groups | None:
    """``groups``, or else its deprecated form ``num_groups``, with a warning."""
    if num_groups == 0:
        return groups
    import warnings

    warnings.warn(
        "The parameter num_groups is deprecated; use groups.", DeprecationWarning, stacklevel=3
    )
    return num_groups if groups is None else groups


def layers_variables(local_layers: Any) -> list[Any]:
    """The trainable weights of a Keras layer, or of a collection of layers; None has none.

    Raises ValueError for anything else.
    """
    layer: Any = keras_classes("Layer")
    if local_layers is None:
        return []
    layers = [local_layers] if isinstance(local_layers, layer) else local_layers
    if isinstance(layers, Collection) and all(isinstance(one, layer) for one in layers):
        return [variable for one in layers for variable in one.trainable_weights]
    raise ValueError(
        f"All local layers must be of tf.keras.layers.Layer type; got {local_layers!r}."
    )
