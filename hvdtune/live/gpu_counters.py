"""The host's GPUs in the recording of the rank that this process is: read while it records."""

from __future__ import annotations

from collections.abc import Callable
from importlib import util

from hvdtune.timeline import nvml

_running: nvml.Sampler | None = None


def start(wanted: Callable[[], bool], emit: nvml.Emit, warn: Callable[[str], None]) -> None:
    """Read the GPUs whenever `wanted()`, four times a second, until `stop`.

    Nothing, and no thread, without the package nvidia-ml-py. What ends the readings is a warning.
    """
    global _running
    stop()
    if util.find_spec("pynvml") is not None:
        _running = nvml.Sampler(emit, wanted=wanted, warn=warn)


def stop() -> None:
    """No further reading is emitted when this returns. Idempotent."""
    global _running
    if _running is not None:
        _running.stop()
        _running = None
