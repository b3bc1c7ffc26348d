"""The memory that the ranks can use."""

from __future__ import annotations

from pathlib import Path


def available_memory() -> int | None:
    """Bytes that can be allocated without swapping, from /proc/meminfo; None if unknown."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None
