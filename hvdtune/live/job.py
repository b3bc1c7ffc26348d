"""The metrics of the job whose rank 0 this process is: they begin and end with the job."""

from __future__ import annotations

import os
from collections.abc import Callable

from hvdtune.live import gpu_counters
from hvdtune.live.exporter import Exporter, Status
from hvdtune.settings.knobs import Settings

_running: Exporter | None = None


def start(settings: Settings, status: Callable[[], Status], warn: Callable[[str], None]) -> None:
    """Export what the settings ask for. If that fails, warn; training goes on."""
    global _running
    stop()
    try:
        _running = Exporter(
            status,
            file=settings.metrics_file,
            interval_s=float(settings.metrics_interval),
            port=settings.metrics_port,
            address=settings.metrics_address,
            gpus=gpu_counters.reader(),
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


def _leave_to_parent() -> None:
    global _running
    if _running is not None:
        _running.abandon()
        _running = None


os.register_at_fork(after_in_child=_leave_to_parent)
