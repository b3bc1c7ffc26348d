"""The ranks' data for Keras: dicts from column to NumPy array, for any backend."""

from __future__ import annotations

from hvdtune.spark.common.datamodule import DataModule, ParquetDataModule

__all__ = ["DataModule", "ParquetDataModule", "PetastormDataModule"]

PetastormDataModule = ParquetDataModule
"""Horovod's name for the default class."""
