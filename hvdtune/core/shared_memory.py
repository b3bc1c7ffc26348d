"""Memory that all ranks can read and write, for tensors that are reduced often."""

from __future__ import annotations

from hvdtune._native import SharedBlock
from hvdtune.core import world

__all__ = ["SharedBlock", "allocate"]


def allocate(size: int) -> SharedBlock:
    """``size`` zeroed bytes as a writable buffer, which lives as long as anything views it.

    An allreduce in place of tensors that all ranks have in such memory copies nothing, from the
    second time that its name is used. Raises ValueError before init, and where there is no such
    memory or not enough.
    """
    return world.engine().allocate_shared(size)
