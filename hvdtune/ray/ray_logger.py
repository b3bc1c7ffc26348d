"""Sends data from a worker to the callbacks of `RayExecutor.run` and `execute`."""

from __future__ import annotations

import os
import warnings
from typing import Any

_queue: Any = None
_warned = False


def configure(queue: Any) -> None:
    """Send what this process logs from now on to a `ray.util.queue.Queue`; None: nowhere."""
    global _queue
    _queue = queue


def log(info_dict: dict[str, Any], chief_only: bool = True) -> None:
    """Pass `info_dict` to every callback of the current call, in the order of logging.

    Calls on ranks other than 0 are dropped, unless `chief_only` is False. Warns once if the current
    call has no callbacks.
    """
    global _warned
    if chief_only and os.environ.get("HOROVOD_RANK") != "0":
        return
    if _queue is not None:
        _queue.put(info_dict)
    elif not _warned:
        _warned = True
        warnings.warn(
            "ray_logger.log() does nothing here: the function was called without callbacks",
            UserWarning,
            stacklevel=2,
        )
