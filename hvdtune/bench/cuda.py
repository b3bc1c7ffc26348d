"""Whether `hvdtune bench --device cuda` can run here, checked before anything is started."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from hvdtune.core.libraries import cuda
from hvdtune.launch.doctor import gpus

_CPU_ONLY = "this version's engine reduces on the CPU only: measure with --device cpu"
_TORCH_ADVICE = "pip install torch (its default wheel for Linux has CUDA)"


class Unavailable(RuntimeError):
    """Nothing can be measured on GPUs here; the text says what is missing and how to get it."""


class Found(NamedTuple):
    """What the ranks will use: the GPUs' names, and NCCL's version code (0: none is used)."""

    gpus: tuple[str, ...]
    nccl: int
    notes: tuple[str, ...] = ()


def look(environ: Mapping[str, str]) -> Found:
    """Ask driver, GPUs, PyTorch, the engine and NCCL, in this order.

    Raises `Unavailable` for the first that is missing. A missing NCCL is a note: tensors then pass
    through host memory.
    """
    libraries = cuda.find(environ)
    if libraries.cuda.path is None:
        raise Unavailable(libraries.cuda.reason)
    answer = gpus.ask(libraries)
    if answer.cuda_problem:
        raise Unavailable(f"{answer.cuda_problem}; get {cuda.DRIVER_ADVICE}")
    if not answer.gpus:
        raise Unavailable(
            "the CUDA driver shows no GPU: let CUDA_VISIBLE_DEVICES name one (in a container: "
            "--gpus all)"
        )
    _require_torch()
    if not cuda.engine_knows_gpus():
        raise Unavailable(_CPU_ONLY)
    notes: tuple[str, ...] = ()
    if answer.nccl_problem:
        notes = (f"without NCCL, tensors pass through host memory: {answer.nccl_problem}",)
    return Found(tuple(gpu.name for gpu in answer.gpus), answer.nccl_version, notes)


def _require_torch() -> None:
    """Find out from its version file whether PyTorch has CUDA: importing it takes seconds."""
    spec = find_spec("torch")
    if spec is None or not spec.origin:
        raise Unavailable(f"PyTorch, whose tensors are measured, is not installed: {_TORCH_ADVICE}")
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError as error:
        raise Unavailable(f"PyTorch's version cannot be read: {error}") from None
    if not re.search(r"^cuda\b[^=\n]*=\s*['\"]", text, re.MULTILINE):
        raise Unavailable(f"the PyTorch that is installed has no CUDA: {_TORCH_ADVICE}")


def ranks_for(found: Found, asked: int | None, share: bool) -> int:
    """How many ranks to start: as asked, or one per GPU. Raises `Unavailable` for too many."""
    count = len(found.gpus)
    ranks = asked or (max(2, count) if share else count)
    if ranks > count and not share:
        raise Unavailable(
            f"{ranks} ranks need as many GPUs, and there {'is' if count == 1 else 'are'} {count}: "
            f"give -np {count}, or --share-gpu (slower; for tests)"
        )
    return ranks
