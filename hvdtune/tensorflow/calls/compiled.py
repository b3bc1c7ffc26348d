"""Horovod's operations in functions that XLA compiles for the CPU: custom calls of XLA.

While it traces a function, TensorFlow says whether XLA will compile it (`jit_compile=True`). XLA
may run independent calls in any order and in parallel, but ours wait for the other ranks. So all
our calls read and write the same variable, and run one after the other in program order, also in
branches, loops and inner functions. Errors are TensorFlow's InternalError, with our text.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import control_flow_util

from hvdtune.core import operations, process_sets
from hvdtune.core.libraries import tensorflow_library
from hvdtune.core.operations import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCESCATTER
from hvdtune.core.reduce_ops import Sum
from hvdtune.core.world import rank, size
from hvdtune.tensorflow.calls.python import Node

_KINDS = {
    "Allreduce": ALLREDUCE,
    "Allgather": ALLGATHER,
    "Broadcast": BROADCAST,
    "Alltoall": ALLTOALL,
    "Reducescatter": REDUCESCATTER,
}
#: As in native/faces/places.h.
_PLACES = ("Size", "ProcessSetIncluded", "LocalSize", "Rank", "LocalRank")


class _Forced(threading.local):
    """Whether a compiled call's gradient is being made: it is traced in a graph of its own."""

    now = False


_forced = _Forced()


def is_compiling() -> bool:
    """Whether XLA will compile what is being traced. Never in eager mode."""
    if tf.executing_eagerly():
        return False
    graph = tf.compat.v1.get_default_graph()
    return _forced.now or bool(control_flow_util.GraphOrParentsInXlaContext(graph))


def missing() -> str:
    """Why XLA cannot compile the operations here; empty if it can."""
    if not tf.compat.v1.executing_eagerly_outside_functions():
        return "in graphs of sessions, XLA has no operation for reducing over ranks"
    return _missing_in_process()


@functools.cache
def _missing_in_process() -> str:
    if tf.config.list_logical_devices("GPU"):
        return "on GPUs, XLA has no operation for reducing over ranks"
    lacks = tensorflow_library.register_xla_calls()
    return lacks and f"this TensorFlow's XLA cannot call hvdtune: {lacks}"


def call(
    operation: str, inputs: Mapping[str, Any], attributes: Mapping[str, Any], name: str | None
) -> list[tf.Tensor]:
    """As `operations.call`, in functions that XLA compiles.

    Raises ValueError for tensors whose shape is not known while the function is traced, and for an
    alltoall with unequal parts; NotImplementedError for a join.
    """
    kind = operation.removeprefix("Horovod")
    if kind in _PLACES:
        text = f"{_PLACES.index(kind)} {attributes.get('process_set_id', 0)} "
        return _custom_call("hvdtune_place", [], text, [tf.int32], [[]])
    grouped = kind.startswith("Grouped")
    kind = kind.removeprefix("Grouped")
    if kind not in _KINDS:
        raise NotImplementedError(f"{kind.lower()} is not possible in what XLA compiles.")
    first = next(iter(inputs.values()))
    tensors: list[tf.Tensor] = list(first) if grouped else [first]
    for tensor in tensors:
        if not tensor.shape.is_fully_defined():
            raise ValueError(
                f"{kind.lower()} of a tensor of shape {tensor.shape} in what XLA compiles: its "
                "shape must be known when the function is traced (input_signature, set_shape)."
            )
    if kind == "Alltoall":
        _check_equal_parts(inputs["splits"], tensors[0].shape[0])
    number = attributes["process_set_id"]
    members, place = _place_in(number) if _KINDS[kind] not in (ALLREDUCE, BROADCAST) else (0, 0)
    results = [_result_shape(kind, tensor.shape, members, place) for tensor in tensors]
    op, root = attributes.get("reduce_op", Sum), attributes.get("root_rank", 0)
    words = [_KINDS[kind], op, root, number, int(grouped), members, place, 1]
    words += [repr(attributes.get(f"{when}scale_factor", 1.0)) for when in ("pre", "post")]
    words.append(len(tensors))
    for shapes in ([tensor.shape.as_list() for tensor in tensors], results):
        for tensor, shape in zip(tensors, shapes, strict=True):
            words += [operations.DTYPES[tensor.dtype.name], len(shape), *shape]
    wire_name = _wire_name(name or operation, attributes["ignore_name_scope"])
    text = " ".join(map(str, [*words, wire_name]))

    @tf.custom_gradient
    def exchange(*given: tf.Tensor) -> Any:
        outputs = _in_turn(given, text, results)
        if kind == "Alltoall":
            outputs.append(tf.fill([members], tensors[0].shape[0] // members))
        node = Node(given, outputs, attributes)

        def gradient(*upstream: tf.Tensor) -> Any:
            with _compiling():
                return node.gradient(operation, upstream)

        return outputs, gradient

    return list(exchange(*tensors))


def end_step(owner: int) -> None:
    """End a training step of `owner`, after the collectives that were traced before this."""
    turn = _turn()
    text = f"{owner} "
    (after,) = _custom_call("hvdtune_step_end", [turn.read_value()], text, [tf.int32], [[]])
    turn.assign(after, read_value=False)


def _in_turn(
    tensors: Sequence[tf.Tensor], text: str, results: Sequence[Sequence[int]]
) -> list[tf.Tensor]:
    """The results of a collective, which runs after those that were traced before it."""
    turn = _turn()
    *outputs, after = _custom_call(
        "hvdtune_collective",
        [*tensors, turn.read_value()],
        text,
        [*(tensor.dtype for tensor in tensors), tf.int32],
        [*results, []],
    )
    turn.assign(after, read_value=False)
    return outputs


@functools.cache
def _turn() -> tf.Variable:
    """The variable that all compiled collectives of this process read and write."""
    with tf.init_scope(), tf.device("/cpu:0"):
        return tf.Variable(0, trainable=False, dtype=tf.int32, name="hvdtune_turn")


def _custom_call(
    target: str,
    operands: list[tf.Tensor],
    text: str,
    dtypes: list[tf.DType],
    shapes: list[Sequence[int]],
) -> list[tf.Tensor]:
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    outputs = gen_xla_ops.xla_custom_call_v2(
        operands,
        call_target_name=target,
        backend_config=text,
        has_side_effect=True,
        result_dtypes=dtypes,
        result_shapes=shapes,
    )
    return list(outputs)


@contextmanager
def _compiling() -> Iterator[None]:
    before, _forced.now = _forced.now, True
    try:
        yield
    finally:
        _forced.now = before


def _place_in(process_set: int) -> tuple[int, int]:
    """(members of a set, this rank's place); place 0 if the engine will refuse the call."""
    if process_set == 0:
        return size(), rank()
    members = process_sets.registered(process_set) or []
    return len(members), members.index(rank()) if rank() in members else 0


def _result_shape(kind: str, shape: tf.TensorShape, members: int, place: int) -> list[int]:
    lengths: list[int] = shape.as_list()
    if kind in ("Allreduce", "Broadcast"):
        return lengths
    if not lengths:
        raise ValueError(
            f"{kind.lower()}: the tensor must have at least one dimension: its rows are what is "
            "exchanged."
        )
    if kind == "Allgather":
        lengths[0] *= members
    elif kind == "Reducescatter":
        lengths[0] = lengths[0] // members + (place < lengths[0] % members)
    return lengths


def _check_equal_parts(splits: tf.Tensor, rows: int) -> None:
    known = tf.get_static_value(splits)
    if known is not None and (len(known) == 0 or (len({*known}) == 1 and sum(known) == rows)):
        return
    raise ValueError(
        "alltoall in what XLA compiles sends every rank equally many rows: omit `splits`, or give "
        "equal numbers that are known when the function is traced."
    )


def _wire_name(name: str, ignore_name_scope: bool) -> str:
    """The name by which ranks match the call; no operation outside XLA has it."""
    graph = tf.compat.v1.get_default_graph()
    unique = graph.unique_name(name)
    if ignore_name_scope:
        return f"xla.{unique.rpartition('/')[2]}"
    while isinstance(outer := getattr(graph, "outer_graph", None), FuncGraph) and (
        control_flow_util.GraphOrParentsInXlaContext(outer)
    ):
        graph = outer  # TensorFlow numbers the names of branches and loops
    function = re.sub(r"(_\d+)+$|\W", "", getattr(graph, "name", ""))
    return f"xla.{function}/{unique}" if function else f"xla.{unique}"
