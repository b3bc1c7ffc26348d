"""The driver of an elastic job: tells `Membership` what happens, and does what it decides.

It belongs to one thread, that of its `selector`. It neither starts processes nor looks for hosts:
`hvdtune run` has `processes` and a discovery script for that, others have their own.
"""

from __future__ import annotations

import collections
import contextlib
import os
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from hvdtune.core.driver import messages
from hvdtune.core.driver.messages import Message
from hvdtune.launch.allocation.hosts import Host
from hvdtune.launch.elastic.actions import (
    Action,
    Cancel,
    End,
    Kill,
    Leave,
    News,
    Place,
    Prepare,
    Say,
    Start,
)
from hvdtune.launch.elastic.driver.control import Control, endpoint
from hvdtune.launch.elastic.membership import Membership
from hvdtune.launch.elastic.suspicion import Lateness
from hvdtune.launch.local.environment import place

_LOOPBACK = "127.0.0.1"
# If the driver wakes up this much later than planned, it has heard nothing in between.
_LATE_SECONDS = 1.0
_MEASURE_SECONDS = 1.0  # between questions to rank 0
_MEETING = ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT")


class Starter(Protocol):
    """Starts and ends the job's processes, and tells the driver about it.

    For each `start` it later calls `Driver.not_started` or, when the process has ended,
    `Driver.exited`. No call waits for anything.
    """

    def start(self, order: Start) -> None:
        """Start a process with `Driver.variables(order, …)` in its environment."""

    def kill(self, identity: str, at_once: bool) -> None:
        """End a process; `at_once`, without SIGTERM first: it does not answer."""

    def meeting(self, hosts: Sequence[str]) -> Mapping[str, str]:
        """The variables with which ranks on these hosts meet, rank 0's host first.

        They are HOROVOD_GLOO_RENDEZVOUS_ADDR and …_PORT, with another port each time, and
        perhaps those that name interfaces; none if all are on one machine.
        """


class Driver:
    """Carries out one job.

    job, secret: HVDTUNE_JOB_ID and HVDTUNE_SECRET of the processes. heartbeat: a process that has
    said nothing for this many seconds is given up; 0 turns that off. say: called with sentences for
    the user. Set `starter` before anything else is called.
    """

    starter: Starter

    def __init__(
        self,
        selector: selectors.BaseSelector,
        membership: Membership,
        *,
        job: str,
        secret: str,
        heartbeat: float,
        say: Callable[[str], None],
    ) -> None:
        self.end: End | None = None
        self._selector = selector
        self._membership = membership
        self._job = job
        self._heartbeat = heartbeat
        self._say = say
        self._control = Control(selector, secret, self._hear)
        self._ports: dict[str, int] = {}  # by the address listened at
        self._silent: set[str] = set()
        # The variables of all meetings; a place takes back those that its own meeting lacks.
        self._meeting: dict[str, str | None] = dict.fromkeys(_MEETING)
        self._queue: collections.deque[Action] = collections.deque()
        self._is_busy = False
        self._is_stopped = False
        self._posted: collections.deque[Callable[[], None]] = collections.deque()
        self._due: float | None = None
        self._advanced_at = self._measure_at = time.monotonic()
        self._wakeup, self._waker = os.pipe()
        for end in (self._wakeup, self._waker):
            os.set_blocking(end, False)
        selector.register(self._wakeup, selectors.EVENT_READ, self._take_posted)

    # ---- events ----------------------------------------------------------------------------------

    def hosts(self, found: Sequence[Host]) -> None:
        """Discovery has found these hosts."""
        self._do(self._membership.hosts(found, time.monotonic()))

    def discovery_failed(self, why: str) -> None:
        """Discovery gave no answer; `why` is a sentence."""
        self._do(self._membership.discovery_failed(why, time.monotonic()))

    def not_started(self, identity: str, why: str) -> None:
        """A process could not be started; `why` is the end of a sentence."""
        self._control.forget(identity)
        self._do(self._membership.not_started(identity, why, time.monotonic()))

    def exited(self, identity: str, code: int) -> None:
        """A process has ended; `code` is its exit code, -N if signal N killed it."""
        self._control.hear_last_words(identity)
        self._control.forget(identity)
        self._silent.discard(identity)
        self._do(self._membership.exited(identity, code, time.monotonic()))

    def post(self, event: Callable[[], None]) -> None:
        """Have `event` called soon, in the driver's thread; from any thread."""
        self._posted.append(event)
        with contextlib.suppress(BlockingIOError):  # it is about to wake up anyway
            os.write(self._waker, b"\0")

    def _take_posted(self) -> None:
        os.read(self._wakeup, 4096)
        while self._posted:
            self._posted.popleft()()

    def _hear(self, identity: str, message: Message) -> None:
        """A process's message. Raises ValueError if the message makes no sense."""
        now, kind, member = time.monotonic(), message["kind"], self._membership
        try:
            if kind == "ready":
                generation, function = int(message["generation"]), str(message["function"])
                reason, why = str(message["reason"]), str(message["why"])
                self._do(member.ready(identity, generation, reason, why, function, now))
            elif kind == "joined":
                self._do(member.joined(identity, int(message["generation"]), now))
            elif kind == "begun":
                self._do(member.begun(identity, str(message["function"]), now))
            elif kind == "synchronised":
                self._do(member.synchronised(identity, now))
            elif kind == "finished":
                self._do(member.finished(identity, now))
            elif kind == "lateness":
                late, share, last = (float(message[n]) for n in ("late_s", "share", "last_share"))
                found = Lateness(
                    tuple(map(int, message["ranks"])), late, share, last,
                    int(message["steps"]), float(message["step_s"]),
                )  # fmt: skip
                self._do(member.measured(identity, int(message["generation"]), found, now))
        except (KeyError, TypeError) as error:
            raise ValueError(f"a message {kind} without {error}") from None

    # ---- the loop --------------------------------------------------------------------------------

    def run(self) -> End:
        """Run until the job has ended, for a caller that waits for nothing else."""
        while self.end is None:
            due = self.next_due()
            left = None if due is None else max(0.0, due - time.monotonic())
            for key, _ in self._selector.select(left):
                key.data()
            self.advance(time.monotonic())
        return self.end

    def next_due(self) -> float | None:
        """When to call `advance` next."""
        dues = [self._membership.due(), self._control.introductions_due()]
        if self._heartbeat:
            dues.append(self._control.silence_due(self._heartbeat))
        if self._membership.measures:
            dues.append(self._measure_at)
        self._due = min((due for due in dues if due is not None), default=None)
        return self._due

    def advance(self, now: float) -> None:
        """Do what is due."""
        if self._due is not None and now - self._due > _LATE_SECONDS:
            self._control.excuse(now - self._advanced_at)
        self._advanced_at = now
        self._control.drop_strangers(now)
        for identity in self._control.silent(self._heartbeat, now) if self._heartbeat else ():
            self._silent.add(identity)
            why = f"has been silent for {self._heartbeat:g} s (HVDTUNE_ELASTIC_HEARTBEAT)"
            self._do(self._membership.silent(identity, why, now))
        due = self._membership.due()
        if due is not None and now >= due:
            self._do(self._membership.tick(now))
        if self._membership.measures and now >= self._measure_at:
            self._measure_at = now + _MEASURE_SECONDS
            rank0 = self._membership.identity_at(self._membership.generation, 0)
            if rank0 is not None:
                self._control.send(rank0, "measure")

    def stop(self) -> None:
        """Make no more decisions: the job is ended from outside."""
        self._is_stopped = True
        self._queue.clear()

    def close(self) -> None:
        """End all connections."""
        self._control.close()
        self._selector.unregister(self._wakeup)
        os.close(self._wakeup)
        os.close(self._waker)

    # ---- actions ---------------------------------------------------------------------------------

    def variables(self, order: Start, address: str = _LOOPBACK, at: str = "") -> dict[str, str]:
        """The variables that a process gets when it starts, besides those of the job.

        `address` is how it reaches this host. The driver then listens at `at`, which is "" for all
        addresses; processes on this host use 127.0.0.1. Raises OSError if it cannot listen.
        """
        at = _LOOPBACK if address == _LOOPBACK else at
        port = self._ports.get(at)
        if port is None:
            port = self._ports[at] = self._control.listen(at)
        return {
            **place(order.planned),
            "HOROVOD_ELASTIC": "1",
            messages.DRIVER: endpoint(address, port),
            messages.IDENTITY: order.identity,
        }

    def _do(self, actions: Sequence[Action]) -> None:
        """Carry out the actions in their order, and then those that follow from them."""
        if self._is_stopped:
            return
        self._queue += actions
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while self._queue:
                self._carry_out(self._queue.popleft())
        finally:
            self._is_busy = False

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Start):
            self._control.expect(action.identity)
            self.starter.start(action)
        elif isinstance(action, Kill):
            self.starter.kill(action.identity, action.identity in self._silent)
        elif isinstance(action, Place):
            self._place(action)
        elif isinstance(action, Prepare):
            self._control.send(action.identity, "prepare")
        elif isinstance(action, Cancel):
            for identity in action.identities:
                self._control.send(identity, "cancel", generation=action.generation, why=action.why)
        elif isinstance(action, News):
            for identity in action.identities:
                self._control.send(
                    identity, "news", number=action.number, change=int(action.change)
                )
        elif isinstance(action, Leave):
            self._control.send(action.identity, "leave", why=action.why)
        elif isinstance(action, Say):
            self._say(action.text)
        elif self.end is None:
            self.end = action

    def _place(self, action: Place) -> None:
        hosts = list(dict.fromkeys(member.slot.hostname for member in action.members))
        self._meeting = {**dict.fromkeys(self._meeting), **self.starter.meeting(hosts)}
        newcomers = [member.slot.rank for member in action.members if member.newcomer]
        for member in action.members:
            self._control.send(
                member.identity,
                "place",
                generation=action.generation,
                environment={
                    **place(member.slot),
                    **self._meeting,
                    "HVDTUNE_JOB_ID": f"{self._job}-{action.generation}",
                },
                newcomers=newcomers,
                synchronise=action.synchronise,
            )
