"""Predictions for a DataFrame: batches through Arrow, with the model loaded once a task."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import functions as F
from pyspark.sql import types as T

from hvdtune.spark.common.columns import Columns, from_series
from hvdtune.spark.common.util import quoted

# From a batch of features to one array for each output, of shape (rows, …).
Predict: TypeAlias = "Callable[[list[np.ndarray[Any, Any]]], list[np.ndarray[Any, Any]]]"

_WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_SCALARS = (*_WHOLE, T.FloatType, T.DoubleType, T.BooleanType)


def with_predictions(
    df: Any,
    load: Callable[[], Predict],
    features: Sequence[str],
    outputs: Sequence[tuple[str, Any, int | None]],
    batch_size: int,
) -> Any:
    """The DataFrame with a column for each output, at its end.

    load: makes what predicts, in each task. outputs: of each, the new column's name, the type of
    the label it stands for (a Spark DataType or None), and how many numbers a row has; None asks
    the model with the DataFrame's first row. A label that is a scalar gives a column of its type
    (whole numbers are rounded), if the output is one number; all others are vectors.

    Raises ValueError for columns that are missing, and for names that exist already.
    """
    missing = [name for name in features if name not in df.columns]
    if missing:
        raise ValueError(
            f"transform(): the DataFrame has no column {', '.join(map(repr, missing))}, which the "
            f"model needs; it has {', '.join(df.columns)}."
        )
    for name, _, _ in outputs:
        if name in df.columns:
            raise ValueError(
                f"transform(): the DataFrame has a column {name!r} already; choose other names "
                "with setOutputCols, or drop it."
            )
    inputs = [_as_numbers(df.schema, name) for name in features]
    sizes = [size for _, _, size in outputs if size is not None]
    if len(sizes) < len(outputs):
        sizes = _sizes(df, load, inputs, len(outputs))
    kinds = [
        kind if size == 1 and isinstance(kind, _SCALARS) else None
        for (_, kind, _), size in zip(outputs, sizes, strict=True)
    ]
    schema = T.StructType(
        [
            T.StructField(f"o{place}", kind or T.ArrayType(T.DoubleType(), False))
            for place, kind in enumerate(kinds)
        ]
    )
    whole = [isinstance(kind, (*_WHOLE, T.BooleanType)) for kind in kinds]
    scalar = [kind is not None for kind in kinds]

    def predictions(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        predict = load()
        for frame in frames:
            rows = _predicted(predict, _arrays(frame), batch_size)
            yield pd.DataFrame(
                {
                    f"o{place}": _column(array, scalar[place], whole[place])
                    for place, array in enumerate(rows)
                }
            )

    predictions.__annotations__ = {
        "frames": Iterator[pd.DataFrame],
        "return": Iterator[pd.DataFrame],
    }
    answer = F.pandas_udf(predictions, schema)(F.struct(*inputs))
    new = []
    for place, (name, _, _) in enumerate(outputs):
        column = answer[f"o{place}"]
        new.append((column if scalar[place] else array_to_vector(column)).alias(name))
    return df.select("*", *new)


def call_with_environment(
    variables: Mapping[str, str], module: str, name: str, args: Sequence[Any]
) -> Any:
    """A function's result; its module is imported after the variables are set."""
    os.environ.update(variables)
    return getattr(importlib.import_module(module), name)(*args)


def _as_numbers(schema: Any, name: str) -> Any:
    column = F.col(quoted(name))
    if isinstance(schema[name].dataType, VectorUDT):
        column = vector_to_array(column)
    return column.alias(name)


def _arrays(frame: pd.DataFrame) -> Columns:
    arrays: Columns = {}
    for place, name in enumerate(frame.columns):
        array = from_series(frame.iloc[:, place], str(name))
        if array.dtype == object and any(value is None for value in array.flat):
            raise ValueError(f"transform(): column {name!r} has missing values: fill them first.")
        arrays[f"{place}"] = array
    return arrays


def _predicted(predict: Predict, columns: Columns, batch_size: int) -> list[np.ndarray[Any, Any]]:
    features = list(columns.values())
    parts = [
        predict([array[start : start + batch_size] for array in features])
        for start in range(0, len(features[0]), batch_size)
    ]
    return [np.concatenate(one) for one in zip(*parts, strict=True)]


def _column(array: np.ndarray[Any, Any], scalar: bool, whole: bool) -> Any:
    rows = array.reshape(len(array), -1)
    if scalar:
        return np.rint(rows[:, 0]) if whole else rows[:, 0]
    return list(rows.astype(np.float64))


def _sizes(df: Any, load: Callable[[], Predict], inputs: list[Any], count: int) -> list[int]:
    first = df.select(*inputs).limit(1).toPandas()
    if first.empty:
        return [1] * count
    outputs = load()(list(_arrays(first).values()))
    return [int(one[0].size) for one in outputs]
