"""Gradients of Horovod's operations, registered by the operation's type.

They describe the loss summed or averaged over ranks as training scripts use it. With ``g`` the
gradient of the output:

    allreduce        allreduce(g), same operator and factors
    allgather        this rank's rows of the average of g over ranks
    broadcast        average of g over ranks on the root, zero elsewhere
    alltoall         alltoall(g) with the received splits: every row's gradient goes back
    reducescatter    allgather(g) * factors, and * number of ranks when the operator is Sum

For the set of all ranks, rank and size are read when the gradient runs: a function that was traced
before the job changed stays correct. For other process sets, the gradient of an allgather uses
this rank's place in the set at the time of tracing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvdtune.core import process_sets
from hvdtune.core.reduce_ops import Average, Sum
from hvdtune.core.world import rank
from hvdtune.tensorflow import mpi_ops
from hvdtune.tensorflow.calls.operations import call

_COMMON = ("ignore_name_scope", "process_set_id")
_REDUCTION = ("reduce_op", "prescale_factor", "postscale_factor", *_COMMON)
_AVERAGE = {"reduce_op": Average, "prescale_factor": 1.0, "postscale_factor": 1.0}


def _attributes(op: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: op.get_attr(name) for name in names}


def _called(
    kind: str, tensors: Sequence[tf.Tensor], attributes: dict[str, Any], grouped: bool
) -> list[tf.Tensor]:
    # In eager mode gradients may be IndexedSlices, as those of `tf.gather` are.
    dense = [tf.convert_to_tensor(tensor) for tensor in tensors]
    if grouped:
        return mpi_ops.call_group(f"HorovodGrouped{kind}", dense, attributes)
    return [mpi_ops.call_one(f"Horovod{kind}", dense[0], attributes)]


@tf.RegisterGradient("HorovodAllreduce")
def _of_allreduce(op: Any, gradient: tf.Tensor) -> tf.Tensor:
    return _called("Allreduce", (gradient,), _attributes(op, _REDUCTION), grouped=False)[0]


@tf.RegisterGradient("HorovodGroupedAllreduce")
def _of_grouped_allreduce(op: Any, *gradients: tf.Tensor) -> list[tf.Tensor]:
    return _called("Allreduce", gradients, _attributes(op, _REDUCTION), grouped=True)


def _index_in(set_number: int) -> Any:
    """This rank's place in a process set; outside set 0, a constant in a traced function."""
    if set_number == 0:
        return mpi_ops.rank_op()
    members = process_sets.registered(set_number) or []
    return members.index(rank())


def _own_rows(op: Any, gradients: tuple[tf.Tensor, ...], grouped: bool) -> list[tf.Tensor]:
    """This rank's rows of the averages over ranks."""
    common = _attributes(op, _COMMON)
    averages = _called("Allreduce", gradients, {**_AVERAGE, **common}, grouped)
    # The gathered table has a row for every rank: how many rows it has of each tensor.
    rows = tf.stack([tf.shape(tensor)[0] for tensor in op.inputs])
    table = mpi_ops.call_one("HorovodAllgather", rows[tf.newaxis], common)
    earlier = tf.range(tf.shape(table)[0]) < _index_in(common["process_set_id"])
    before = tf.reduce_sum(tf.where(earlier[:, tf.newaxis], table, 0), axis=0)
    return [
        tf.slice(average, tf.one_hot(0, tf.rank(average), before[i], 0), tf.shape(tensor))
        for i, (average, tensor) in enumerate(zip(averages, op.inputs, strict=True))
    ]


@tf.RegisterGradient("HorovodAllgather")
def _of_allgather(op: Any, gradient: tf.Tensor) -> tf.Tensor:
    return _own_rows(op, (gradient,), grouped=False)[0]


@tf.RegisterGradient("HorovodGroupedAllgather")
def _of_grouped_allgather(op: Any, *gradients: tf.Tensor) -> list[tf.Tensor]:
    return _own_rows(op, gradients, grouped=True)


@tf.RegisterGradient("HorovodBroadcast")
def _of_broadcast(op: Any, gradient: tf.Tensor) -> tf.Tensor:
    average = _called(
        "Allreduce", (gradient,), {**_AVERAGE, **_attributes(op, _COMMON)}, grouped=False
    )[0]
    is_root = tf.equal(mpi_ops.rank_op(), op.get_attr("root_rank"))
    return tf.where(is_root, average, tf.zeros_like(average))


@tf.RegisterGradient("HorovodAlltoall")
def _of_alltoall(op: Any, gradient: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, None]:
    gradient = tf.convert_to_tensor(gradient)
    node = mpi_ops._node_name("HorovodAlltoall", gradient, None)
    inputs = {"tensor": gradient, "splits": op.outputs[1]}
    returned = call("HorovodAlltoall", inputs, _attributes(op, _COMMON), node, 2)[0]
    # Rows beyond the sum of the splits were not sent.
    unsent = tf.shape(op.inputs[0])[0] - tf.shape(returned)[0]
    rest = tf.zeros(tf.concat([[unsent], tf.shape(returned)[1:]], 0), returned.dtype)
    return tf.concat([returned, rest], 0), None


def _gathered(op: Any, gradients: tuple[tf.Tensor, ...], grouped: bool) -> list[tf.Tensor]:
    """The ranks' gradients of their shares, concatenated and scaled."""
    attributes = _attributes(op, _REDUCTION)
    factor = attributes["prescale_factor"] * attributes["postscale_factor"]
    scaled = [gradient * tf.cast(factor, gradient.dtype) for gradient in gradients]
    if attributes["reduce_op"] == Sum:
        ranks = mpi_ops.size_op(attributes["process_set_id"])
        scaled = [gradient * tf.cast(ranks, gradient.dtype) for gradient in scaled]
    return _called("Allgather", scaled, _attributes(op, _COMMON), grouped)


@tf.RegisterGradient("HorovodReducescatter")
def _of_reducescatter(op: Any, gradient: tf.Tensor) -> tf.Tensor:
    return _gathered(op, (gradient,), grouped=False)[0]


@tf.RegisterGradient("HorovodGroupedReducescatter")
def _of_grouped_reducescatter(op: Any, *gradients: tf.Tensor) -> list[tf.Tensor]:
    return _gathered(op, gradients, grouped=True)


for _type in ("Size", "ProcessSetIncluded", "LocalSize", "Rank", "LocalRank"):
    tf.no_gradient(f"Horovod{_type}")
