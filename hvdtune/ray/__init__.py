"""Horovod's way of running jobs on Ray, on hvdtune's engine: `from hvdtune.ray import RayExecutor`.

Ray places the processes and starts them as actors; `hvdtune.launch.placed` makes them ranks of one
job. A program for `horovod.ray` runs unchanged with this module instead. Knows `launch` and `core`.
"""

from __future__ import annotations

try:
    import ray as _ray  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"hvdtune.ray needs Ray 2.9 or newer, which cannot be imported here ({error}). "
        "Install it with: pip install 'hvdtune[ray]'"
    ) from error

from hvdtune.ray.elastic import ElasticRayExecutor
from hvdtune.ray.runner import RayExecutor
from hvdtune.ray.worker import BaseHorovodWorker

__all__ = ["BaseHorovodWorker", "ElasticRayExecutor", "RayExecutor"]
