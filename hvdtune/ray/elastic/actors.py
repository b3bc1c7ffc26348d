"""The processes of an elastic job on Ray: each is an actor on the node that the driver names."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hvdtune.launch import placed
from hvdtune.launch.elastic.actions import Start
from hvdtune.launch.elastic.driver.driver import Driver
from hvdtune.launch.remote import rendezvous
from hvdtune.ray import crew
from hvdtune.ray.elastic.discovery import Share
from hvdtune.ray.worker import BaseHorovodWorker

# How much of `node:ADDRESS`, a Ray resource of which every node has 1, an actor takes.
_SHARE_OF_ADDRESS = 0.01
# A failure up to this long before the job's end may be its reason.
_REASON_SECONDS = 10.0


class Work(NamedTuple):
    """The work of each process.

    It calls a `method` of the worker with `what`, a reference. It gets `variables` in addition to
    those of its place, and sends its log messages to `queue`. `executable` holds the arguments of
    `BaseHorovodWorker.start_executable`.
    """

    method: str
    what: Any
    variables: Mapping[str, Any]
    queue: Any
    executable: Sequence[Any]


class Failure(NamedTuple):
    """A process that has failed: the time (s of a monotonic clock), and the error."""

    time: float
    member: crew.Member
    error: BaseException


@dataclass
class _Process:
    order: Start
    actor: Any
    facts: Mapping[str, Any] | None = None
    is_killed: bool = False  # by the driver

    def member(self) -> crew.Member:
        """The process in the form that messages need. Its facts must be known."""
        assert self.facts is not None
        [found] = crew.members_of([self.actor], [self.facts])
        return found._replace(rank=self.order.start_rank)


class Actors:
    """A `Starter`. `results` are the values that processes have returned, by start rank.

    Ray answers in threads of its own; these post every event to the driver's thread.
    """

    def __init__(
        self,
        driver: Driver,
        job: Mapping[str, str],
        work: Work,
        share: Share,
        interfaces: Sequence[str],
    ) -> None:
        self.results: dict[int, Any] = {}
        self.nodes: dict[str, None] = {}  # that have had processes
        self._driver = driver
        self._job = job
        self._work = work
        self._share = share
        self._interfaces = interfaces
        self._own = placed.this_process(address=ray.util.get_node_ip_address())
        self._processes: dict[str, _Process] = {}
        self._failures: list[Failure] = []
        self._lock = threading.Lock()
        self._is_closed = False

    # ---- requests of the driver ------------------------------------------------------------------

    def start(self, order: Start) -> None:
        """Make the actor; `_begin` continues when it has reported its facts."""
        options = {"num_cpus": self._share.cpus, "num_gpus": self._share.gpus, **_on(order.host)}
        make = ray.remote(BaseHorovodWorker).options(**options).remote
        actor: Any = make(world_rank=order.planned.rank, world_size=order.planned.size)
        self._processes[order.identity] = _Process(order, actor)
        self._when_done(actor.facts.remote(), partial(self._begin, order.identity))

    def kill(self, identity: str, at_once: bool) -> None:
        """End the actor. Ray has no gentler way, and reports when it is done."""
        process = self._processes.get(identity)
        if process is not None:
            process.is_killed = True
            ray.kill(process.actor)

    def meeting(self, hosts: Sequence[str]) -> Mapping[str, str]:
        """The variables that tell ranks on these hosts where to connect; none on one machine."""
        by_host = {
            process.order.host: placed.PlacedProcess(**process.facts["process"])
            for process in self._processes.values()
            if process.facts is not None
        }
        there = [by_host[host] for host in hosts]
        if len({process.machine for process in there}) == 1:
            return {}
        address = placed.meeting_address(there, self._interfaces)
        return rendezvous.variables(address, rendezvous.free_port(address), self._interfaces)

    def count_on(self, host: str) -> int | None:
        """The number of processes on a host; None while some start there. From any thread."""
        there = [one for one in list(self._processes.values()) if one.order.host == host]
        return None if any(process.facts is None for process in there) else len(there)

    # ---- the life of a process -------------------------------------------------------------------

    def _when_done(self, reference: Any, then: Callable[[Future[Any]], None]) -> None:
        """Call `then` in the driver's thread once the value of a reference is ready."""
        reference.future().add_done_callback(lambda future: self.post(partial(then, future)))

    def post(self, event: Callable[[], None]) -> None:
        """Call `event` in the driver's thread, unless the job is over; from any thread."""
        with self._lock:
            if not self._is_closed:
                self._driver.post(event)

    def _begin(self, identity: str, future: Future[Any]) -> None:
        """The actor has reported its facts, or it could not be started."""
        process, error = self._processes[identity], future.exception()
        if error is not None:
            del self._processes[identity]
            with contextlib.suppress(RayError):
                ray.kill(process.actor)
            self._driver.not_started(identity, crew.cause_of(error))
            return
        process.facts = future.result()
        self.nodes[process.facts["node_id"]] = None
        here = process.facts["process"]["machine"] == self._own.machine
        place = self._driver.variables(process.order, *([] if here else [self._own.address]))
        visible = {placed.GPUS: gpus} if (gpus := self._gpus(process)) else {}
        actor, work = process.actor, self._work
        actor.become_rank.remote({**self._job, **place}, {**visible, **work.variables})
        actor.set_queue.remote(work.queue)
        reference = actor.take_part.remote(work.method, work.what, *work.executable)
        self._when_done(reference, partial(self._end, identity))

    def _gpus(self, process: _Process) -> str:
        """All GPUs of the node, ordered so that the process's local rank selects its own."""
        assert process.facts is not None
        own = list(process.facts["process"]["gpus"])
        if not own:
            return ""
        node = next(n for n in ray.nodes() if n["NodeID"] == process.facts["node_id"])
        every = map(str, range(int(node["Resources"].get("GPU", 0))))
        others = [gpu for gpu in every if gpu not in own]
        before = process.order.local_rank * len(own)
        return ",".join([*others[:before], *own, *others[before:]])

    def _end(self, identity: str, future: Future[Any]) -> None:
        """The function has returned or raised, or the actor has died."""
        process, error = self._processes.pop(identity), future.exception()
        code = 0
        if error is None:
            returned, value = future.result()
            if returned:
                self.results[process.order.start_rank] = value
            else:
                code = value
        else:
            code = 1 if isinstance(error, RayTaskError) else -signal.SIGKILL
            if not process.is_killed:
                found = Failure(time.monotonic(), process.member(), error)
                self._failures = [*self._failures[-100:], found]
        with contextlib.suppress(RayError):
            ray.kill(process.actor)
        self._driver.exited(identity, code)

    # ---- the end of the job ----------------------------------------------------------------------

    def reason(self) -> Failure | None:
        """The failure that best explains why the job has ended; None if none does."""
        late = [f for f in self._failures if f.time >= self._failures[-1].time - _REASON_SECONDS]
        return min(late, key=lambda failure: crew.innocence(failure.error), default=None)

    def close(self) -> None:
        """End the remaining processes, and post nothing more."""
        with self._lock:
            self._is_closed = True
        crew.end([process.actor for process in self._processes.values()], orderly=False)
        self._processes = {}


def _on(host: str) -> dict[str, Any]:
    """The options for an actor on a host, which is a Ray node's id or address."""
    if any(node["NodeID"] == host for node in ray.nodes()):
        return {"scheduling_strategy": NodeAffinitySchedulingStrategy(host, soft=False)}
    return {"resources": {f"node:{host}": _SHARE_OF_ADDRESS}}
