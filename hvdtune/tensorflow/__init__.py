"""Horovod's TensorFlow API on hvdtune's engine: ``import hvdtune.tensorflow as hvd``.

A script for ``horovod.tensorflow`` runs unchanged with this module instead. Nothing is compiled
against TensorFlow. Knows `core`, `faces`, `arrays`, `elastic` and `compute_service`.
"""

from __future__ import annotations

import importlib
from typing import Any

try:
    import tensorflow as _tf
except ImportError as error:
    raise ImportError(
        "hvdtune.tensorflow needs TensorFlow 2.19 or newer, which cannot be imported here "
        f"({error}). Install it with: pip install tensorflow"
    ) from error

from hvdtune.core.exceptions import HorovodInternalError
from hvdtune.core.observation.marks import mark, mark_step
from hvdtune.core.operations import barrier
from hvdtune.tensorflow import (
    elastic,
    gradients,  # noqa: F401 (registers the operations' gradients)
    mpi_ops,
    util,
)
from hvdtune.tensorflow.compression import Compression
from hvdtune.tensorflow.functions import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from hvdtune.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from hvdtune.tensorflow.mpi_ops import *  # noqa: F403
from hvdtune.tensorflow.mpi_ops import (
    _allreduce,  # noqa: F401 (public code imports it, and the next one, from here)
    _grouped_allreduce,  # noqa: F401
)
from hvdtune.tensorflow.optimizer import DistributedOptimizer, _DistributedOptimizer  # noqa: F401
from hvdtune.tensorflow.reductions import (
    allreduce,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from hvdtune.tensorflow.tape import (
    DistributedGradientTape,
    PartialDistributedGradientTape,
    _DistributedGradientTape,  # noqa: F401
)
from hvdtune.tensorflow.util import (
    _executing_eagerly,  # noqa: F401
    check_num_rank_power_of_2,
    gpu_available,
    split_list,
)

_LegacyOptimizer = _tf.compat.v1.train.Optimizer  # as Horovod calls it

__all__ = [
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "LocalGradientAggregationHelper",
    "PartialDistributedGradientTape",
    "SyncBatchNormalization",  # noqa: F405 (from __getattr__)
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "check_num_rank_power_of_2",
    "elastic",
    "gpu_available",
    "grouped_allreduce",
    "grouped_reducescatter",
    "mark",
    "mark_step",
    "reducescatter",
    "split_list",
    "util",
]
__all__ += mpi_ops.__all__


def __getattr__(name: str) -> Any:
    # These load Keras, which takes seconds, so they are imported only on request. The Keras face
    # stands above this package, and knows it.
    if name == "SyncBatchNormalization":
        return importlib.import_module(f"{__name__}.sync_batch_norm").SyncBatchNormalization
    if name in ("keras", "data"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
