"""Memory that the engine gives out: for large results, and shared by all ranks."""

from __future__ import annotations

from hvdtune._native import SharedBlock, result_memory
from hvdtune.core import world

__all__ = ["LARGE_RESULT_BYTES", "SharedBlock", "allocate_shared", "result_memory"]

# From here on `result_memory`, which is used again once nobody holds the result, is faster than
# new memory; native/base/memory/large_blocks.h.
LARGE_RESULT_BYTES = 2 << 20


def allocate_shared(size: int) -> SharedBlock:
    """``size`` zeroed bytes as a writable buffer, which lives as long as anything views it.

    An allreduce in place of tensors that all ranks have in such memory copies nothing, from the
    second time that its name is used. Raises ValueError before init, and where there is no such
    memory or not enough.
    """
    return world.engine().allocate_shared(size)
