"""Models and optimizers as bytes; what belongs together is pickled together."""

from __future__ import annotations

import io
from typing import Any

import cloudpickle
import torch


def dumps(value: Any) -> bytes:
    """Anything with tensors in it, classes of the program included."""
    buffer = io.BytesIO()
    torch.save(value, buffer, pickle_module=cloudpickle)
    return buffer.getvalue()


def loads(data: bytes) -> Any:
    """What `dumps` was given, on the CPU. It runs code: read only what you trust."""
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)
