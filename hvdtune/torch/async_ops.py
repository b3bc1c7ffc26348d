"""The collectives that return a handle at once, and waiting for handles.

`faces.collectives` describes them. This module adds what only PyTorch has: sparse tensors.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from hvdtune.core.operations import barrier, join, poll, synchronize  # noqa: F401
from hvdtune.core.process_sets import ProcessSet, global_process_set
from hvdtune.core.reduce_ops import Average
from hvdtune.faces import sparse
from hvdtune.faces.collectives import Collectives
from hvdtune.torch.adapter import TorchAdapter

collectives = Collectives(TorchAdapter(), __name__, "collectives")

allgather_async = collectives.allgather_async
allreduce_async = collectives.allreduce_async
allreduce_async_ = collectives.allreduce_async_
alltoall_async = collectives.alltoall_async
broadcast_async = collectives.broadcast_async
broadcast_async_ = collectives.broadcast_async_
grouped_allgather_async = collectives.grouped_allgather_async
grouped_allreduce_async = collectives.grouped_allreduce_async
grouped_allreduce_async_ = collectives.grouped_allreduce_async_
grouped_reducescatter_async = collectives.grouped_reducescatter_async
reducescatter_async = collectives.reducescatter_async


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Start gathering the entries of a sparse COO tensor (same shape on all ranks).

    Returns a function, not a handle: calling it waits and returns the sparse result, in which
    repeated indices are not added up yet. With Average the values are divided by the number of
    ranks; with any other ``op`` they are unchanged, so coalescing gives the sum.
    """
    if not (isinstance(tensor, torch.Tensor) and tensor.layout is torch.sparse_coo):
        raise ValueError(f"sparse_allreduce_async of {name!r} takes a sparse COO tensor.")
    # Entries are joined along the first dimension, but are the second dimension of indices.
    indices = tensor._indices().t().contiguous()
    gathered = sparse.start(collectives, indices, tensor._values().contiguous(), name, process_set)
    shape, ranks = tensor.shape, process_set.size() or 1

    def wait() -> torch.Tensor:
        indices, values = gathered()
        if op == Average:
            values = values / ranks
        return torch.sparse_coo_tensor(
            indices.t(), values, shape, device=values.device, check_invariants=False
        )

    return wait
