"""The state that must survive a failure or a change of hosts, with its last committed copy."""

from __future__ import annotations

import queue
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from hvdtune.core import world
from hvdtune.core.driver import member
from hvdtune.core.driver.changes import HostUpdateResult
from hvdtune.core.exceptions import HostsUpdatedInterrupt

Broadcast = Callable[[Any], Any]


class State(ABC):
    """The state of a training job.

    bcast_object: returns, on every rank, the object that rank 0 calls it with.
    get_rank: returns this process's rank; accepted as in Horovod's states, but not used.
    """

    def __init__(self, bcast_object: Broadcast, get_rank: Callable[[], int]) -> None:
        self._broadcast = bcast_object
        # Horovod's names: scripts check them for messages.
        self._host_messages: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._last_updated_timestamp = 0
        self._interrupts_seen = 0  # of this generation of an elastic job
        self._callbacks: list[Callable[[], Any]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """Also call these, in the order of registration, when the job has started anew.

        For values that depend on the number of ranks, such as learning rates.
        """
        self._callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """The job has started anew: forget news about hosts, reset, call the callbacks."""
        self._host_messages = queue.SimpleQueue()
        self._interrupts_seen = 0
        if any(news := member.news()):
            self._host_messages.put(news)  # it is already about this generation
        self.reset()
        for callback in self._callbacks:
            callback()

    def on_hosts_updated(self, timestamp: int, update_res: int) -> None:
        """Note a change of hosts for the next ``check_host_updates``; from any thread.

        See ``NotificationManager.handle_hosts_updated``.
        """
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """``save()``, then ``check_host_updates()``: work done so far will not be lost."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raise HostsUpdatedInterrupt, on all ranks, if the hosts have changed.

        In an elastic job the driver's news travels with the collectives: a check reads a number and
        has the same result on all ranks that have completed the same collectives. Without a driver,
        rank 0 decides from the changes it knows of, and the check is a collective. In both cases
        all ranks must call it at the same point. The interrupt says that synchronising may be
        skipped if hosts have only been removed; in an elastic job the driver decides that.
        """
        if member.is_connected():
            engine = world.engine_if_joined()  # None: the function that checks has not begun
            number = 0
            if engine is not None:
                # A rank that is alone need not call any collective that could bring news.
                number = member.news()[0] if world.size() == 1 else engine.interrupted()
            if number > self._interrupts_seen:
                self._interrupts_seen = number
                self._last_updated_timestamp, change = self._drain()
                raise HostsUpdatedInterrupt(change == HostUpdateResult.removed)
            return
        previous = self._last_updated_timestamp
        newest, changes = self._drain()
        previous, newest, change = self._broadcast((previous, newest, int(changes)))
        self._last_updated_timestamp = newest
        if newest > previous:
            raise HostsUpdatedInterrupt(change == HostUpdateResult.removed)

    def _drain(self) -> tuple[int, HostUpdateResult]:
        """The newest timestamp, and all changes since the last one that is known."""
        newest, changes = self._last_updated_timestamp, HostUpdateResult.no_update
        while not self._host_messages.empty():
            timestamp, change = self._host_messages.get()
            if timestamp > self._last_updated_timestamp:
                newest = max(newest, timestamp)
                changes |= HostUpdateResult(change)
        return newest, changes

    @abstractmethod
    def save(self) -> None:
        """Take a copy of the state, in memory."""

    @abstractmethod
    def restore(self) -> None:
        """Go back to the last copy."""

    @abstractmethod
    def sync(self) -> None:
        """Give all ranks the state of rank 0."""

    def reset(self) -> None:  # noqa: B027 (a state need not define it)
        """Adapt to a job that has started anew; called before the reset callbacks."""


class ObjectState(State):
    """Any picklable Python objects as the attributes of a state.

    Every keyword argument becomes an attribute. ``save`` stores references, not copies: an object
    that is changed in place is changed in the saved state as well, so assign a new one instead.
    Raises ValueError for a keyword that the state uses otherwise, such as ``commit``.
    """

    def __init__(self, bcast_object: Broadcast, get_rank: Callable[[], int], **kwargs: Any) -> None:
        super().__init__(bcast_object, get_rank)
        self._check_names(kwargs)
        self._committed = kwargs
        self._set_attributes()

    def save(self) -> None:
        """Store references to the attributes' present objects."""
        self._committed = {name: getattr(self, name) for name in self._committed}

    def restore(self) -> None:
        """Set the attributes to the objects that were saved last."""
        self._set_attributes()

    def sync(self) -> None:
        """Set the attributes of all ranks to what rank 0 saved last, and save that."""
        if self._committed:
            self._committed = self._broadcast(self._committed)
            self._set_attributes()

    def _check_names(self, names: Iterable[str]) -> None:
        for name in names:
            if hasattr(type(self), name):
                raise ValueError(
                    f"{type(self).__name__}: {name}=… would hide the state's own attribute of "
                    "that name; choose another name."
                )

    def _set_attributes(self) -> None:
        for name, value in self._committed.items():
            setattr(self, name, value)
