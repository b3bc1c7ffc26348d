"""The TensorFlow face: ``import hvdtune.tensorflow``, in eager mode."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from conformance import program
from conformance.face import DIFFERENTIABLE, Face, family

import hvdtune.tensorflow


class TensorFlowFace(Face):
    name = "tensorflow"
    hvd = hvdtune.tensorflow
    kind = tf.Tensor
    narrow = True
    forms = DIFFERENTIABLE
    autodiff = True
    # What a call refuses by itself is tested with TensorFlow's operations.
    of_mistakes = ("disagreements",)

    def tensor(self, values: np.ndarray, dtype: str) -> tf.Tensor:
        return tf.cast(tf.constant(values), tf.dtypes.as_dtype(dtype))

    def values(self, tensor: tf.Tensor) -> np.ndarray:
        return np.array(tf.cast(tensor, tf.float32) if tensor.dtype is tf.bfloat16 else tensor)

    def dtype(self, tensor: tf.Tensor) -> str:
        return tensor.dtype.name

    def call(self, form: str, tensors: Any, **arguments: Any) -> Any:
        """Other faces put the operation before the name that others know; messages have it."""
        if "name" in arguments:
            arguments["name"] = f"{family(form)}.{arguments['name']}"
        return super().call(form, tensors, **arguments)

    def container(self, form: str) -> type:
        return list

    def raised(self, cause: str, kind: str) -> str:
        """What only the operation finds out is TensorFlow's error."""
        what = cause.rpartition(" ")[0] or cause
        if cause in ("disagreement", "joined", "integers") or (
            what in self.forms and cause.endswith("down")
        ):
            return "FailedPreconditionError"
        if cause == "root outside" or what in self.forms:
            return "InvalidArgumentError"
        return kind

    def words(self, text: str) -> str:
        return re.sub(r"^\{\{.*?\}\} | \[Op:\w+\]$", "", text)

    def pull_back(
        self,
        call: Callable[[list[Any]], Sequence[Any]],
        inputs: Sequence[Any],
        weights: Callable[[int, tuple[int, ...]], np.ndarray],
    ) -> list[np.ndarray]:
        with tf.GradientTape() as tape:
            for tensor in inputs:
                tape.watch(tensor)
            outputs = list(call(list(inputs)))
        given = [
            tf.cast(tf.constant(weights(i, tuple(out.shape))), out.dtype)
            for i, out in enumerate(outputs)
        ]
        return [np.array(x) for x in tape.gradient(outputs, list(inputs), output_gradients=given)]


FACE = TensorFlowFace()


def run(blocks: tuple[str, ...], thorough: bool = False) -> Any:
    """The rank program."""
    return program.run(FACE, blocks, thorough)
