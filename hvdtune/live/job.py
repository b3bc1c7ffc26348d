"""The metrics of the job that this process is rank 0 of: begun and ended with it."""

from __future__ import annotations

from collections.abc import Callable

from hvdtune.knobs import Settings
from hvdtune.live.exporter import Exporter, Gpus, Status

_running: Exporter | None = None


def start(settings: Settings, status: Callable[[], Status], warn: Callable[[str], None]) -> None:
    """Export what the settings ask for. What cannot be is a warning; training goes on."""
    global _running
    stop()
    try:
        _running = Exporter(
            status,
            file=settings.metrics_file,
            interval_s=float(settings.metrics_interval),
            port=settings.metrics_port,
            address=settings.metrics_address,
            gpus=_gpus(),
            warn=warn,
        )
    except ModuleNotFoundError as error:
        warn(f"metrics: the package {error.name} is missing; nothing is exported")


def stop() -> None:
    """Write the file once more, and close the port. Idempotent."""
    global _running
    if _running is not None:
        _running.stop()
        _running = None


def _gpus() -> Callable[[], Gpus]:
    """A reader of the host's GPUs; one of nothing where there are none."""
    from hvdtune.timeline import nvml

    try:
        reader = nvml.Reader()
    except nvml.NoGpu:
        return lambda: ()

    def read() -> Gpus:
        try:
            return reader.read()
        except Exception:  # a GPU that has fallen off the bus: the other metrics go on
            return ()

    return read
