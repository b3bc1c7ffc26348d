"""What every rank must know of a training, for any framework."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hvdtune.spark.common.datamodule import DataModule
from hvdtune.spark.common.store import RemoteStore


@dataclass
class TrainingPlan:
    """Columns, batches, data and store of one training; `params` describes them."""

    run_id: str
    store: RemoteStore
    feature_columns: list[str]
    label_columns: list[str]
    sample_weight_col: str | None
    metadata: dict[str, dict[str, Any]]
    train_rows: int
    val_rows: int  # 0: no validation
    batch_size: int
    val_batch_size: int
    epochs: int
    verbose: int
    train_steps_per_epoch: int | None
    validation_steps_per_epoch: int | None
    loss_weights: list[float]
    label_shapes: list[Any] | None
    random_seed: int | None
    shuffle: bool
    use_gpu: bool
    gradient_compression: Any
    backward_passes_per_step: int
    transform_fn: Callable[[Any], Any] | None
    data_module: type[DataModule]
    data_options: dict[str, Any] = field(default_factory=dict)

    def steps(self, ranks: int) -> tuple[int, int]:
        """Training and validation steps of an epoch, the same on all ranks."""
        train = self.train_steps_per_epoch or max(1, self.train_rows // self.batch_size // ranks)
        if not self.val_rows:
            return train, 0
        val = self.validation_steps_per_epoch
        return train, val or max(1, self.val_rows // self.val_batch_size // ranks)

    def data(self, rank: int, ranks: int) -> DataModule:
        """This rank's data; a context manager."""
        train_steps, val_steps = self.steps(ranks)
        names = [*self.feature_columns, *self.label_columns]
        if self.sample_weight_col is not None:
            names.append(self.sample_weight_col)
        return self.data_module(
            train_dir=self.store.train_data_path,
            val_dir=self.store.val_data_path,
            num_train_epochs=self.epochs,
            has_val=self.val_rows > 0,
            train_batch_size=self.batch_size,
            val_batch_size=self.val_batch_size,
            shuffle=self.shuffle,
            transform_fn=self.transform_fn,
            cur_shard=rank,
            shard_count=ranks,
            # A function may make columns from others, so it gets all that were written.
            schema_fields=None if self.transform_fn else list(dict.fromkeys(names)),
            storage_options=self.store.storage_options,
            steps_per_epoch_train=train_steps,
            steps_per_epoch_val=val_steps,
            verbose=self.verbose > 0 and rank == 0,
            random_seed=self.random_seed,
            vector_sizes={
                name: told["shape"]
                for name, told in self.metadata.items()
                if told["spark_data_type"] == "vector"
            },
            **self.data_options,
        )


def endless(batches: Any) -> Iterator[Any]:
    """The batches; starts again if a data module's batches end."""
    while True:
        count = 0
        for batch in batches:
            count += 1
            yield batch
        if not count:
            raise ValueError("the data module gave no batch.")


def rows_of(array: Any, shape: Any) -> Any:
    """A batch of rows in the shape that a model wants; `shape` is a batch's or a row's."""
    if shape is None:
        return array
    numbers = int(np.prod(tuple(array.shape)[1:], dtype=np.int64))
    return array.reshape(len(array), *row_shape(shape, numbers))


def row_shape(shape: Sequence[int | None], numbers: int) -> list[int]:
    """The shape of one row that has this many numbers.

    `shape` is that of a batch, whose first dimension may be any ([-1, 28, 28]). As Horovod allows,
    it may also be that of a row with this many numbers ([28, 28], [784]).
    """
    whole = [-1 if size is None else int(size) for size in shape]
    is_row = whole[0] != -1 and (len(whole) == 1 or (whole[0] != 1 and math.prod(whole) == numbers))
    return whole if is_row else whole[1:]


def sizes_of(outputs: list[Any]) -> list[int]:
    """How many numbers each output has per row."""
    return [int(np.prod(tuple(one.shape)[1:], dtype=np.int64)) for one in outputs]
