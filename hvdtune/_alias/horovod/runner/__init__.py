"""Horovod's launcher as a function: `from horovod.runner import run`."""

from __future__ import annotations

from hvdtune.launch.function import run

__all__ = ["run"]
