"""Reads a rank's share of an estimator's data: the class that users may replace."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from hvdtune.spark.common.columns import Columns, transformed
from hvdtune.spark.common.shards import ShardReader


class DataModule(ABC):
    """Training and validation data of one rank; a context manager.

    An estimator makes one on each rank, of the class `data_module`, with these arguments:

    train_dir, val_dir: folders of Parquet files (paths or URLs). num_train_epochs: the number of
    epochs. has_val: whether there are validation data. train_batch_size, val_batch_size: rows.
    shuffle: whether training data are shuffled. transform_fn: from a pandas DataFrame to another,
    or None. inmemory_cache_all: keep all rows in memory. cur_shard, shard_count: this rank and the
    number of ranks. schema_fields: the columns to read. storage_options: fsspec's.
    steps_per_epoch_train, steps_per_epoch_val: batches. verbose: whether to print. kwargs: the
    estimator's other values (see `ParquetDataModule`).
    """

    def __init__(
        self,
        train_dir: str,
        val_dir: str,
        num_train_epochs: int = 1,
        has_val: bool = True,
        train_batch_size: int = 32,
        val_batch_size: int = 32,
        shuffle: bool = True,
        transform_fn: Callable[[Any], Any] | None = None,
        inmemory_cache_all: bool = False,
        cur_shard: int = 0,
        shard_count: int = 1,
        schema_fields: list[str] | None = None,
        storage_options: dict[str, Any] | None = None,
        steps_per_epoch_train: int = 1,
        steps_per_epoch_val: int = 1,
        verbose: bool = True,
        **kwargs: Any,
    ) -> None:
        self.train_dir = train_dir
        self.val_dir = val_dir
        self.num_train_epochs = num_train_epochs
        self.has_val = has_val
        self.train_batch_size = train_batch_size
        self.val_batch_size = val_batch_size
        self.shuffle = shuffle
        self.transform_fn = transform_fn
        self.inmemory_cache_all = inmemory_cache_all
        self.cur_shard = cur_shard
        self.shard_count = shard_count
        self.schema_fields = schema_fields
        self.storage_options = storage_options
        self.steps_per_epoch_train = steps_per_epoch_train
        self.steps_per_epoch_val = steps_per_epoch_val
        self.verbose = verbose

    @property
    @abstractmethod
    def short_name(self) -> str:
        """The name of this kind of data module in messages."""

    def __enter__(self) -> DataModule:
        return self

    def __exit__(  # noqa: B027  (most have nothing open)
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release open resources; nothing is read after this."""

    @abstractmethod
    def train_data(self) -> Iterable[Any]:
        """Endless batches for training: dicts from column to array of rows."""

    @abstractmethod
    def val_data(self) -> Iterable[Any]:
        """Endless batches for validation."""


class ParquetDataModule(DataModule):
    """Reads with Arrow: dicts from column to NumPy array; `hvdtune.spark.torch` makes tensors.

    Further arguments: shuffle_buffer_size (rows), random_seed, edit_fields and removed_fields (what
    transform_fn changes: see `hvdtune.spark.common.columns.transformed`), vector_sizes (of columns
    written as vectors), train_reader_worker_count, val_reader_worker_count (0: read in the training
    thread; more: read ahead in another one).
    """

    short_name = "parquet"

    def __init__(
        self,
        *args: Any,
        shuffle_buffer_size: int | None = None,
        random_seed: int | None = None,
        edit_fields: list[Any] | None = None,
        removed_fields: list[str] | None = None,
        vector_sizes: dict[str, int] | None = None,
        train_reader_worker_count: int = 2,
        val_reader_worker_count: int = 2,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.shuffle_buffer_size = shuffle_buffer_size
        self.random_seed = random_seed
        self.edit_fields, self.removed_fields = edit_fields, removed_fields
        self.vector_sizes = vector_sizes
        self.train_reader_worker_count = train_reader_worker_count
        self.val_reader_worker_count = val_reader_worker_count

    def _transform(self, columns: Columns) -> Columns:
        return transformed(columns, self.transform_fn, self.edit_fields, self.removed_fields)

    def _reader(self, folder: str, batch_size: int, shuffle: bool, workers: int) -> ShardReader:
        changes = self.transform_fn or self.edit_fields or self.removed_fields
        return ShardReader(
            folder,
            self.schema_fields,
            batch_size,
            shard=self.cur_shard,
            count=self.shard_count,
            epochs=None,
            shuffle=shuffle,
            seed=self.random_seed,
            buffer_rows=self.shuffle_buffer_size,
            transform=self._transform if changes else None,
            sizes=self.vector_sizes,
            cache=self.inmemory_cache_all,
            read_ahead=workers > 0,
            storage_options=self.storage_options,
        )

    def train_data(self) -> Iterable[Columns]:
        """Endless batches for training."""
        return self._reader(
            self.train_dir, self.train_batch_size, self.shuffle, self.train_reader_worker_count
        )

    def val_data(self) -> Iterable[Columns]:
        """Endless batches for validation, in the files' order."""
        return self._reader(self.val_dir, self.val_batch_size, False, self.val_reader_worker_count)
