"""GPUs, as the engine is told of them when it starts."""

from __future__ import annotations

import os
from typing import Any

from hvdtune import knobs
from hvdtune.core import cuda_libraries


def options(settings: knobs.Settings) -> dict[str, Any]:
    """The engine's options for tensors on GPUs.

    Libraries are looked for here and loaded when the first such tensor comes; what is missing is
    an error then, and not before.
    """
    libraries = cuda_libraries.find(os.environ)
    return {
        "cuda_library": libraries.cuda.path or "",
        "cuda_problem": libraries.cuda.reason,
        "nccl_library": libraries.nccl.path or "",
        "nccl_problem": libraries.nccl.reason,
        "nvrtc_library": libraries.nvrtc.path or "",
        # NVTX's own variable, in which a profiler names its library to the processes it watches.
        "nvtx_library": os.environ.get("NVTX_INJECTION64_PATH", ""),
        "nccl_streams": settings.num_nccl_streams,
        "async_completion": settings.async_completion,
        "share_gpu": settings.share_gpu,
    }
