"""The loop behind the ``run`` decorators: training that starts over when the job has changed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from hvdtune.core import log
from hvdtune.core.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from hvdtune.elastic.notifications import notification_manager
from hvdtune.elastic.state import State


def run_fn(func: Callable[..., Any], reset: Callable[[], None]) -> Callable[..., Any]:
    """``func(state, …)`` as a function that starts over when collectives fail or hosts change.

    Every round synchronises the state with rank 0's and calls ``func``; its result ends the loop.

    - HorovodInternalError: the state goes back to its last commit.
    - HostsUpdatedInterrupt: the state stays, and counts as committed; it is not synchronised when
      the interrupt says so, for then nobody is new.

    Before the next round ``reset()`` leaves the job and joins it anew, and ``state.on_reset()``
    runs the state's callbacks. Any other exception ends the loop, and so does one of ``reset``.
    There is no limit to the rounds.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        notification_manager.register_listener(state)
        skip_sync = False
        try:
            while True:
                try:
                    if not skip_sync:
                        state.sync()
                    return func(state, *args, **kwargs)
                except HorovodInternalError as error:
                    log.write("warning", f"Training starts over from its last commit: {error}")
                    state.restore()
                    skip_sync = False
                except HostsUpdatedInterrupt as interrupt:
                    log.write("info", "The hosts have changed; training starts over as it is")
                    # Synchronising sends the committed state, and nothing is to be lost.
                    state.save()
                    skip_sync = interrupt.skip_sync
                reset()
                state.on_reset()
        finally:
            notification_manager.remove_listener(state)

    return wrapper
