"""What frameworks call in the native module from their own threads, without Python."""

from __future__ import annotations

from hvdtune._native import xla_collective_call

__all__ = ["xla_collective_call"]
