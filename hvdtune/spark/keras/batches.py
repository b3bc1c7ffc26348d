"""Columns in the form that Keras models need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hvdtune.keras.package import keras
from hvdtune.spark.common.plan import TrainingPlan, endless, rows_of


def inputs_of(model: Any, features: Sequence[np.ndarray[Any, Any]]) -> Any:
    """Feature columns in the shapes and types of the model's inputs: one, or a tuple."""
    wanted = list(model.inputs or [])
    if len(wanted) != len(features):
        raise ValueError(
            f"the model has {len(wanted)} input(s) for {len(features)} feature column(s): one is "
            "needed for each."
        )
    arrays = [
        _fitted(array, tuple(one.shape)).astype(_dtype(one), copy=False)
        for array, one in zip(features, wanted, strict=True)
    ]
    return _one_or_all(arrays)


def labels_of(
    model: Any, labels: Sequence[np.ndarray[Any, Any]], shapes: Sequence[Any] | None
) -> Any:
    """Label columns, one or a tuple: in `shapes`, or in the shapes of the outputs they fit.

    Floating-point labels get Keras' type, as if Keras made them from arrays: metrics compute with
    labels and outputs together.
    """
    outputs = list(model.outputs or [])
    if len(outputs) != len(labels):
        raise ValueError(
            f"the model has {len(outputs)} output(s) for {len(labels)} label column(s): one is "
            "needed for each."
        )
    real = keras.backend.floatx()
    arrays = [
        rows_of(array, shape) if shape is not None else _fitted(array, tuple(output.shape))
        for array, shape, output in zip(
            labels, shapes or [None] * len(labels), outputs, strict=True
        )
    ]
    return _one_or_all(
        [one.astype(real, copy=False) if one.dtype.kind == "f" else one for one in arrays]
    )


def _fitted(array: np.ndarray[Any, Any], shape: tuple[Any, ...]) -> np.ndarray[Any, Any]:
    """The array in a batch's shape if it has that many numbers, or one dimension is open."""
    rest = shape[1:]
    numbers = int(np.prod(array.shape[1:], dtype=np.int64))
    if None not in rest and numbers == int(np.prod(rest, dtype=np.int64)):
        return array.reshape(len(array), *rest)
    if len(rest) == array.ndim == 1 and None in rest:
        return array[:, None]
    return array


def _one_or_all(arrays: list[np.ndarray[Any, Any]]) -> Any:
    """Keras accepts tuples on every backend; TensorFlow accepts no lists from generators."""
    return arrays[0] if len(arrays) == 1 else tuple(arrays)


def _dtype(tensor: Any) -> str:
    dtype = tensor.dtype
    return str(dtype if isinstance(dtype, str) else dtype.name)


def batches(model: Any, plan: TrainingPlan, data: Any) -> Iterator[tuple[Any, ...]]:
    """Endless (inputs, labels) or (inputs, labels, weights) for `fit`."""
    for batch in endless(data):
        x = inputs_of(model, [np.asarray(batch[name]) for name in plan.feature_columns])
        y = labels_of(
            model, [np.asarray(batch[name]) for name in plan.label_columns], plan.label_shapes
        )
        if plan.sample_weight_col is None:
            yield x, y
        else:
            weights = np.asarray(batch[plan.sample_weight_col], np.float32)
            yield x, y, _one_or_all([weights] * len(plan.label_columns))
