"""The ranks' data for Keras: dicts from column to NumPy array, whatever the backend."""

from __future__ import annotations

from hvdtune.spark.common.datamodule import DataModule, ParquetDataModule

__all__ = ["DataModule", "ParquetDataModule", "PetastormDataModule"]

PetastormDataModule = ParquetDataModule
"""Horovod's name for the class that is used if none is given."""
