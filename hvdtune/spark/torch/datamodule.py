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
    """Batches as dicts from column to tensor; columns that are not numbers stay arrays."""

    def train_data(self) -> Iterator[dict[str, Any]]:
        """Endless batches for training."""
        return map(as_tensors, super().train_data())

    def val_data(self) -> Iterator[dict[str, Any]]:
        """Endless batches for validation."""
        return map(as_tensors, super().val_data())


PetastormDataModule = TorchDataModule
"""Horovod's name for the default class."""


def as_tensors(columns: Columns) -> dict[str, Any]:
    """The columns' memory as tensors, copied only if it is read-only."""
    return {name: as_tensor(array) for name, array in columns.items()}


def as_tensor(array: np.ndarray[Any, Any]) -> Any:
    """A column's memory as a tensor, or a copy if it is read-only; texts stay arrays."""
    if array.dtype.kind not in "biuf":
        return array
    return torch.from_numpy(array if array.flags.writeable else array.copy())
