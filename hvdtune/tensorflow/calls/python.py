"""Horovod's operations as calls of Python, if TensorFlow's C interface lacks what they need.

Results, errors and gradients are the same, but calls are several times slower. TensorFlow makes
such calls one after the other, in program order, which must be the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.framework.func_graph import FuncGraph

import hvdtune
from hvdtune.core import process_sets, world
from hvdtune.core.exceptions import HorovodInternalError, is_mistake
from hvdtune.core.process_sets import ProcessSet, global_process_set

_BFLOAT16 = tf.bfloat16.as_numpy_dtype
_NUMBERS: dict[str, Callable[[Any], int]] = {
    "HorovodJoin": lambda _: hvdtune.join(),
    "HorovodSize": lambda number: _set(number).size() or 0,
    "HorovodProcessSetIncluded": lambda number: _included(number),
    "HorovodLocalSize": lambda _: world.local_size(),
    "HorovodRank": lambda _: world.rank(),
    "HorovodLocalRank": lambda _: world.local_rank(),
}


@dataclass(frozen=True)
class Node:
    """What gradient functions read from an operation."""

    inputs: Sequence[tf.Tensor]
    outputs: Sequence[tf.Tensor]
    attributes: Mapping[str, Any]

    def get_attr(self, name: str) -> Any:
        """As `tf.Operation.get_attr`."""
        return self.attributes[name]

    def gradient(self, operation: str, upstream: Sequence[tf.Tensor]) -> Any:
        """The gradients of the inputs, given those of the outputs."""
        found = ops.gradient_registry.lookup(operation)(self, *upstream)
        return found if len(self.inputs) > 1 or isinstance(found, tf.Tensor) else found[0]


def call(
    operation: str,
    inputs: Mapping[str, Any],
    attributes: Mapping[str, Any],
    name: str | None,
) -> list[tf.Tensor]:
    """As `operations.call`."""
    if operation in _NUMBERS:
        return [_number(operation, attributes.get("process_set_id", 0))]
    first = next(iter(inputs.values()))
    tensors: list[tf.Tensor] = list(first) if isinstance(first, list) else [first]
    exchanged = len(tensors)
    tensors += list(inputs.values())[1:]
    types = [tensor.dtype for tensor in tensors]

    def host(*arrays: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        plain = [np.ascontiguousarray(array).reshape(array.shape) for array in arrays]
        wide = [array.astype("float32") if array.dtype == _BFLOAT16 else array for array in plain]
        results = _run(operation, wide, attributes, name)
        return [
            np.asarray(result).astype(array.dtype, copy=False)
            for result, array in zip(results, plain, strict=True)
        ]

    @tf.custom_gradient
    def exchange(*given: tf.Tensor) -> Any:
        results = _in_order(_with_errors_of_tensorflow(operation, host), list(given), types)
        for index, result in enumerate(results):
            result.set_shape(_shape(operation, given[index].shape if index < exchanged else None))

        def gradient(*upstream: tf.Tensor) -> Any:
            return Node(given, results, attributes).gradient(operation, upstream)

        return results, gradient

    return list(exchange(*tensors))


def _number(operation: str, process_set: int) -> tf.Tensor:
    def host() -> Any:
        return np.int32(_NUMBERS[operation](process_set))

    result = _in_order(_with_errors_of_tensorflow(operation, host), [], [tf.int32])[0]
    result.set_shape(())
    return result


def _in_order(host: Any, tensors: list[tf.Tensor], types: list[Any]) -> list[tf.Tensor]:
    """Make the call after the earlier ones: functions ensure that, other graphs do not."""
    if tf.executing_eagerly():
        found = host(*[np.asarray(tensor.numpy()) for tensor in tensors])
        return [
            tf.convert_to_tensor(one) for one in (found if isinstance(found, list) else [found])
        ]
    graph = tf.compat.v1.get_default_graph()
    waits = not isinstance(graph, FuncGraph)
    before = getattr(graph, "hvdtune_last_call", None) if waits else None
    with tf.control_dependencies([before] if before is not None else []):
        given = tf.numpy_function(host, tensors, types, stateful=True)
    results = [given] if tf.is_tensor(given) else list(given)
    if waits:
        graph.hvdtune_last_call = results[0].op
    return results


def _shape(operation: str, shape: tf.TensorShape | None) -> tf.TensorShape:
    """The shape of a result; None stands for received splits."""
    if shape is None:
        return tf.TensorShape([None])
    if shape.rank is None or operation.endswith(("Allreduce", "Broadcast")):
        return shape
    return tf.TensorShape([None, *shape[1:]])


def _set(number: int) -> ProcessSet:
    if number == 0:
        return global_process_set
    ranks = process_sets.registered(number)
    if ranks is None:
        raise ValueError(f"there is no process set {number}")
    found = ProcessSet(ranks)
    found.process_set_id = number
    return found


def _included(number: int) -> int:
    if not world.is_initialized():
        return -1
    ranks = process_sets.registered(number)
    return -3 if ranks is None else int(world.rank() in ranks)


def _run(
    operation: str,
    arrays: list[np.ndarray[Any, Any]],
    attributes: Mapping[str, Any],
    name: str | None,
) -> Sequence[Any]:
    given: dict[str, Any] = {"name": name, "process_set": _set(attributes["process_set_id"])}
    if name is not None and attributes["ignore_name_scope"]:
        given["name"] = name.rpartition("/")[2]
    if "reduce_op" in attributes:
        given["op"] = attributes["reduce_op"]
        for factor in ("prescale_factor", "postscale_factor"):
            given[factor] = attributes[factor]
    if operation == "HorovodBroadcast":
        return [hvdtune.broadcast(arrays[0], attributes["root_rank"], **given)]
    if operation == "HorovodAlltoall":
        splits = arrays[1] if arrays[1].size else None
        rows, counts = hvdtune.synchronize(hvdtune.alltoall_async(arrays[0], splits, **given))
        return [rows, counts]
    plain = operation.removeprefix("Horovod")
    if plain.startswith("Grouped"):
        grouped = getattr(hvdtune, "grouped_" + plain.removeprefix("Grouped").lower())
        results: Sequence[Any] = grouped(arrays, **given)
        return results
    return [getattr(hvdtune, plain.lower())(arrays[0], **given)]


def _with_errors_of_tensorflow(operation: str, host: Any) -> Any:
    """`host`, raising TensorFlow's errors. In graphs, TensorFlow turns some into UnknownError.

    The text begins with the operation's type, by which elastic loops recognise a lost job.
    """

    def called(*arrays: Any) -> Any:
        try:
            return host(*arrays)
        except ValueError as error:
            raise tf.errors.InvalidArgumentError(None, None, str(error)) from None
        except HorovodInternalError as error:
            text = str(error)
            if is_mistake(error) or not world.is_initialized():
                raise tf.errors.FailedPreconditionError(None, None, text) from None
            raise tf.errors.UnknownError(None, None, f"{operation}: {text}") from None

    return called
