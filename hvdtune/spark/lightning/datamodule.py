"""The ranks' data for Lightning: those of `hvdtune.spark.torch`, in epochs of a set length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hvdtune.spark.common.datamodule import DataModule
from hvdtune.spark.common.plan import endless
from hvdtune.spark.torch.datamodule import PetastormDataModule, TorchDataModule

__all__ = ["DataModule", "EpochLoader", "PetastormDataModule", "TorchDataModule"]


class EpochLoader:
    """Gives `steps` batches per iteration; the next iteration continues with the next ones."""

    def __init__(self, batches: Any, steps: int) -> None:
        self._batches = endless(batches)
        self._steps = steps

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._steps):
            yield next(self._batches)
