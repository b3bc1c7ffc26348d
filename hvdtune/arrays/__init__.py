"""Collectives on NumPy arrays: the framework-neutral face. Knows `faces`, `core`.
Arrays must be C-contiguous, of dtype uint8, int8, uint16, int16, int32, int64, float16, float32,
float64 or bool. Arrays on a GPU (CuPy's, Numba's, anything with ``__cuda_array_interface__``) are
accepted too, and give results on that GPU. `faces.collectives` describes every function.
"""

from __future__ import annotations

from hvdtune.arrays.adapter import ArrayAdapter
from hvdtune.core.objects import allgather_object, broadcast_object
from hvdtune.core.operations import barrier, join, poll, synchronize
from hvdtune.faces.collectives import Collectives

__all__ = [
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "synchronize",
]

collectives = Collectives(ArrayAdapter(), __name__, "collectives")

allgather = collectives.allgather
allgather_async = collectives.allgather_async
allreduce = collectives.allreduce
allreduce_ = collectives.allreduce_
allreduce_async = collectives.allreduce_async
allreduce_async_ = collectives.allreduce_async_
alltoall = collectives.alltoall
alltoall_async = collectives.alltoall_async
broadcast = collectives.broadcast
broadcast_ = collectives.broadcast_
broadcast_async = collectives.broadcast_async
broadcast_async_ = collectives.broadcast_async_
grouped_allgather = collectives.grouped_allgather
grouped_allgather_async = collectives.grouped_allgather_async
grouped_allreduce = collectives.grouped_allreduce
grouped_allreduce_ = collectives.grouped_allreduce_
grouped_allreduce_async = collectives.grouped_allreduce_async
grouped_allreduce_async_ = collectives.grouped_allreduce_async_
grouped_reducescatter = collectives.grouped_reducescatter
grouped_reducescatter_async = collectives.grouped_reducescatter_async
reducescatter = collectives.reducescatter
reducescatter_async = collectives.reducescatter_async
