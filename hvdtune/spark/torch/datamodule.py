"""The ranks' data as tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from hvdtune.spark.common.columns import Columns
from hvdtune.spark.common.datamodule import DataModule, ParquetDataModule

__all__ = ["DataModule", "PetastormDataModule", "TorchDataModule"]


class TorchDataModule(ParquetDataModule):
    """Batches as dicts from column to tensor; columns that are no numbers stay arrays."""

    def train_data(self) -> Iterator[dict[str, Any]]:
        """Batches for training, without an end."""
        return map(as_tensors, super().train_data())

    def val_data(self) -> Iterator[dict[str, Any]]:
        """Batches for validation, without an end."""
        return map(as_tensors, super().val_data())


PetastormDataModule = TorchDataModule
"""Horovod's name for the class that is used if none is given."""


def as_tensors(columns: Columns) -> dict[str, Any]:
    """The columns' memory as tensors, copied only if it must not be written to."""
    return {name: as_tensor(array) for name, array in columns.items()}


def as_tensor(array: np.ndarray[Any, Any]) -> Any:
    """A column's memory as a tensor, or a copy if it must not be written to; texts stay."""
    if array.dtype.kind not in "biuf":
        return array
    return torch.from_numpy(array if array.flags.writeable else array.copy())
