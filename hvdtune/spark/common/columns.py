"""Columns of Parquet files as NumPy arrays.

Scalars become arrays of shape (rows,), lists of one length (rows, length), lists of lists
(rows, length, length), Spark's vectors (rows, size). Texts, dates and the like stay arrays of
Python objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Columns: TypeAlias = "dict[str, np.ndarray[Any, Any]]"


def from_table(table: Any, sizes: Mapping[str, int] | None = None) -> Columns:
    """All columns of an Arrow table.

    sizes: lengths of the vectors in columns that Spark has written as vectors (with indices); by
    default each row says its length. Raises ValueError naming the column if it has missing values,
    or rows of different lengths.
    """
    known = sizes or {}
    return {
        name: from_array(table.column(name).combine_chunks(), name, known.get(name))
        for name in table.column_names
    }


def from_array(array: Any, name: str, size: int | None = None) -> np.ndarray[Any, Any]:
    """One column, of an Arrow table or batch; see `from_table`. `name` is for messages."""
    if isinstance(array, pa.ChunkedArray):  # in several chunks if it is too large for one
        return np.concatenate([from_array(chunk, name, size) for chunk in array.chunks])
    if array.null_count:
        raise ValueError(
            f"column {name!r} has {array.null_count} missing value(s) in {len(array)} rows: "
            "fill them or drop these rows first."
        )
    kind = array.type
    if pa.types.is_struct(kind):
        return _from_vectors(array, name, size)
    if pa.types.is_fixed_size_list(kind):
        inner = from_array(array.flatten(), name)
        return inner.reshape(len(array), kind.list_size, *inner.shape[1:])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = from_array(array.flatten(), name)
        length = _one_length(array, name)
        return inner.reshape(len(array), length, *inner.shape[1:])
    if pa.types.is_decimal(kind):
        array = array.cast(pa.float64())
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _one_length(array: Any, name: str) -> int:
    if len(array) == 0:
        return 0
    found = pc.min_max(pc.list_value_length(array)).as_py()
    if found["min"] != found["max"]:
        raise ValueError(
            f"column {name!r} has arrays of {found['min']} to {found['max']} values: all rows "
            "must have the same number."
        )
    return int(found["min"])


def _from_vectors(array: Any, name: str, size: int | None) -> np.ndarray[Any, Any]:
    """Spark's vectors: (type 0 sparse or 1 dense, size, indices, values); returns them as dense."""
    try:
        kinds, sizes, indices, values = (
            array.field(part) for part in ("type", "size", "indices", "values")
        )
    except KeyError as error:
        raise ValueError(
            f"column {name!r} is a struct, not a vector: give its fields as columns."
        ) from error
    sparse = np.asarray(kinds.to_numpy(zero_copy_only=False)) == 0
    lengths = np.asarray(pc.list_value_length(values).to_numpy(zero_copy_only=False), np.int64)
    declared = np.asarray(sizes.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)
    widths = np.where(sparse, declared, lengths)
    width = size if size is not None else int(widths[0]) if len(widths) else 0
    if (widths != width).any():
        raise ValueError(
            f"column {name!r} has vectors of {widths.min()} to {widths.max()} values: all rows "
            "must have the same number."
        )
    numbers = np.asarray(values.flatten().to_numpy(zero_copy_only=False))
    if not sparse.any():
        return numbers.reshape(len(array), width)
    dense = np.zeros((len(array), width))
    rows = np.repeat(np.arange(len(array)), lengths)
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    places = np.arange(len(rows)) - starts  # within the row: already right for dense ones
    flat = np.asarray(indices.fill_null([]).flatten().to_numpy(zero_copy_only=False))
    places[sparse[rows]] = flat
    dense[rows, places] = numbers
    return dense


def transformed(
    columns: Columns,
    function: Callable[[Any], Any] | None,
    edited: Sequence[Sequence[Any]] | None = None,
    removed: Sequence[str] | None = None,
) -> Columns:
    """The columns after a user's function of a pandas DataFrame, which returns one.

    edited: (name, NumPy dtype, shape of a row, whether values may be missing) of columns that the
    function makes or changes. removed: names of columns to drop. Raises ValueError if the function
    returns anything else, or a column does not have its shape.
    """
    if function is not None:
        import pandas as pd  # a slow import, only if it is needed

        frame = pd.DataFrame(
            {name: list(c) if c.ndim > 1 else c for name, c in columns.items()}, copy=False
        )
        frame = function(frame)
        if not isinstance(frame, pd.DataFrame):
            raise ValueError(
                f"transformation_fn must return a pandas DataFrame, not {type(frame).__name__}."
            )
        columns = {str(name): from_series(frame[name], str(name)) for name in frame.columns}
    for name, dtype, shape, *_ in edited or ():
        if name not in columns:
            raise ValueError(
                f"transformation_edit_fields names {name!r}, but transformation_fn gave "
                f"{', '.join(columns)}."
            )
        array = columns[name].astype(dtype, copy=False)
        columns[name] = array.reshape(len(array), *shape) if shape else array
    return {name: array for name, array in columns.items() if name not in set(removed or ())}


def from_series(series: Any, name: str) -> np.ndarray[Any, Any]:
    """A pandas column, whose values may be arrays of one shape. Raises ValueError if they differ.

    `name` is for the message.
    """
    array = series.to_numpy()
    if array.dtype != object or not len(array) or not isinstance(array[0], (np.ndarray, list)):
        return np.asarray(array)
    try:
        return np.stack(array)
    except ValueError as error:
        raise ValueError(f"column {name!r} has arrays of different shapes: {error}") from error


def size_of_row(columns: Columns) -> int:
    """Bytes of a row."""
    return sum(array.nbytes // max(1, len(array)) for array in columns.values())
