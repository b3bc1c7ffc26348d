"""Predictions for a DataFrame: batches through Arrow; each task loads the model once."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import functions as F
from pyspark.sql import types as T

from hvdtune.spark.common.columns import from_array
from hvdtune.spark.common.util import quoted

# From a batch of features to one array for each output, of shape (rows, …).
Predict: TypeAlias = "Callable[[list[np.ndarray[Any, Any]]], list[np.ndarray[Any, Any]]]"

_WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_ARROW = {
    T.ByteType: pa.int8(),
    T.ShortType: pa.int16(),
    T.IntegerType: pa.int32(),
    T.LongType: pa.int64(),
    T.FloatType: pa.float32(),
    T.DoubleType: pa.float64(),
    T.BooleanType: pa.bool_(),
}
_SCALARS = tuple(_ARROW)


def with_predictions(
    df: Any,
    load: Callable[[], Predict],
    features: Sequence[str],
    outputs: Sequence[tuple[str, Any, int | None]],
    batch_size: int,
) -> Any:
    """The DataFrame with a column for each output appended.

    load: makes the predictor in each task. outputs: for each, the new column's name, the type of
    its label (a Spark DataType or None), and how many numbers a row has; None: predict the
    DataFrame's first row to find out. If the label is a scalar and the output one number, the
    column has the label's type (whole numbers are rounded); all other columns are vectors.

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
        sizes = _sizes(df, load, inputs, features, len(outputs))
    kinds = [
        kind if size == 1 and isinstance(kind, _SCALARS) else None
        for (_, kind, _), size in zip(outputs, sizes, strict=True)
    ]
    answer = _udf(load, kinds, list(features), batch_size)(F.struct(*inputs))
    new = []
    for place, ((name, _, _), kind) in enumerate(zip(outputs, kinds, strict=True)):
        column = answer[f"o{place}"]
        new.append((column if kind is not None else array_to_vector(column)).alias(name))
    return df.select("*", *new)


def _udf(
    load: Callable[[], Predict], kinds: Sequence[Any], features: Sequence[str], batch_size: int
) -> Any:
    """From a struct of features to a struct of outputs: scalars of these kinds; None: arrays."""
    schema = T.StructType(
        [
            T.StructField(f"o{place}", kind or T.ArrayType(T.DoubleType(), False))
            for place, kind in enumerate(kinds)
        ]
    )

    def arrow_predictions(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        predict = load()
        for batch in batches:
            columns = [
                from_array(part, name) for part, name in zip(batch.flatten(), features, strict=True)
            ]
            yield _to_arrow(_predicted(predict, columns, batch_size), kinds)

    def pandas_predictions(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for answer in arrow_predictions(_to_struct(frame) for frame in frames):
            yield pd.DataFrame(
                {
                    name: column.to_pandas() if kind is not None else column.to_numpy(False)
                    for name, column, kind in zip(
                        schema.names, answer.flatten(), kinds, strict=True
                    )
                }
            )

    arrow_udf = getattr(F, "arrow_udf", None)  # from Spark 4.1 on
    if arrow_udf is not None:
        arrow_predictions.__annotations__ = {
            "batches": Iterator[pa.Array],
            "return": Iterator[pa.Array],
        }
        return arrow_udf(arrow_predictions, schema)
    pandas_predictions.__annotations__ = {
        "frames": Iterator[pd.DataFrame],
        "return": Iterator[pd.DataFrame],
    }
    return F.pandas_udf(pandas_predictions, schema)


def call_with_environment(
    variables: Mapping[str, str], module: str, name: str, args: Sequence[Any]
) -> Any:
    """A function's result; its module is imported only after the variables are set."""
    os.environ.update(variables)
    return getattr(importlib.import_module(module), name)(*args)


def _as_numbers(schema: Any, name: str) -> Any:
    column = F.col(quoted(name))
    if isinstance(schema[name].dataType, VectorUDT):
        column = vector_to_array(column)
    return column.alias(name)


def _to_struct(frame: pd.DataFrame) -> pa.Array:
    return pa.StructArray.from_arrays(
        # Via NumPy: pandas would turn NaN into a missing value, but the model must see it.
        [pa.array(frame.iloc[:, place].to_numpy()) for place in range(frame.shape[1])],
        names=list(map(str, frame.columns)),
    )


def _predicted(
    predict: Predict, features: list[np.ndarray[Any, Any]], batch_size: int
) -> list[np.ndarray[Any, Any]]:
    parts = [
        predict([array[start : start + batch_size] for array in features])
        for start in range(0, len(features[0]), batch_size)
    ]
    return [np.concatenate(one) for one in zip(*parts, strict=True)]


def _to_arrow(outputs: Sequence[np.ndarray[Any, Any]], kinds: Sequence[Any]) -> pa.Array:
    return pa.StructArray.from_arrays(
        [
            _column(one.reshape(len(one), -1), kind)
            for one, kind in zip(outputs, kinds, strict=True)
        ],
        names=[f"o{place}" for place in range(len(outputs))],
    )


def _column(rows: np.ndarray[Any, Any], kind: Any) -> pa.Array:
    """Outputs of shape (rows, numbers): scalars of a kind, or arrays of numbers if that is None."""
    if kind is None:
        offsets = np.arange(len(rows) + 1, dtype=np.int32) * rows.shape[1]
        element = pa.field("element", pa.float64(), nullable=False)
        flat = pa.array(rows.reshape(-1).astype(np.float64, copy=False))
        return pa.ListArray.from_arrays(pa.array(offsets), flat, type=pa.list_(element))
    if isinstance(kind, (*_WHOLE, T.BooleanType)):
        # Anything that is not a number becomes null.
        whole = pa.array(np.rint(rows[:, 0].astype(np.float64)), from_pandas=True)
        return whole.cast(_ARROW[type(kind)])
    return pa.array(rows[:, 0]).cast(_ARROW[type(kind)])


def _sizes(
    df: Any, load: Callable[[], Predict], inputs: list[Any], features: Sequence[str], count: int
) -> list[int]:
    first = df.select(*inputs).limit(1).toPandas()
    if first.empty:
        return [1] * count
    parts = _to_struct(first).flatten()
    columns = [from_array(part, name) for part, name in zip(parts, features, strict=True)]
    return [int(one[0].size) for one in load()(columns)]
