"""The services that begin and end with a job: tuning, metrics, counters of CPUs and GPUs.

This file knows all of them; `core` knows none. Each is imported if a job asks for it.
"""

from __future__ import annotations

from hvdtune.core import job, world
from hvdtune.core.driver import member


def register() -> None:
    """Give these services to every job from now on."""
    job.add_lifecycle_hook(_start_autotune, _stop_autotune)
    job.add_lifecycle_hook(_start_metrics, _stop_metrics)
    job.add_lifecycle_hook(_start_gpu_counters, _stop_gpu_counters)
    job.add_lifecycle_hook(_start_cpu_counters, _stop_cpu_counters)


def _start_autotune() -> None:
    if world.settings().autotune and world.rank() == 0:
        import hvdtune.autotune.session.online as online

        online.start()


def _stop_autotune() -> None:
    if not world.settings().autotune:
        return
    if world.rank() == 0:
        import hvdtune.autotune.session.online as online

        online.stop()
    elif member.is_connected():
        import hvdtune.autotune.session.online as online

        online.keep_what_is_in_force()


def _exports_metrics() -> bool:
    settings = world.settings()
    return world.rank() == 0 and bool(settings.metrics_file or settings.metrics_port)


def _start_metrics() -> None:
    if _exports_metrics():
        from hvdtune.live import job as metrics

        metrics.start(world.settings(), world.status, world.warn)


def _stop_metrics() -> None:
    if _exports_metrics():
        from hvdtune.live import job as metrics

        metrics.stop()


def _records() -> bool:
    settings = world.settings()
    return bool(settings.timeline) and settings.timeline_format == "hvdtune"


def _records_gpus() -> bool:
    return _records() and world.is_first_of_host()


def _start_cpu_counters() -> None:
    if _records():
        from hvdtune.core.observation import marks
        from hvdtune.live import cpu_counters

        first = world.is_first_of_host()
        cpu_counters.start(marks.are_recorded, marks.counter, of_host=first)


def _stop_cpu_counters() -> None:
    if _records():
        from hvdtune.live import cpu_counters

        cpu_counters.stop()


def _start_gpu_counters() -> None:
    if _records_gpus():
        from hvdtune.core.observation import marks
        from hvdtune.live import gpu_counters

        gpu_counters.start(marks.are_recorded, marks.counter, world.warn)


def _stop_gpu_counters() -> None:
    if _records_gpus():
        from hvdtune.live import gpu_counters

        gpu_counters.stop()
