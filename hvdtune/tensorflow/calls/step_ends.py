"""Ends of training steps, for recordings: code that reduces gradients reports them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph

from hvdtune.core.observation import marks
from hvdtune.tensorflow.calls import compiled, operations


def tell(owner: Any, gradients: Iterable[Any]) -> None:
    """A step of ``owner`` ends once its ``gradients`` (some may be None) are computed.

    In a function, a node reports it whenever the function runs, also several times in one run.
    In graphs of sessions, nothing reports it. Only one owner's steps count, see
    ``marks.step_ended``.
    """
    if tf.executing_eagerly():
        marks.step_ended(owner)
        return
    if operations.MISSING or not isinstance(tf.compat.v1.get_default_graph(), FuncGraph):
        return
    if compiled.is_compiling():
        if not compiled.missing():
            compiled.end_step(id(owner))
        return
    present = [gradient for gradient in gradients if gradient is not None]
    with tf.control_dependencies(tf.nest.flatten(present, expand_composites=True)):
        operations.call(operations.END_STEP, {}, {"owner": id(owner)}, results=0)
