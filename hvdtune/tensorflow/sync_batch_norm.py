"""``SyncBatchNormalization`` under Horovod's module name; hvdtune's Keras face has it."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    # Keras's face stands above this package; Keras is loaded only if the layer is requested.
    if name == "SyncBatchNormalization":
        return importlib.import_module("hvdtune.keras").SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
