"""News about the job's hosts, passed on to the states that are being trained."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from hvdtune.core.driver.changes import HostUpdateResult


class Listener(Protocol):
    """An object that gets the news, as ``State`` does."""

    def on_hosts_updated(self, timestamp: int, update_res: int) -> None:
        """Called from any thread; must return at once."""


class NotificationManager:
    """Passes every announcement to the states of the running ``run_fn`` loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []

    def register_listener(self, listener: Listener) -> None:
        """Pass news to ``listener`` from now on."""
        with self._lock:
            self._listeners.append(listener)

    def remove_listener(self, listener: Listener) -> None:
        """Pass no more news to ``listener``; does nothing if it is not registered."""
        with self._lock:
            self._listeners = [other for other in self._listeners if other is not listener]

    @contextmanager
    def listening(self, listener: Listener) -> Iterator[None]:
        """Pass news to ``listener`` inside the block."""
        self.register_listener(listener)
        try:
            yield
        finally:
            self.remove_listener(listener)

    def handle_hosts_updated(self, timestamp: int, update_res: int) -> None:
        """Announce a change; from any thread.

        ``timestamp`` orders the changes of a job and must grow with each: a sequence number, or a
        time. ``update_res`` is a HostUpdateResult. Raises ValueError for another number.
        """
        if not HostUpdateResult.no_update <= update_res <= HostUpdateResult.mixed:
            raise ValueError(
                f"update_res={update_res} is no change of hosts: 0 (none), 1 (removed), 2 (added) "
                "and 3 (both) are."
            )
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener.on_hosts_updated(timestamp, update_res)


notification_manager = NotificationManager()
