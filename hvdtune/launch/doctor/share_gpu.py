"""`hvdtune run --share-gpu`: several ranks on one GPU, for development and tests."""

from __future__ import annotations

from collections.abc import Mapping

from hvdtune.core.libraries import cuda
from hvdtune.launch.errors import LaunchError

#: The first NCCL that accepts several ranks of a communicator on one GPU.
OLDEST_NCCL: cuda.Version = (2, 30)

_ENABLE = "NCCL_MULTI_RANK_GPU_ENABLE"


def variables(environ: Mapping[str, str], ranks: int, *, here: bool) -> dict[str, str]:
    """The variables that NCCL needs in the workers' environment; those in `environ` stay.

    The ranks of one GPU take turns, and each waits inside its kernels for the others: few thread
    blocks (CTAs) leave room for all, though never fewer than NCCL_MIN_CTAS asks for. NVLink SHARP
    does not work between two ranks of one GPU.

    Args:
        environ: the workers' environment as far as it is known.
        ranks: of the job; all may be on one GPU.
        here: whether the workers run on this machine, so that its NCCL can be checked.

    Raises `LaunchError` if the NCCL that the workers would use is too old, or if there is none.
    Without NCCL by choice (HVDTUNE_NCCL_LIBRARY=none) no variable is needed: the ranks then read
    each other's memory, or, on several hosts, tensors pass through host memory.
    """
    if environ.get("HVDTUNE_NCCL_LIBRARY", "").strip().lower() == cuda.NONE:
        return {}
    if here:
        _require(cuda.find(environ, everything=True).nccl)
    ctas = 4 if ranks <= 2 else 2 if ranks <= 4 else 1
    least = environ.get("NCCL_MIN_CTAS", "").strip()
    ctas = max(ctas, int(least)) if least.isdecimal() else ctas
    wanted = {_ENABLE: "1", "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": str(ctas)}
    return {name: value for name, value in wanted.items() if name == _ENABLE or name not in environ}


def _require(nccl: cuda.Library) -> None:
    oldest = ".".join(map(str, OLDEST_NCCL))
    if nccl.path is None:
        raise LaunchError(f"--share-gpu needs NCCL {oldest} or newer: {nccl.reason}")
    if nccl.version and nccl.version < OLDEST_NCCL:
        raise LaunchError(
            f"--share-gpu needs NCCL {oldest} or newer, and {nccl.path} is NCCL "
            f"{nccl.version_text}: pip install -U nvidia-nccl-cu12 (nvidia-nccl-cu13 with CUDA 13)"
        )
