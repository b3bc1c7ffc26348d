"""Reductions of TensorFlow's values: tensors, variables, arrays and IndexedSlices.

IndexedSlices (the gradients of embeddings) are reduced by joining the rows of all ranks; the
optimizer adds up rows of the same index.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from hvdtune.core import operations
from hvdtune.core.process_sets import ProcessSet, global_process_set, id_of
from hvdtune.core.reduce_ops import Adasum, Average, Sum
from hvdtune.faces.arguments import allreduce_op, group_members
from hvdtune.tensorflow import mpi_ops
from hvdtune.tensorflow.compression import Compression
from hvdtune.tensorflow.util import keras_classes, value_of


def sizes_may_change() -> bool:
    """Whether the number of ranks may change during a traced function's life."""
    return os.environ.get("HOROVOD_ELASTIC") == "1"


def set_size(process_set: ProcessSet) -> Any:
    """The size of a set: a number, or in elastic jobs a tensor that is read when needed."""
    if sizes_may_change():
        return mpi_ops.size_op(id_of(process_set))
    return process_set.size()


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduce ``tensor`` (same type and shape on all ranks) over the ranks; the average by default.

    ``tensor``: a tensor, a variable, an array, or IndexedSlices, which give IndexedSlices.
    ``average`` is the deprecated form of ``op``. The devices are where TensorFlow puts the
    operation. Raises ValueError for ``op`` and ``average`` together; NotImplementedError for
    IndexedSlices with factors or an operator other than Average or Sum, and if Adasum cannot
    work; TensorFlow's errors (see ``mpi_ops``) if the ranks disagree or a rank is gone.
    """
    op = allreduce_op(op, average)
    if isinstance(tensor, tf.IndexedSlices):
        _check_sparse(op, prescale_factor, postscale_factor)
        with tf.device(device_sparse):
            return _gathered([tensor], op, name, ignore_name_scope, process_set)[0]
    if op == Adasum:
        operations.check_adasum(process_set)
    with tf.device(device_dense):
        compressed, context = compression.compress(as_tensor(tensor))
        reduced = mpi_ops._allreduce(
            compressed,
            name=name,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            ignore_name_scope=ignore_name_scope,
            process_set=process_set,
        )
        return compression.decompress(reduced, context)


def grouped_allreduce(
    tensors: Iterable[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """``allreduce`` of all ``tensors`` together, as a list; an empty group gives ``[]``.

    The members may differ in type. Those that are IndexedSlices are gathered together.
    """
    members = _members(tensors, "grouped_allreduce")
    op = allreduce_op(op, average)
    sparse = [i for i, member in enumerate(members) if isinstance(member, tf.IndexedSlices)]
    dense = [i for i, member in enumerate(members) if not isinstance(member, tf.IndexedSlices)]
    results: list[Any] = [None] * len(members)
    if sparse:
        _check_sparse(op, prescale_factor, postscale_factor)
        with tf.device(device_sparse):
            slices = [members[i] for i in sparse]
            label = None if name is None else f"{name}_sparse"
            gathered = _gathered(slices, op, label, ignore_name_scope, process_set)
        for i, result in zip(sparse, gathered, strict=True):
            results[i] = result
    if dense:
        if op == Adasum:
            operations.check_adasum(process_set)
        with tf.device(device_dense):
            pairs = [compression.compress(as_tensor(members[i])) for i in dense]
            reduced = mpi_ops._grouped_allreduce(
                [compressed for compressed, _ in pairs],
                name=name,
                op=op,
                prescale_factor=prescale_factor,
                postscale_factor=postscale_factor,
                ignore_name_scope=ignore_name_scope,
                process_set=process_set,
            )
            for i, result, (_, context) in zip(dense, reduced, pairs, strict=True):
                results[i] = compression.decompress(result, context)
    return results


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Reduce ``tensor`` over the ranks (Average or Sum) and return this rank's share of its rows.

    Rank ``r`` of ``n`` gets ``rows // n`` rows, plus one if ``r < rows % n``.
    """
    with tf.device(device_dense):
        compressed, context = compression.compress(as_tensor(tensor))
        reduced = mpi_ops._reducescatter(
            compressed,
            name=name,
            op=op,
            ignore_name_scope=ignore_name_scope,
            process_set=process_set,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
        )
        return compression.decompress(reduced, context)


def grouped_reducescatter(
    tensors: Iterable[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    ignore_name_scope: bool = False,
) -> list[tf.Tensor]:
    """``reducescatter`` of all ``tensors`` together, as a list; an empty group gives ``[]``."""
    members = _members(tensors, "grouped_reducescatter")
    if not members:
        return []
    with tf.device(device_dense):
        pairs = [compression.compress(as_tensor(member)) for member in members]
        reduced = mpi_ops._grouped_reducescatter(
            [compressed for compressed, _ in pairs],
            name=name,
            op=op,
            ignore_name_scope=ignore_name_scope,
            process_set=process_set,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
        )
        return [
            compression.decompress(tensor, context)
            for tensor, (_, context) in zip(reduced, pairs, strict=True)
        ]


def as_tensor(value: Any) -> tf.Tensor:
    """A tensor from anything that stands for one: a variable, also of Keras, an array, a list."""
    return tf.convert_to_tensor(value_of(value))


def _members(tensors: Iterable[Any], operation: str) -> list[Any]:
    kinds = (tf.Tensor, tf.Variable, tf.IndexedSlices, *keras_classes("Variable"))
    is_tensor = isinstance(tensors, kinds) or hasattr(tensors, "__array_interface__")
    return group_members(tensors, is_tensor, operation)


def _check_sparse(op: int, prescale_factor: float, postscale_factor: float) -> None:
    if op == Adasum:
        raise NotImplementedError(
            "op=Adasum does not support sparse tensors (IndexedSlices); convert them to dense ones "
            "first, as sparse_as_dense=True does."
        )
    if op not in (Average, Sum):
        raise NotImplementedError(
            "Sparse tensors (IndexedSlices) can only be averaged or added; op must be Average or "
            "Sum."
        )
    for factor, value in (
        ("prescale_factor", prescale_factor),
        ("postscale_factor", postscale_factor),
    ):
        if value != 1.0:
            raise NotImplementedError(
                f"{factor} is not supported for sparse tensors (IndexedSlices)."
            )


def _gathered(
    slices: Sequence[tf.IndexedSlices],
    op: int,
    name: str | None,
    ignore_name_scope: bool,
    process_set: ProcessSet,
) -> list[tf.IndexedSlices]:
    """The rows of all ranks; for several members, all values are sent together, and all indices."""

    def gather(tensors: list[tf.Tensor], part: str) -> Sequence[tf.Tensor]:
        label = None if name is None else f"{name}_{part}"
        where: Any = {"ignore_name_scope": ignore_name_scope, "process_set": process_set}
        if len(tensors) == 1:
            return [mpi_ops.allgather(tensors[0], name=label, **where)]
        return mpi_ops.grouped_allgather(tensors, name=label, **where)

    values = gather([one.values for one in slices], "values")
    indices = gather([one.indices for one in slices], "indices")
    if op == Average:
        members = set_size(process_set)
        values = [one / tf.cast(members, one.dtype) for one in values]
    return [
        tf.IndexedSlices(rows, where, dense_shape=one.dense_shape)
        for rows, where, one in zip(values, indices, slices, strict=True)
    ]
