"""From a worker to the callbacks of `RayExecutor.run` and `execute`: `ray_logger.log({...})`."""

from __future__ import annotations

import os
import warnings
from typing import Any

_queue: Any = None
_warned = False


def configure(queue: Any) -> None:
    """Send what this process logs from now on to a `ray.util.queue.Queue`; None: to nobody."""
    global _queue
    _queue = queue


def log(info_dict: dict[str, Any], chief_only: bool = True) -> None:
    """Hand `info_dict` to every callback of the call that runs, in the order of logging.

    What ranks other than 0 log is dropped, unless `chief_only` is False. Warns once if the call has
    no callbacks.
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
