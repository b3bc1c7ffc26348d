"""Horovod's Keras API on hvdtune's engine: `import hvdtune.keras as hvd`.

For Keras 3 on TensorFlow, PyTorch and JAX, and for tf-keras if TF_USE_LEGACY_KERAS is set. A script
for `horovod.keras` or `horovod.tensorflow.keras` runs with this module in its place.
"""

from __future__ import annotations

import hvdtune.keras.package  # noqa: F401  (says what is missing, before anything else is imported)
from hvdtune.core.exceptions import HorovodInternalError
from hvdtune.core.job import init, shutdown
from hvdtune.core.libraries.built import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
    sycl_built,
)
from hvdtune.core.membership import add_process_set, remove_process_set
from hvdtune.core.objects import allgather_object, broadcast_object
from hvdtune.core.observation.marks import mark, mark_step
from hvdtune.core.observation.recording import start_timeline, stop_timeline
from hvdtune.core.process_sets import ProcessSet, global_process_set
from hvdtune.core.reduce_ops import Adasum, Average, Max, Min, Product, Sum
from hvdtune.core.world import (
    cross_rank,
    cross_size,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    size,
)
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
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mark",
    "mark_step",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "sycl_built",
]
