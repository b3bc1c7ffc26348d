"""hvdtune: Horovod's API on an engine of its own, with the tools to make it fast.

``import hvdtune as hvd`` is the framework-neutral face, on NumPy arrays; ``hvdtune.torch`` is the
one for PyTorch. Importing this module loads no framework, not even NumPy: the array functions come
when they are first used.
"""

from __future__ import annotations

import sys as _sys

if getattr(_sys, "argv", None) and _sys.argv[0].endswith(("/hvdtune", "/horovodrun")):
    # This is the command, and Ctrl-C during the imports is to end it without a traceback. The
    # module is built in: even importing `signal` would take longer than all that came before.
    import _signal  # type: ignore[import-not-found]

    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

from hvdtune import uncompiled
from hvdtune.version import __version__ as __version__

_IS_HANDED_OVER = uncompiled.hand_over(__version__, __path__)
if not _IS_HANDED_OVER:
    from hvdtune import bootstrap

    bootstrap.isolate()  # before anything is imported that a user's file may have the name of

from types import ModuleType  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

if not _IS_HANDED_OVER:
    from hvdtune.core import job as _job
    from hvdtune.core import world as _world
    from hvdtune.core.driver import member as _member
    from hvdtune.core.exceptions import (
        HorovodInternalError,
        HorovodVersionMismatchError,
        HostsUpdatedInterrupt,
    )
    from hvdtune.core.observation.marks import mark, mark_step
    from hvdtune.faces import basics as _basics
    from hvdtune.faces.basics import *  # noqa: F403

if TYPE_CHECKING:
    from hvdtune.arrays import (
        allgather,
        allgather_async,
        allgather_object,
        allreduce,
        allreduce_,
        allreduce_async,
        allreduce_async_,
        alltoall,
        alltoall_async,
        barrier,
        broadcast,
        broadcast_,
        broadcast_async,
        broadcast_async_,
        broadcast_object,
        grouped_allgather,
        grouped_allgather_async,
        grouped_allreduce,
        grouped_allreduce_,
        grouped_allreduce_async,
        grouped_allreduce_async_,
        grouped_reducescatter,
        grouped_reducescatter_async,
        join,
        poll,
        reducescatter,
        reducescatter_async,
        synchronize,
    )
    from hvdtune.launch.function.call_site import run

_ARRAY_FUNCTIONS = [
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "synchronize",
]

__all__ = [
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "mark",
    "mark_step",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "run",
    "synchronize",
]
if not _IS_HANDED_OVER:
    __all__ += _basics.__all__


def __getattr__(name: str) -> Any:
    source: ModuleType
    if name in _ARRAY_FUNCTIONS:
        from hvdtune import arrays as source
    elif name == "run":
        from hvdtune.launch.function import call_site as source
    else:
        raise AttributeError(f"module 'hvdtune' has no attribute '{name}'")
    value = getattr(source, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _start_autotune() -> None:
    if _world.settings().autotune and _world.rank() == 0:
        from hvdtune.autotune.session import online

        online.start()


def _stop_autotune() -> None:
    if not _world.settings().autotune:
        return
    if _world.rank() == 0:
        from hvdtune.autotune.session import online

        online.stop()
    elif _member.is_connected():
        from hvdtune.autotune.session import online

        online.keep_what_is_in_force()


def _exports_metrics() -> bool:
    settings = _world.settings()
    return _world.rank() == 0 and bool(settings.metrics_file or settings.metrics_port)


def _start_metrics() -> None:
    if _exports_metrics():
        from hvdtune.live import job

        job.start(_world.settings(), _world.status, _world.warn)


def _stop_metrics() -> None:
    if _exports_metrics():
        from hvdtune.live import job

        job.stop()


def _records() -> bool:
    settings = _world.settings()
    return bool(settings.timeline) and settings.timeline_format == "hvdtune"


def _records_gpus() -> bool:
    return _records() and _world.is_first_of_host()


def _start_cpu_counters() -> None:
    if _records():
        from hvdtune.core.observation import marks
        from hvdtune.live import cpu_counters

        first = _world.is_first_of_host()
        cpu_counters.start(marks.are_recorded, marks.counter, of_host=first)


def _stop_cpu_counters() -> None:
    if _records():
        from hvdtune.live import cpu_counters

        cpu_counters.stop()


def _start_gpu_counters() -> None:
    if _records_gpus():
        from hvdtune.core.observation import marks
        from hvdtune.live import gpu_counters

        gpu_counters.start(marks.are_recorded, marks.counter, _world.warn)


def _stop_gpu_counters() -> None:
    if _records_gpus():
        from hvdtune.live import gpu_counters

        gpu_counters.stop()


if not _IS_HANDED_OVER:
    # Here, where all parts are known: core itself knows nothing of them.
    _job.add_lifecycle_hook(_start_autotune, _stop_autotune)
    _job.add_lifecycle_hook(_start_metrics, _stop_metrics)
    _job.add_lifecycle_hook(_start_gpu_counters, _stop_gpu_counters)
    _job.add_lifecycle_hook(_start_cpu_counters, _stop_cpu_counters)
