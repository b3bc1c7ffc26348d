"""Models and optimizers as bytes; objects that share parameters are pickled together."""

from __future__ import annotations

import io
from typing import Any

import cloudpickle
import torch


def dumps(value: Any) -> bytes:
    """Pickle anything that contains tensors, including classes of the program."""
    buffer = io.BytesIO()
    torch.save(value, buffer, pickle_module=cloudpickle)
    return buffer.getvalue()


def loads(data: bytes) -> Any:
    """The value that `dumps` was given, on the CPU. This runs code: read only what you trust."""
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)
