"""Horovod's Keras API on hvdtune's engine: `import hvdtune.keras as hvd`.

For Keras 3 on TensorFlow, PyTorch and JAX, and for tf-keras if TF_USE_LEGACY_KERAS is set. A script
for `horovod.keras` or `horovod.tensorflow.keras` runs unchanged with this module instead. Knows
the backends' faces; each is loaded only if Keras uses that backend.
"""

from __future__ import annotations

import hvdtune.keras.package  # noqa: F401  (says what is missing, before anything else is imported)
from hvdtune.core.exceptions import HorovodInternalError
from hvdtune.core.objects import allgather_object, broadcast_object
from hvdtune.core.observation.marks import mark, mark_step
from hvdtune.faces import basics
from hvdtune.faces.basics import *  # noqa: F403
from hvdtune.keras import callbacks, elastic
from hvdtune.keras.compression import Compression
from hvdtune.keras.functions import (
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    reducescatter,
)
from hvdtune.keras.loading import load_model
from hvdtune.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from hvdtune.keras.sync_batch_normalization import SyncBatchNormalization
from hvdtune.keras.variables import broadcast_variables

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "PartialDistributedOptimizer",
    "SyncBatchNormalization",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "elastic",
    "load_model",
    "mark",
    "mark_step",
    "reducescatter",
]
__all__ += basics.__all__
