"""The engine's options for GPUs."""

from __future__ import annotations

import os
from typing import Any

from hvdtune.core.libraries import cuda
from hvdtune.settings import knobs

_POLICIES = ("DEFAULT", "EFFICIENCY", "ZERO")  # NCCL_CTA_POLICY_*, 0 to 2


def options(settings: knobs.Settings) -> dict[str, Any]:
    """The engine's options for tensors on GPUs.

    Libraries are searched here and loaded with the first such tensor; if one is missing, that
    tensor raises an error, and nothing before it.
    """
    libraries = cuda.find(os.environ)
    return {
        "cuda_library": libraries.cuda.path or "",
        "cuda_problem": libraries.cuda.reason,
        "nccl_library": libraries.nccl.path or "",
        "nccl_problem": libraries.nccl.reason,
        "nvrtc_library": libraries.nvrtc.path or "",
        # NVTX's own variable, with which a profiler names its library to the processes it watches.
        "nvtx_library": os.environ.get("NVTX_INJECTION64_PATH", ""),
        "nccl_streams": settings.num_nccl_streams,
        "nccl_min_ctas": settings.nccl_min_ctas,
        "nccl_max_ctas": settings.nccl_max_ctas,
        "nccl_cga_cluster_size": settings.nccl_cga_cluster_size,
        "nccl_cta_policy": _policy(settings.nccl_cta_policy),
        "nccl_between_hosts": settings.nccl_between_hosts,
        # Only `hvdtune tune` moves this setting, so only then find out whether it has an effect.
        "tunes_nccl_bypass": bool(settings.autotune_driver),
        "async_completion": settings.async_completion,
        "share_gpu": settings.share_gpu,
    }


def _policy(name: str | None) -> int:
    """NCCL's number for a policy; -1 for NCCL's choice."""
    if name is None:
        return -1
    return int(name) if name.isdecimal() else _POLICIES.index(name)
