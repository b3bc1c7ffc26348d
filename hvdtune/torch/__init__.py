"""Horovod's PyTorch API on hvdtune's engine: ``import hvdtune.torch as hvd``.

A script for ``horovod.torch`` runs unchanged with this module instead. Nothing is compiled against
torch: the engine works on the memory of tensors, on the CPU and on NVIDIA GPUs. Knows `core`,
`faces` and `elastic`.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        "hvdtune.torch needs PyTorch 2.1 or newer, which cannot be imported here "
        f"({error}). Install it with: pip install 'hvdtune[torch]'"
    ) from error

from hvdtune.core.observation.marks import mark, mark_step
from hvdtune.faces.basics import *  # noqa: F403
from hvdtune.torch import compiled, elastic, mpi_ops
from hvdtune.torch.compression import Compression
from hvdtune.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from hvdtune.torch.mpi_ops import *  # noqa: F403
from hvdtune.torch.optimizer import DistributedOptimizer, _DistributedOptimizer  # noqa: F401
from hvdtune.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "SyncBatchNorm",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "elastic",
    "mark",
    "mark_step",
]
__all__ += mpi_ops.__all__

compiled.leave_alone(
    (
        *(getattr(mpi_ops, name) for name in mpi_ops.OPERATIONS),
        *(allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters),
        SyncBatchNorm.forward,
    )
)
