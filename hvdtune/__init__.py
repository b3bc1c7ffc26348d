"""hvdtune: Horovod's API on an engine of its own, with the tools to make it fast.

``import hvdtune as hvd`` is the framework-neutral face, on NumPy arrays; ``hvdtune.torch`` is the
one for PyTorch. Importing this module loads no framework, not even NumPy: the array functions are
imported when they are first used.
"""

# ruff: noqa: F405 (the array functions, by a star below)

from __future__ import annotations

import sys as _sys

if getattr(_sys, "argv", None) and _sys.argv[0].endswith(("/hvdtune", "/horovodrun")):
    # This is the command: Ctrl-C during the imports must end it without a traceback. `_signal` is
    # built in; even importing `signal` would take longer than all the imports before it.
    import _signal  # type: ignore[import-not-found]

    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

from hvdtune import uncompiled
from hvdtune.version import __version__ as __version__

_IS_HANDED_OVER = uncompiled.hand_over(__version__, __path__)
if not _IS_HANDED_OVER:
    from hvdtune import bootstrap

    bootstrap.isolate()  # before any import that a user's file of the same name could catch

from types import ModuleType  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

if not _IS_HANDED_OVER:
    from hvdtune import services as _services
    from hvdtune.core.exceptions import (
        HorovodInternalError,
        HorovodVersionMismatchError,
        HostsUpdatedInterrupt,
    )
    from hvdtune.core.observation.marks import mark, mark_step
    from hvdtune.faces import basics as _basics
    from hvdtune.faces.basics import *  # noqa: F403

if TYPE_CHECKING:
    from hvdtune.arrays import *  # noqa: F403
    from hvdtune.launch.function.call_site import run

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
# Imported, and NumPy with them, when one is first used.
_ARRAY_FUNCTIONS = {name for name in __all__ if name not in globals()} - {"run"}

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


if not _IS_HANDED_OVER:
    _services.register()
