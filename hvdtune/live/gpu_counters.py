"""The host's GPUs, read with NVML: for metrics, `hvdtune top`, and this rank's recording."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import util

from hvdtune.timeline.record import nvml

_running: nvml.Sampler | None = None


def start(wanted: Callable[[], bool], emit: nvml.Emit, warn: Callable[[str], None]) -> None:
    """Read the GPUs whenever `wanted()`, four times a second, until `stop`.

    Without the package nvidia-ml-py it does nothing and starts no thread. An error ends the
    readings with a warning.
    """
    global _running
    stop()
    if util.find_spec("pynvml") is not None:
        _running = nvml.Sampler(emit, wanted=wanted, warn=warn)


def stop() -> None:
    """No further reading is emitted after this returns. Idempotent."""
    global _running
    if _running is not None:
        _running.stop()
        _running = None


def reader(*, state_only: bool = False) -> Callable[[], Sequence[nvml.Reading]]:
    """A function that reads all GPUs of the host, by number; it returns nothing without GPUs.

    `state_only`: without PCIe and NVLink, which take time to measure. A failed reading is empty.
    """
    try:
        opened = nvml.Reader()
    except nvml.NoGpu:
        return lambda: ()

    def read() -> Sequence[nvml.Reading]:
        try:
            if state_only:
                return [opened.read_state(number) for number in range(opened.count)]
            return opened.read()
        except Exception:  # a GPU that has fallen off the bus: everything else goes on
            return ()

    return read
