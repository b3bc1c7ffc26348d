"""hvdtune for JAX: `import hvdtune.jax as hvd`, in the style of Horovod's other faces.

Nothing is compiled against JAX: inside `jax.jit` the collectives are custom calls of XLA, which
reach the engine without Python. Knows `core`, `faces` and `arrays`.
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
from hvdtune.core.objects import (
    allgather_object,
    broadcast_object,
)
from hvdtune.core.observation.marks import (
    mark,
    mark_step,
)
from hvdtune.core.operations import (
    barrier,
    join,
)
from hvdtune.faces import basics
from hvdtune.faces.basics import *  # noqa: F403
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
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_parameters",
    "grad",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "mark",
    "mark_step",
    "reducescatter",
    "value_and_grad",
]
__all__ += basics.__all__
