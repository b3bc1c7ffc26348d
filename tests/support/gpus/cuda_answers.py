"""A library that stands for libcuda, NCCL and NVRTC where only questions are asked."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from hvdtune.core.libraries import cuda

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
#: Of tests that need it.
compiled = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")


def library(folder: Path, **defined: int) -> str:
    """Compile `cuda_answers.c` with these macros; the path of the library."""
    path = folder / "libanswers.so"
    words = [f"-D{name}={value}" for name, value in defined.items()]
    source = Path(__file__).with_suffix(".c")
    command = [str(COMPILER), "-shared", "-fPIC", *words, "-o", str(path), str(source)]
    subprocess.run(command, check=True)
    return str(path)


def forget_what_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this process had loaded nothing yet: a PyTorch with CUDA loads an NCCL, for good."""
    mapped = cuda._mapped
    known = set(mapped())
    monkeypatch.setattr(cuda, "_mapped", lambda: [path for path in mapped() if path not in known])
