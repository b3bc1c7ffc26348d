"""What this installation can do, in the layout of `horovodrun --check-build`."""

from __future__ import annotations

import os
from importlib.util import find_spec

from hvdtune.core.libraries import cuda, gloo, mpi

#: The release of Horovod whose interface hvdtune has.
HOROVOD_VERSION = "0.28.1"

_FRAMEWORKS = (("TensorFlow", "tensorflow"), ("PyTorch", "torch"), ("MXNet", "mxnet"))


def check_build(version: str) -> str:
    """Describe the build: a framework is ticked if it and hvdtune's module for it are there."""
    engine = find_spec("._native", "hvdtune") is not None
    frameworks = [
        (title, _installed(f".{module}", "hvdtune") and _installed(module))
        for title, module in _FRAMEWORKS
    ]
    parts = [
        f"hvdtune v{version} (interface of Horovod v{HOROVOD_VERSION}):",
        _section("Available Frameworks", [*frameworks, ("NumPy", _installed("numpy"))]),
        _section(
            "Available Controllers",
            [("MPI", False), ("Gloo", False), ("hvdtune's own sockets", engine)],
        ),
        _section(
            "Available Tensor Operations",
            [
                ("NCCL", cuda.nccl_built() > 0),
                *((name, False) for name in ("DDL", "CCL")),
                ("MPI", bool(mpi.find_all(os.environ))),
                ("Gloo", bool(gloo.module_path())),
                ("Shared memory", engine),
            ],
        ),
    ]
    return "\n\n".join(parts)


def _section(title: str, rows: list[tuple[str, bool]]) -> str:
    ticks = "\n".join(f"    [{'X' if there else ' '}] {name}" for name, there in rows)
    return f"{title}:\n{ticks}"


def _installed(module: str, package: str | None = None) -> bool:
    try:
        return find_spec(module, package) is not None
    except (ImportError, ValueError):
        return False
