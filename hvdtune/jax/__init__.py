"""hvdtune for JAX: `import hvdtune.jax as hvd`, in the style of Horovod's other faces.

Nothing is compiled against JAX: inside `jax.jit` the collectives are custom calls of XLA's, which
reach the engine without Python.
"""

from __future__ import annotations

try:
    import jax as _jax  # noqa: F401
    import jax.ffi as _ffi  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"hvdtune.jax needs JAX 0.6 or newer, which cannot be imported here ({error}). "
        "Install it with: pip install jax"
    ) from error

from hvdtune.core.exceptions import (
    HorovodInternalError,
)
from hvdtune.core.job import (
    init,
    shutdown,
)
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
from hvdtune.core.membership import (
    add_process_set,
    remove_process_set,
)
from hvdtune.core.objects import (
    allgather_object,
    broadcast_object,
)
from hvdtune.core.observation.marks import (
    mark,
    mark_step,
)
from hvdtune.core.observation.recording import (
    start_timeline,
    stop_timeline,
)
from hvdtune.core.operations import (
    barrier,
    join,
)
from hvdtune.core.process_sets import (
    ProcessSet,
    global_process_set,
)
from hvdtune.core.reduce_ops import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
)
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
from hvdtune.jax.compression import (
    Compression,
)
from hvdtune.jax.functions import (
    broadcast_parameters,
)
from hvdtune.jax.mpi_ops import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from hvdtune.jax.reduced_gradients import (
    DistributedOptimizer,
    grad,
    value_and_grad,
)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grad",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
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
    "value_and_grad",
]
