"""``DistributedGradientTape``: a gradient tape whose gradients are reduced over the ranks."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from hvdtune.core.process_sets import ProcessSet, global_process_set
from hvdtune.core.reduce_ops import Average
from hvdtune.faces import reduced
from hvdtune.faces.buckets import Groups
from hvdtune.tensorflow.calls import step_ends
from hvdtune.tensorflow.compression import Compression
from hvdtune.tensorflow.gradient_reduction import (
    GradientReducer,
    Reduction,
    groups_or_number,
    layers_variables,
)
from hvdtune.tensorflow.util import value_of

Pairs = list[tuple[Any, Any]]


class _DistributedGradientTape(tf.GradientTape):
    """The methods that ``DistributedGradientTape`` puts before the wrapped tape's."""

    def __init__(self, tape: tf.GradientTape, reducer: GradientReducer) -> None:
        # Both objects share one state: the recorded operations, and whether recording goes on. If
        # both ended the recording, TensorFlow would count wrongly and crash.
        self.__dict__ = tape.__dict__
        self._reducer = reducer
        self._reduces = True

    def register_local_source(self, source: Any) -> None:
        """Do not reduce the gradient of the variable ``source``.

        It is divided by the number of ranks unless the tape was made with
        ``scale_local_gradients=False``.
        """
        self._reducer.register_local_var(source)

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        *,
        unconnected_gradients: tf.UnconnectedGradients = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """The gradient of ``target`` with respect to each of ``sources``, reduced over the ranks.

        ``sources`` is a variable, or a nested structure of them, and so is the result: None if
        there is no gradient. Collective: all ranks of the set must have gradients of the same
        sources. ``use_generic_names``: see ``gradient_reduction.GradientReducer``.
        """
        gradients = super().gradient(target, sources, output_gradients, unconnected_gradients)
        if not self._reduces:
            return gradients
        flat = tf.nest.flatten(sources)
        # A gradient is a leaf, even if it is IndexedSlices or None.
        given = tf.nest.flatten(gradients)
        results = self._reducer(given, flat, use_generic_names)
        reduced.mark(results)  # a distributed optimizer leaves them as they are
        if flat:
            step_ends.tell(value_of(flat[0]), results)
        return tf.nest.pack_sequence_as(sources, results)

    def jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped tape's, of this rank alone."""
        with self._alone():
            return super().jacobian(*args, **kwargs)

    def batch_jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped tape's, of this rank alone."""
        with self._alone():
            return super().batch_jacobian(*args, **kwargs)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Inside, ``gradient``, which the two above call, reduces nothing."""
        self._reduces = False
        try:
            yield
        finally:
            self._reduces = True

    def get_local_and_global_gradients(self, *args: Any, **kwargs: Any) -> tuple[Pairs, Pairs]:
        """``gradient`` with these arguments, as pairs (source, gradient).

        Returns the pairs of local sources, then the other pairs.
        """
        sources = kwargs["sources"] if "sources" in kwargs else args[1]
        flat = tf.nest.flatten(sources)
        pairs = list(zip(flat, tf.nest.flatten(self.gradient(*args, **kwargs)), strict=True))
        local = [pair for pair in pairs if self._reducer.is_local(pair[0])]
        return local, [pair for pair in pairs if not self._reducer.is_local(pair[0])]


@functools.cache
def _subclass(kind: Any) -> type:
    # The slots hold what the wrapped tape does not share.
    own = {"__module__": kind.__module__, "__slots__": ("_reducer", "_reduces")}
    return type(kind.__name__, (_DistributedGradientTape, kind), own)


def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """A tape of the class of ``gradtape``, with what it has recorded, that reduces gradients.

    device_dense, device_sparse: where TensorFlow puts the reductions; empty: anywhere.
    compression: how gradients are sent, for example ``Compression.fp16``.
    sparse_as_dense: reduces IndexedSlices as dense gradients.
    op: the operator. Sparse gradients can only be averaged or added.
    gradient_predivide_factor: splits the averaging: 1/factor before the sum, factor/size after it.
    groups: a number, or lists of variables: the gradients of a group are reduced together; all
        gradients, if it is None. ``num_groups`` is its deprecated name.
    process_set: the ranks to reduce over; others keep their own gradients.
    scale_local_gradients: divides gradients of local sources by the number of ranks.

    Raises ValueError for wrong arguments. With one process nothing is communicated.
    """
    if not isinstance(gradtape, tf.GradientTape):
        raise ValueError(
            f"DistributedGradientTape wraps a tf.GradientTape, not a {type(gradtape).__name__}."
        )
    if isinstance(gradtape, _DistributedGradientTape):
        raise ValueError("The tape is a DistributedGradientTape already.")
    reduction = Reduction(
        "DistributedGradientTape",
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        process_set,
    )
    chosen = groups_or_number(groups, num_groups)
    reducer = GradientReducer(reduction, chosen, scale_local_gradients)
    kind: Any = type(gradtape)
    return _subclass(kind)(gradtape, reducer)


def PartialDistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """``DistributedGradientTape`` that does not reduce the gradients of some Keras layers.

    local_layers: a layer, or a collection of them. Raises ValueError for anything else.
    """
    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    for variable in layers_variables(local_layers):
        tape.register_local_source(variable)
    return tape
