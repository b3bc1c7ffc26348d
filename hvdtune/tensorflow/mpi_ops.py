"""Horovod's operations on TensorFlow's tensors, differentiable, in eager mode and in graphs.

They take tensors, variables and anything that `tf.convert_to_tensor` takes, of bool, integers of
8 to 64 bits (uint8 and uint16 unsigned), float16, bfloat16, float32 and float64. Errors that only
the ranks together can detect are raised by TensorFlow while the operation runs:
FailedPreconditionError (the ranks' tensors do not match; no init), InvalidArgumentError (an invalid
root, process set or splits), AbortedError (a shutdown), UnknownError (a rank died). The module has
Horovod's name because scripts import from it. Gradients: `hvdtune.tensorflow.gradients`.

In a graph, ranks match tensors by the node's name and the iteration of a loop; in eager mode by
`name`, or by type for calls without one. A name that is in flight cannot be used again: threads
that call at the same time must give names (InvalidArgumentError).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvdtune.core import operations
from hvdtune.core.process_sets import ProcessSet, global_process_set, id_of
from hvdtune.core.reduce_ops import Adasum, Sum
from hvdtune.faces import basics
from hvdtune.faces.arguments import allreduce_op as handle_average_backwards_compatibility
from hvdtune.faces.arguments import group_members
from hvdtune.faces.basics import *  # noqa: F403
from hvdtune.faces.basics import _basics  # noqa: F401 (as Horovod's modules have it)
from hvdtune.tensorflow.calls.operations import DTYPES, call, checked
from hvdtune.tensorflow.util import value_of

__all__ = [
    "allgather",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "handle_average_backwards_compatibility",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "size_op",
]
__all__ += basics.__all__


class _NoSuchSet(tf.errors.InvalidArgumentError, ValueError):
    """Both errors of Horovod for an unknown set: the one from Python and the operation's."""


def set_id(process_set: ProcessSet) -> int:
    """`id_of`, with TensorFlow's error for an unregistered set; it is also a ValueError."""
    try:
        return id_of(process_set)
    except ValueError as error:
        raise _NoSuchSet(None, None, str(error)) from None


def _node_name(operation: str, tensor: tf.Tensor, name: str | None) -> str | None:
    """The name of the node; in eager mode None unless one is given, as tensors have no names."""
    if name is not None or tf.executing_eagerly():
        return name
    return f"{operation}_{_normalized(tensor.name)}"


def _group_name(operation: str, tensors: Sequence[tf.Tensor], name: str | None) -> str | None:
    if name is not None or tf.executing_eagerly():
        return name
    first, last = _normalized(tensors[0].name), _normalized(tensors[-1].name)
    return f"{operation}_{first}_{last}"


def call_one(
    operation: str, tensor: tf.Tensor, attributes: dict[str, Any], name: str | None = None
) -> tf.Tensor:
    """The output of an operation on one tensor."""
    return call(operation, {"tensor": tensor}, attributes, _node_name(operation, tensor, name))[0]


def call_group(
    operation: str, tensors: list[tf.Tensor], attributes: dict[str, Any], name: str | None = None
) -> list[tf.Tensor]:
    """The outputs of an operation on a group, which must not be empty."""
    node = _group_name(operation, tensors, name)
    return call(operation, {"tensors": tensors}, attributes, node, len(tensors))


def _place(ignore_name_scope: bool, process_set: ProcessSet) -> dict[str, Any]:
    """The attributes that all collectives have."""
    return {"ignore_name_scope": ignore_name_scope, "process_set_id": set_id(process_set)}


def _normalized(name: str) -> str:
    return re.sub("[^A-Za-z0-9_]", "_", name)


def _group(tensors: Any, operation: str) -> list[tf.Tensor]:
    members = group_members(tensors, tf.is_tensor(tensors), operation)
    converted = []
    for index, member in enumerate(members):
        try:
            converted.append(checked(member, operation))
        except (TypeError, ValueError) as error:
            raise type(error)(f"Member {index} of the group: {error}") from None
    return converted


def _reduction(
    kind: str,
    tensors: Sequence[tf.Tensor],
    op: int,
    prescale_factor: float,
    postscale_factor: float,
) -> dict[str, Any]:
    """The attributes of a reduction. Raises ValueError, TypeError, HorovodInternalError."""
    dtypes = [operations.DTYPES[tensor.dtype.name] for tensor in tensors]
    operations.check_reduction(kind, dtypes, op, prescale_factor, postscale_factor)
    return {
        "reduce_op": op,
        "prescale_factor": float(prescale_factor),
        "postscale_factor": float(postscale_factor),
    }


# ---- allreduce ----------------------------------------------------------------------------------


def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Reduce a tensor (same type and shape on all ranks) over the ranks into a new one."""
    if op == Adasum:
        operations.check_adasum(process_set)
    tensor = checked(tensor, "allreduce")
    attributes = _reduction("allreduce", [tensor], op, prescale_factor, postscale_factor)
    attributes |= _place(ignore_name_scope, process_set)
    return call_one("HorovodAllreduce", tensor, attributes, name)


def _grouped_allreduce(
    tensors: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Reduce tensors, whose types and shapes may differ, together over the ranks into new ones."""
    if op == Adasum:
        operations.check_adasum(process_set)
    members = _group(tensors, "grouped_allreduce")
    if not members:
        return []
    attributes = _reduction("allreduce", members, op, prescale_factor, postscale_factor)
    attributes |= _place(ignore_name_scope, process_set)
    return call_group("HorovodGroupedAllreduce", members, attributes, name)


# ---- allgather ----------------------------------------------------------------------------------


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Join every rank's tensor along the first dimension (which may differ) in rank order."""
    tensor = checked(tensor, "allgather")
    attributes = _place(ignore_name_scope, process_set)
    return call_one("HorovodAllgather", tensor, attributes, name)


def grouped_allgather(
    tensors: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """`allgather` of all `tensors` together."""
    members = _group(tensors, "grouped_allgather")
    if not members:
        return []
    attributes = _place(ignore_name_scope, process_set)
    return call_group("HorovodGroupedAllgather", members, attributes, name)


# ---- broadcast ----------------------------------------------------------------------------------


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """A new tensor with the tensor of global rank `root_rank`, on every rank."""
    operations.check_root(root_rank)
    tensor = checked(tensor, "broadcast")
    attributes = {
        "root_rank": int(root_rank),
        "ignore_name_scope": ignore_name_scope,
        "process_set_id": set_id(process_set),
    }
    return call_one("HorovodBroadcast", tensor, attributes, name)


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Give every variable its value on `root_rank`; returns the new values.

    In a graph, running one of the values assigns them all. Raises ValueError if some variables are
    resources and others references.
    """
    members = group_members(variables, tf.is_tensor(variables), "broadcast_")
    given = [value_of(variable) for variable in members]
    resources = [tf.is_tensor(one) and _is_resource(one) for one in given]
    if any(resources) and not all(resources):
        raise ValueError(
            "broadcast_ takes resource variables or reference variables, not both in one call."
        )
    prefix = name or "HorovodBroadcastInplace"
    values = []
    for index, variable in enumerate(given):
        label = _normalized(getattr(variable, "name", None) or str(index))
        value = value_of_root(variable, root_rank, f"{prefix}_{label}", process_set)
        values.append(variable.assign(value))
    if tf.executing_eagerly():
        return [tf.convert_to_tensor(value) for value in values]
    with tf.control_dependencies([value.op for value in values]):
        return [tf.identity(value) for value in values]


def value_of_root(
    variable: Any, root_rank: int, name: str, process_set: ProcessSet = global_process_set
) -> tf.Tensor:
    """The value that a variable has on `root_rank`.

    If the operations do not take its type (Keras's seeds are uint32), its bytes are sent.
    """
    value = tf.convert_to_tensor(variable)
    in_bytes = value.dtype not in DTYPES and value.dtype != tf.string
    sent = tf.bitcast(value, tf.uint8) if in_bytes else value
    received = broadcast(sent, root_rank, name, process_set=process_set)
    return tf.bitcast(received, value.dtype) if in_bytes else received


def _is_resource(variable: Any) -> bool:
    dtype = getattr(variable, "dtype", None)
    return not getattr(dtype, "_is_ref_dtype", False)


# ---- alltoall -----------------------------------------------------------------------------------


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send `splits[r]` rows to rank `r` of the set and receive what the others send here.

    Returns the received rows in the order of senders; with `splits` given, a pair of them and an
    int32 tensor of how many rows each rank has sent.
    """
    tensor = checked(tensor, "alltoall")
    rows = tf.convert_to_tensor([] if splits is None else splits, dtype=tf.int32)
    attributes = _place(ignore_name_scope, process_set)
    node = _node_name("HorovodAlltoall", tensor, name)
    inputs = {"tensor": tensor, "splits": rows}
    output, received = call("HorovodAlltoall", inputs, attributes, node, 2)
    return output if splits is None else (output, received)


# ---- reducescatter ------------------------------------------------------------------------------


def _reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Reduce a tensor over the ranks (Average or Sum) and return this rank's share of its rows."""
    operations.check_scattered(op)
    tensor = checked(tensor, "reducescatter")
    attributes = _reduction("reducescatter", [tensor], op, prescale_factor, postscale_factor)
    attributes |= _place(ignore_name_scope, process_set)
    return call_one("HorovodReducescatter", tensor, attributes, name)


def _grouped_reducescatter(
    tensors: Any,
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[tf.Tensor]:
    """`_reducescatter` of all `tensors` together."""
    operations.check_scattered(op)
    members = _group(tensors, "grouped_reducescatter")
    if not members:
        return []
    attributes = _reduction("reducescatter", members, op, prescale_factor, postscale_factor)
    attributes |= _place(ignore_name_scope, process_set)
    return call_group("HorovodGroupedReducescatter", members, attributes, name)


# ---- numbers ------------------------------------------------------------------------------------


def join() -> tf.Tensor:
    """Contribute zeros to allreduces until all ranks have joined; returns the last to join."""
    return call("HorovodJoin", {}, {})[0]


def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """The number of ranks in a process set when the operation runs: an int32 scalar."""
    return call("HorovodSize", {}, {"process_set_id": process_set_id}, name)[0]


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """1 if this rank is in the set, 0 if not, -1 before init, -3 if there is no such set."""
    return call("HorovodProcessSetIncluded", {}, {"process_set_id": process_set_id}, name)[0]


def local_size_op(name: str | None = None) -> tf.Tensor:
    """The number of ranks on this host when the operation runs: an int32 scalar."""
    return call("HorovodLocalSize", {}, {}, name)[0]


def rank_op(name: str | None = None) -> tf.Tensor:
    """This rank when the operation runs: an int32 scalar."""
    return call("HorovodRank", {}, {}, name)[0]


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """This rank's number on its host when the operation runs: an int32 scalar."""
    return call("HorovodLocalRank", {}, {}, name)[0]
