"""Horovod's framework-neutral parts: basics, elastic, exceptions, process_sets, util."""

from __future__ import annotations

import importlib
from typing import Any

from .. import _absent

# Names that `horovod.common` itself had before Horovod 0.16.
_BASICS = (
    *("init", "shutdown", "rank", "size", "local_rank", "local_size"),
    "mpi_threads_supported",
)


def __getattr__(name: str) -> Any:
    if name in _BASICS:
        return getattr(importlib.import_module("hvdtune"), name)
    _absent.refuse(__name__, name)
