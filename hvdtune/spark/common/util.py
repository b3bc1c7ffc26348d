"""DataFrames for the ranks: splits them, writes them to the store, describes its contents."""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import functions as F
from pyspark.sql import types as T

from hvdtune.spark.common.plan import row_shape
from hvdtune.spark.common.shards import row_groups
from hvdtune.spark.common.store import Store

Metadata: TypeAlias = "dict[str, dict[str, Any]]"


def to_list(value: Any, length: int) -> list[Any] | None:
    """A list of `length` items: the given list, or one item repeated. None stays None.

    Raises ValueError for a list of another length.
    """
    if value is None:
        return None
    if not isinstance(value, (list, tuple)):
        return [value] * length
    if len(value) == 1 and length > 1:
        return list(value) * length
    if len(value) != length:
        raise ValueError(f"{len(value)} items were given for {length}: {list(value)!r}")
    return list(value)


def is_databricks() -> bool:
    """Whether this program runs on Databricks."""
    return "DATABRICKS_RUNTIME_VERSION" in os.environ


# ---- validation ----


def check_validation(validation: Any, df: Any = None) -> None:
    """Raise ValueError unless `validation` is None, a fraction, or a numeric or boolean column."""
    if not isinstance(validation, str):
        if validation is not None and not 0 <= validation < 1:
            raise ValueError(
                f"validation={validation!r} is not accepted: give a fraction of the rows, "
                "0 ≤ fraction < 1, or the name of a column."
            )
        return
    if df is None:
        return
    _require_columns(df, [validation], "validation")
    kind = df.schema[validation].dataType
    if not isinstance(kind, (T.BooleanType, T.NumericType)):
        raise ValueError(
            f"validation={validation!r} names a column of type {kind.simpleString()}: it must be "
            "boolean (true for validation) or numeric (above 0 for validation)."
        )


def train_val_split(df: Any, validation: Any, seed: int | None = None) -> tuple[Any, Any, float]:
    """The rows for training, those for validation (or None), and roughly the latter's share."""
    check_validation(validation, df)
    if not validation:
        return df, None, 0.0
    if isinstance(validation, str):
        kind = df.schema[validation].dataType
        chosen = F.col(quoted(validation))
        chosen = chosen if isinstance(kind, T.BooleanType) else chosen > 0
        chosen = F.coalesce(chosen, F.lit(False))
        return df.filter(~chosen).drop(validation), df.filter(chosen).drop(validation), 0.5
    train, val = df.randomSplit([1.0 - validation, validation], seed=seed)
    return train, val, float(validation)


# ---- writing ----


@dataclass
class _Cache:
    """The DataFrames whose data are in stores."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    known: list[tuple[Any, Any, int]] = field(default_factory=list)  # DataFrame, options, number
    used: dict[str, set[int]] = field(default_factory=dict)  # numbers in use, by store
    following: dict[str, int] = field(default_factory=dict)


_cache = _Cache()


def clear_training_cache() -> None:
    """Forget which DataFrames' data are in stores; the data stay there until overwritten."""
    with _cache.lock:
        _cache.known.clear()
        _cache.following.clear()


@contextlib.contextmanager
def prepare_data(
    num_processes: int,
    store: Store,
    df: Any,
    label_columns: Sequence[str],
    feature_columns: Sequence[str],
    validation: Any = None,
    sample_weight_col: str | None = None,
    compress_sparse: bool = False,
    partitions_per_process: int = 10,
    verbose: int = 0,
    random_seed: int | None = None,
) -> Iterator[int]:
    """Write a DataFrame's columns to the store; yields the number of the data there.

    A DataFrame that this process has already written with the same options is not written again,
    as long as its files exist. Queries are compared, so changes in the files that a query reads go
    unnoticed: call `clear_training_cache`. Within the `with` block, the data are not overwritten.

    Raises ValueError for columns that are missing, and for a DataFrame without rows.
    """
    columns = list(dict.fromkeys([*feature_columns, *label_columns]))
    if sample_weight_col is not None and sample_weight_col not in columns:
        columns.append(sample_weight_col)
    _require_columns(df, columns, "feature_cols, label_cols and sample_weight_col")
    check_validation(validation, df)
    place = store.get_train_data_path()
    options = (
        *(place, store.get_val_data_path(), num_processes, tuple(columns), validation),
        *(compress_sparse, partitions_per_process, random_seed),
    )
    with _cache.lock:
        number = _find(df, options, store)
        if number is None:
            number = _next_number(place)
            train, val, share = train_val_split(df, validation, random_seed)
            if verbose:
                print(f"Writing the training data to {store.get_train_data_path(number)}")
            most = max(num_processes, partitions_per_process * num_processes)
            chosen = [_stored(df.schema, name, compress_sparse) for name in columns]
            for part, path, fraction in (
                (train, store.get_train_data_path(number), 1.0 - share),
                (val, store.get_val_data_path(number), share),
            ):
                if part is not None:
                    files = max(num_processes, math.ceil(most * fraction))
                    written = part.select(*chosen).coalesce(files).write.mode("overwrite")
                    written.parquet(store.get_full_path(path))
            _cache.known.append((df, options, number))
        _cache.used.setdefault(place, set()).add(number)
    try:
        yield number
    finally:
        with _cache.lock:
            _cache.used[place].discard(number)


def _find(df: Any, options: Any, store: Store) -> int | None:
    for known, with_options, number in _cache.known:
        if with_options != options or type(known) is not type(df):
            continue
        same = known is df or (
            known.sparkSession is df.sparkSession
            and known.columns == df.columns
            and known.sameSemantics(df)
        )
        if same and store.is_parquet_dataset(store.get_train_data_path(number)):
            return number
    return None


def _next_number(place: str) -> int:
    """A number whose data nobody uses; each new DataFrame gets the next one."""
    number = _cache.following.get(place, 0)
    while number in _cache.used.get(place, ()):
        number += 1
    _cache.following[place] = number + 1
    _cache.known[:] = [one for one in _cache.known if (one[1][0], one[2]) != (place, number)]
    return number


def _stored(schema: Any, name: str, compress_sparse: bool) -> Any:
    column = F.col(quoted(name))
    if isinstance(schema[name].dataType, VectorUDT) and not compress_sparse:
        column = vector_to_array(column)
    return column.alias(name)


def quoted(name: str) -> str:
    """A column's name quoted for Spark SQL, so that dots are part of it."""
    return "`" + name.replace("`", "``") + "`"


def _require_columns(df: Any, names: Sequence[str], what: str) -> None:
    missing = [name for name in names if name not in df.columns]
    if missing:
        raise ValueError(
            f"{what}: the DataFrame has no column {', '.join(map(repr, missing))}; it has "
            f"{', '.join(df.columns)}."
        )


# ---- contents of the store ----


def get_metadata(schema: Any, columns: Sequence[str]) -> Metadata:
    """For each column of a DataFrame's schema: `spark_data_type` (its name in Spark, such as
    `double` or `vector`), and `shape`: 1 for scalars, and None if it depends on the data."""
    found = {}
    for name in columns:
        kind = schema[name].dataType
        is_vector = isinstance(kind, VectorUDT)
        scalar = not is_vector and not isinstance(kind, T.ArrayType)
        found[name] = {
            "spark_data_type": "vector" if is_vector else kind.simpleString(),
            "shape": 1 if scalar else None,
        }
    return found


_SPARK_NAMES = {
    "int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint", "bool": "boolean",
}  # fmt: skip


def _spark_name(kind: Any) -> str:
    """Spark's name of an Arrow type, if it is a scalar; else Arrow's."""
    return _SPARK_NAMES.get(str(kind), str(kind))


def get_simple_meta_from_parquet(
    store: Store,
    label_columns: Sequence[str],
    feature_columns: Sequence[str],
    sample_weight_col: str | None = None,
    dataset_idx: int | None = None,
    has_validation: bool = True,
) -> tuple[int, int, Metadata, float]:
    """The store's contents: training rows, validation rows, the columns, and bytes per row.

    For each column: `spark_data_type`, Spark's name, and `shape`, the numbers per row. It reads
    only footers, and one row of sparse vectors. has_validation: whether to look for validation
    rows; if not, there are 0. Raises ValueError if there are no training data, or a column is
    missing.
    """
    wanted = list(dict.fromkeys([*feature_columns, *label_columns]))
    if sample_weight_col is not None and sample_weight_col not in wanted:
        wanted.append(sample_weight_col)
    path = store.get_train_data_path(dataset_idx)
    if not store.is_parquet_dataset(path):
        raise ValueError(f"{path} has no Parquet files: write training data there, or call fit().")
    options = getattr(store, "storage_options", None)
    groups = row_groups(path, options)
    rows = sum(group.rows for group in groups)
    if not rows:
        raise ValueError(f"the training data have no rows ({path}).")
    schema = store.get_parquet_dataset(path).schema
    missing = [name for name in wanted if name not in schema.names]
    if missing:
        raise ValueError(
            f"{path} has no column {', '.join(map(repr, missing))}; it has "
            f"{', '.join(schema.names)}."
        )
    spark_types = _spark_types(schema)
    metadata = {
        name: {
            "spark_data_type": spark_types.get(name, _spark_name(schema.field(name).type)),
            "shape": _numbers_of_row(groups[0], schema.field(name)),
        }
        for name in wanted
    }
    size = sum(_bytes(group, wanted) for group in groups) / rows
    val_path = store.get_val_data_path(dataset_idx)
    val_rows = 0
    if has_validation and store.is_parquet_dataset(val_path):  # which may wait for the folder
        val_rows = sum(group.rows for group in row_groups(val_path, options))
    return rows, val_rows, metadata, size


def _spark_types(schema: Any) -> dict[str, str]:
    """Spark's names for the columns' types, from the schema that Spark writes into each file."""
    text = (schema.metadata or {}).get(b"org.apache.spark.sql.parquet.row.metadata")
    if text is None:
        return {}
    found = T.StructType.fromJson(json.loads(text))
    return {
        one.name: "vector" if isinstance(one.dataType, VectorUDT) else one.dataType.simpleString()
        for one in found
    }


def _numbers_of_row(group: Any, field: Any) -> int:
    """How many numbers a column has per row, from the first row group's footer."""
    import pyarrow.types as kinds

    if kinds.is_struct(field.type):
        subset = group.fragment.subset(row_group_ids=[group.row_group])
        first = subset.head(1, columns=[field.name]).column(0)[0].as_py()
        return int(first["size"] if first["type"] == 0 else len(first["values"]))
    if kinds.is_nested(field.type):
        footer = group.fragment.metadata.row_group(group.row_group)
        values = [
            footer.column(place).num_values
            for place in range(footer.num_columns)
            if footer.column(place).path_in_schema.split(".")[0] == field.name
        ]
        return int(sum(values) // group.rows)
    return 1


def _bytes(group: Any, columns: Sequence[str]) -> int:
    footer = group.fragment.metadata.row_group(group.row_group)
    return sum(
        footer.column(place).total_uncompressed_size
        for place in range(footer.num_columns)
        if footer.column(place).path_in_schema.split(".")[0] in columns
    )


# ---- shapes ----


def check_shape_compatibility(
    metadata: Metadata,
    feature_columns: Sequence[str],
    label_columns: Sequence[str],
    input_shapes: Sequence[Sequence[int]] | None = None,
    output_shapes: Sequence[Sequence[int]] | None = None,
    label_shapes: Sequence[Sequence[int]] | None = None,
) -> None:
    """Raise ValueError unless columns have as many numbers per row as the model's shapes say.

    Shapes are those of a batch, whose first dimension may be any, or of a row. Other dimensions may
    also be -1 or None.
    """
    for what, columns, shapes in (
        ("input_shapes", feature_columns, input_shapes),
        ("the model's outputs", label_columns, output_shapes if label_shapes is None else None),
        ("label_shapes", label_columns, label_shapes),
    ):
        if shapes is None:
            continue
        if len(shapes) != len(columns):
            raise ValueError(
                f"{what}: {len(shapes)} shape(s) for {len(columns)} column(s) "
                f"({', '.join(columns)}); one is needed for each."
            )
        for column, shape in zip(columns, shapes, strict=True):
            numbers = metadata[column]["shape"]
            row = row_shape(shape, numbers)
            expected = abs(math.prod(row))
            fits = numbers % max(1, expected) == 0 if -1 in row else numbers == expected
            # One number per row may be a class, for as many outputs as there are classes.
            is_class = shapes is output_shapes and numbers == 1
            if not fits and not is_class:
                raise ValueError(
                    f"column {column!r} has {numbers} number(s) per row, but {what} "
                    f"{list(shape)} has {expected}."
                )
