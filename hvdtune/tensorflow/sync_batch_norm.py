"""``SyncBatchNormalization``, under the name of Horovod's module; hvdtune's Keras has it."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    # Keras's face knows this package, and Keras is loaded only for those who ask for the layer.
    if name == "SyncBatchNormalization":
        return importlib.import_module("hvdtune.keras").SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
