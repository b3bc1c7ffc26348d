"""The loop behind the ``run`` decorators: training that starts over when the job has changed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from hvdtune.core.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from hvdtune.core.observation import log
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
    def until_it_ends(state: State, *args: Any, **kwargs: Any) -> Any:
        equal = False  # whether the ranks' states are known to be
        with notification_manager.listening(state):
            while True:
                try:
                    if not equal:
                        state.sync()
                    return func(state, *args, **kwargs)
                except (HorovodInternalError, HostsUpdatedInterrupt) as reason:
                    equal = _prepare_next_round(state, reason)
                # Behind the except: the failed round's frames, and what they hold, are gone here.
                reset()
                state.on_reset()

    return until_it_ends


def _prepare_next_round(state: State, reason: HorovodInternalError | HostsUpdatedInterrupt) -> bool:
    """Make the state what the next round begins with; True when it need not be synchronised."""
    if isinstance(reason, HostsUpdatedInterrupt):
        log.write("info", "The hosts have changed; training starts over as it is")
        # Synchronising sends the committed state, and nothing is to be lost.
        state.save()
        return reason.skip_sync
    log.write("warning", f"Training starts over from its last commit: {reason}")
    state.restore()
    return False
