"""Memory from the engine: for large results, and shared by all ranks."""

from __future__ import annotations

from hvdtune._native import SharedBlock, result_memory
from hvdtune.core import world

__all__ = ["LARGE_RESULT_BYTES", "SharedBlock", "allocate_shared", "result_memory"]

# From this size on `result_memory`, which is reused once nobody holds the result, is faster than
# new memory; native/base/memory/large_blocks.h.
LARGE_RESULT_BYTES = 2 << 20


def allocate_shared(size: int) -> SharedBlock:
    """``size`` zeroed bytes as a writable buffer, which lives as long as anything views it.

    An in-place allreduce of tensors in such memory on all ranks copies nothing from the second use
    of its name on. Raises ValueError before init, and if there is no such memory or not enough.
    """
    return world.engine().allocate_shared(size)
