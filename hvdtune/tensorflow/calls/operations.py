"""TensorFlow's calls of Horovod's operations, by the operation's type.

The native module registers the types with the imported TensorFlow (nothing is compiled against
it), and they are called by name: `tf.raw_ops` does not list them. In eager mode the call uses the
type's variant whose kernel waits; gradients are recorded for the type itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import config as autograph
from tensorflow.python.eager import context, execute
from tensorflow.python.framework import auto_control_deps, op_def_library

from hvdtune.core import operations
from hvdtune.core.libraries import tensorflow_library
from hvdtune.tensorflow.calls import compiled, python

COLLECTIVES = (
    "HorovodAllreduce",
    "HorovodGroupedAllreduce",
    "HorovodAllgather",
    "HorovodGroupedAllgather",
    "HorovodBroadcast",
    "HorovodAlltoall",
    "HorovodReducescatter",
    "HorovodGroupedReducescatter",
)
END_STEP = "HorovodEndStep"
#: The dtypes that the operations take.
DTYPES = frozenset(tf.dtypes.as_dtype(name) for name in operations.DTYPES)


def _missing() -> str:
    """Register the operations. Returns what TensorFlow lacks for that, or an empty text."""
    missing = tensorflow_library.register_operations()
    if missing:
        return missing
    # Code that builds graphs here has no tensor conditions that AutoGraph would have to translate.
    autograph.CONVERSION_RULES = (autograph.DoNotConvert("hvdtune"), *autograph.CONVERSION_RULES)
    # Otherwise TensorFlow runs the operations of a function one after the other, in program
    # order: each waits for the one before it, and none are fused.
    name = "MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS"
    types = frozenset(getattr(auto_control_deps, name, ())) | {*COLLECTIVES, END_STEP}
    setattr(auto_control_deps, name, types)
    return ""


#: Why TensorFlow cannot have the operations as its own; empty if it has them.
MISSING = _missing()
if MISSING:
    warnings.warn(
        f"hvdtune cannot add its operations to TensorFlow {tf.__version__}: {MISSING}. They run "
        "through Python instead, which is correct, but several times slower.",
        stacklevel=2,
    )


def checked(tensor: Any, operation: str) -> tf.Tensor:
    """The argument as a tensor. Raises ValueError for a type that cannot be exchanged."""
    tensor = tf.convert_to_tensor(tensor)
    if tensor.dtype not in DTYPES:
        accepted = ", ".join(operations.DTYPES)
        raise ValueError(
            f"Tensor type {tensor.dtype.name} is not supported. {operation} takes {accepted}."
        )
    return tensor


def call(
    operation: str,
    inputs: Mapping[str, Any],
    attributes: Mapping[str, Any],
    name: str | None = None,
    results: int = 1,
) -> list[tf.Tensor]:
    """The outputs of an operation: `inputs` are tensors or lists of them, by the type's names.

    `name`: of the node in a graph; in eager mode, if given, ranks match tensors by it.
    """
    if compiled.is_compiling() and not compiled.missing():
        return compiled.call(operation, inputs, attributes, name)
    if MISSING:
        return python.call(operation, inputs, attributes, name)
    own = operation in COLLECTIVES
    if context.executing_eagerly():
        return _call_at_once(operation, inputs, attributes, name or "", results)
    # In a graph the node's own name is enough.
    given = {**attributes, "tensor_name": ""} if own else attributes
    *_, node, outputs = op_def_library._apply_op_helper(operation, name=name, **inputs, **given)
    if own and execute.must_record_gradient():
        pairs = [part for pair in given.items() for part in pair]
        execute.record_gradient(operation, list(node.inputs), tuple(pairs), outputs)
    return list(outputs)


def _call_at_once(
    operation: str,
    inputs: Mapping[str, Any],
    attributes: Mapping[str, Any],
    name: str,
    results: int,
) -> list[tf.Tensor]:
    own = operation in COLLECTIVES
    pairs = [part for pair in attributes.items() for part in pair]
    flat: list[tf.Tensor] = []
    if own:
        first = next(iter(inputs.values()))
        grouped = isinstance(first, list)
        types = [one.dtype.as_datatype_enum for one in first] if grouped else None
        pairs += ["T", types or first.dtype.as_datatype_enum, "tensor_name", name]
        for tensor in inputs.values():
            flat += tensor if grouped else [tensor]
    type_of_call = operation + "Eager" if own else operation
    outputs = execute.execute(type_of_call, results, flat, tuple(pairs), context.context())
    if own and execute.must_record_gradient():
        execute.record_gradient(operation, flat, tuple(pairs), outputs)
    return list(outputs)
