"""Horovod's MXNet API on hvdtune's engine: ``import hvdtune.mxnet as hvd``.

A program for ``horovod.mxnet`` runs unchanged with this module instead. Nothing is compiled against
MXNet. Knows `faces` and `core`.
"""

from __future__ import annotations

import sys

try:
    import mxnet as _mx  # noqa: F401
except Exception as error:  # an AttributeError if NumPy is too new
    raise ImportError(
        "hvdtune.mxnet needs MXNet 1.9, which cannot be imported here "
        f"({type(error).__name__}: {error}). Install it with: pip install mxnet==1.9.1 'numpy<1.24'"
    ) from error

from hvdtune.core.job import add_lifecycle_hook
from hvdtune.core.observation.marks import mark, mark_step
from hvdtune.mxnet import mpi_ops
from hvdtune.mxnet.compression import Compression
from hvdtune.mxnet.functions import allgather_object, broadcast_object, broadcast_parameters
from hvdtune.mxnet.mpi_ops import *  # noqa: F403
from hvdtune.mxnet.mpi_ops import wait_for_all
from hvdtune.mxnet.optimizer import DistributedOptimizer
from hvdtune.mxnet.trainer import DistributedTrainer

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "allgather_object",
    "broadcast_object",
    "broadcast_parameters",
    "mark",
    "mark_step",
]
__all__ += mpi_ops.__all__


def _complete() -> None:
    """Let MXNet complete pushed operations: otherwise this rank's end would make the others fail.

    Does nothing if an exception ends the program.
    """
    if getattr(sys, "last_type", None) is None:
        wait_for_all()


add_lifecycle_hook(lambda: None, _complete)
