"""Memory of large results, which is used again once nobody holds the result."""

from __future__ import annotations

from hvdtune._native import result_memory

__all__ = ["LARGE_RESULT_BYTES", "result_memory"]

# From here on `result_memory` is faster than new memory; native/base/large_blocks.h.
LARGE_RESULT_BYTES = 2 << 20
