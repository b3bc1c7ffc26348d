"""The processes of an elastic job in Spark, each started by an attempt of a task."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from hvdtune.core.libraries import network
from hvdtune.launch import placed
from hvdtune.launch.allocation.hosts import Host
from hvdtune.launch.elastic.actions import End, Start
from hvdtune.launch.elastic.driver.driver import Driver
from hvdtune.launch.errors import LaunchError
from hvdtune.launch.local.output import WorkerStream
from hvdtune.launch.remote import rendezvous
from hvdtune.launch.remote.frames import Frame, Kind
from hvdtune.launch.remote.link import Peer
from hvdtune.launch.worker import Worker
from hvdtune.spark.course import Output
from hvdtune.spark.task import LOST

# A failure up to this long before the job's end may be its reason.
_REASON_SECONDS = 2.0


class _Attempt(NamedTuple):
    """A task that has connected."""

    process: placed.PlacedProcess
    peer: Peer


class Hosts:
    """A `Starter`, and the handler of `Listener`'s reports on tasks.

    Everything runs in the driver's thread: the listener's threads post to it. `results` are pickled
    values, by the identity of the process that returned them.
    """

    def __init__(
        self, driver: Driver, output: Output, timestamps: bool, interfaces: Sequence[str],
        address: str, say: Callable[[str], None], first: int,
    ) -> None:  # fmt: skip
        self.results: dict[str, bytes] = {}
        self._driver = driver
        self._output = output
        self._timestamps = timestamps
        self._interfaces = interfaces
        self._address = address
        self._say = say
        self._first = first  # tasks with which the job begins
        self._own = placed.this_process(address=address)
        self._attempts: dict[int, _Attempt] = {}  # by the attempt's number
        self._names: dict[str, int] = {}  # of hosts
        self._processes: dict[str, placed.PlacedProcess] = {}  # by host name, also the lost ones
        self._workers: dict[str, Worker] = {}  # by identity
        self._identities: dict[int, str] = {}  # by attempt number: the process of that attempt
        self._partial: dict[int, bytearray] = {}
        self._failed: list[tuple[float, Worker]] = []
        self.most_seen = 0  # tasks at once

    # ---- reports of the listener, in its threads -------------------------------------------------

    def join(self, attempt: int, facts: Mapping[str, Any], peer: Peer) -> bool:
        """A task has connected."""
        process = placed.PlacedProcess(**facts)
        self._driver.post(partial(self._add, attempt, _Attempt(process, peer)))
        return True

    def take(self, attempt: int, frame: Frame) -> None:
        """A task reports."""
        self._driver.post(partial(self._hear, attempt, frame))

    def leave(self, attempt: int) -> None:
        """A task's connection has ended."""
        self._driver.post(partial(self._remove, attempt))

    # ---- requests of the driver ------------------------------------------------------------------

    def start(self, order: Start) -> None:
        """Make the task that is this host start a process."""
        number = self._names.get(order.host)
        attempt = None if number is None else self._attempts.get(number)
        if number is None or attempt is None:
            self._driver.not_started(order.identity, "its Spark task has ended")
            return
        worker = Worker(number, order.planned._replace(rank=order.start_rank))
        worker.streams = [
            WorkerStream(order.start_rank, name, None, worker.tail, timestamps=self._timestamps)
            for name in ("stdout", "stderr")
        ]
        self._workers[order.identity], self._identities[number] = worker, order.identity
        here = attempt.process.machine == self._own.machine
        variables = self._driver.variables(order, *([] if here else [self._address]))
        attempt.peer.send(Kind.START, number, json.dumps(variables).encode())

    def kill(self, identity: str, at_once: bool) -> None:
        """End a process: with SIGKILL if `at_once`, else with SIGTERM."""
        worker = self._workers.get(identity)
        if worker is not None and worker.number in self._attempts:
            number = signal.SIGKILL if at_once else signal.SIGTERM
            peer = self._attempts[worker.number].peer
            peer.send(Kind.SIGNAL_GROUP, worker.number, str(int(number)).encode())

    def meeting(self, hosts: Sequence[str]) -> Mapping[str, str]:
        """The variables that tell ranks on these hosts where to connect; none on one machine."""
        there = [self._processes[name] for name in hosts]
        if len({process.machine for process in there}) == 1:
            return {}
        found = placed.environments([p._replace(host=p.machine) for p in there], {})
        address = found[0][network.ADDRESS]
        if self._interfaces:
            address = there[0].interfaces[self._interfaces[0]]
        return rendezvous.variables(address, rendezvous.free_port(address), self._interfaces)

    # ---- in the driver's thread ------------------------------------------------------------------

    def _add(self, number: int, attempt: _Attempt) -> None:
        process = attempt.process
        try:
            # Check as if the two made a job: are they compatible?
            placed.environments([self._own, process], {}, self._interfaces)
        except LaunchError as error:
            self._driver.end = self._driver.end or End(1, str(error))
            return
        self._attempts[number] = attempt
        self.most_seen = max(self.most_seen, len(self._attempts))
        name = f"{process.hostname}-{number}"
        self._names[name], self._processes[name] = number, process
        self._tell_hosts()

    def _remove(self, number: int) -> None:
        self._attempts.pop(number, None)
        identity = self._identities.pop(number, None)
        if identity is not None:
            worker = self._workers[identity]
            worker.loss = LOST
            self._end(identity, worker, 255)
        self._tell_hosts()

    def _tell_hosts(self) -> None:
        if self.most_seen < self._first:
            return  # the runner limits how long this takes; elastic_timeout is for later
        found = [Host(name, 1) for name, number in self._names.items() if number in self._attempts]
        self._driver.hosts(found)

    def _hear(self, number: int, frame: Frame) -> None:
        identity = self._identities.get(number)
        if identity is None:
            return
        worker = self._workers[identity]
        if frame.kind in (Kind.STDOUT, Kind.STDERR):
            stream = worker.streams[frame.kind == Kind.STDERR]
            self._output.write(frame.kind, stream.take(frame.payload))
        elif frame.kind == Kind.STARTED:
            worker.pid = int(frame.payload)
        elif frame.kind == Kind.RESULT:
            self._partial.setdefault(number, bytearray()).extend(frame.payload)
        elif frame.kind == Kind.NOT_STARTED:
            del self._identities[number]
            self._driver.not_started(identity, frame.payload.decode("utf-8", "replace"))
        elif frame.kind == Kind.EXIT:
            del self._identities[number]
            data = self._partial.pop(number, None)
            if data is not None:
                self.results[identity] = bytes(data)
            self._end(identity, worker, int(frame.payload))

    def _end(self, identity: str, worker: Worker, code: int) -> None:
        for kind, stream in zip((Kind.STDOUT, Kind.STDERR), worker.streams, strict=True):
            self._output.write(kind, stream.finish())
        worker.code = code
        if code:
            self._failed = [*self._failed[-100:], (time.monotonic(), worker)]
            self._say(f"rank {worker.slot.rank} {worker.failure().cause()}")
        self._driver.exited(identity, code)

    def reason(self) -> str:
        """The failure that best explains the job's end, in words; "" if none does."""
        late = [w for at, w in self._failed if at >= self._failed[-1][0] - _REASON_SECONDS]
        worker = min(late, key=lambda worker: worker.innocence(), default=None)
        return worker.failure().describe().rstrip() if worker is not None else ""
