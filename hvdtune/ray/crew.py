"""The workers of a job, and the outcome of a call that all of them make."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.queue import Empty, Queue

from hvdtune.launch.local.endings import Failure
from hvdtune.launch.worker import PEER_ERROR
from hvdtune.ray import node_files

# After a failure: how long to wait for one that explains it better.
_INNOCENT_SECONDS = 1.0
_BLAME_SECONDS = 0.1
_LOOK_SECONDS = 0.05  # between two checks for log messages
_TAIL_SECONDS = 2.0
_LEAVE_SECONDS = 10.0


class Member(NamedTuple):
    """A worker, by rank: the actor, its process, and where its output goes."""

    actor: Any
    rank: int
    pid: int
    hostname: str
    node_id: str
    output: node_files.Output


class WorkerFailed(RuntimeError):
    """A rank has failed; the text names it and contains the last lines that it printed.

    The error that `RayExecutor` raises is also an instance of the class of the rank's own error, or
    of Ray's error for an actor that has died. `rank` is the rank.
    """

    def __init__(self, text: str, rank: int, kind: type[BaseException] = RuntimeError) -> None:
        RuntimeError.__init__(self, text)
        self.rank = rank
        self._kind = kind

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return worker_failed, (self.args[0], self.rank, self._kind)


def worker_failed(text: str, rank: int, kind: type[BaseException]) -> WorkerFailed:
    """A `WorkerFailed` that is also a `kind`, unless Python cannot combine them."""
    with contextlib.suppress(TypeError):
        both = type("WorkerFailed", (WorkerFailed, kind), {"__module__": __name__})
        failure: WorkerFailed = both(text, rank, kind)
        return failure
    return WorkerFailed(text, rank)


class Relay:
    """Passes the workers' log messages to callbacks. Close it to end its actor."""

    def __init__(self, callbacks: Sequence[Callable[[Any], Any]]) -> None:
        self.queue = Queue(actor_options={"num_cpus": 0})
        self._callbacks = callbacks

    def pass_on(self) -> None:
        """Call the callbacks with all messages so far."""
        with contextlib.suppress(Empty):
            while True:
                logged = self.queue.get_nowait()
                for callback in self._callbacks:
                    callback(logged)

    def close(self) -> None:
        """Drop the messages that have not been passed on."""
        self.queue.shutdown(force=True)


def wait(references: Sequence[Any], seconds: float | None, relay: Relay | None) -> list[Any]:
    """The references that are ready: one or more, or none after `seconds`."""
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        pause = (
            left if relay is None else min(_LOOK_SECONDS, _LOOK_SECONDS if left is None else left)
        )
        ready, _ = ray.wait(list(references), num_returns=1, timeout=pause)
        if relay is not None:
            relay.pass_on()
        if ready or (left is not None and left <= 0):
            return list(ready)


def gather(members: Sequence[Member], references: Sequence[Any], relay: Relay | None) -> list[Any]:
    """The values of each member's call, in the order of `members`.

    Raises `WorkerFailed` as soon as it is clear whose failure it is: a death explains errors, and a
    rank's own error explains errors that report another rank's end.
    """
    by_reference = dict(zip(references, members, strict=True))
    values: dict[Any, Any] = {}
    failed: list[tuple[int, Member, BaseException]] = []
    deadline: float | None = None
    while len(values) + len(failed) < len(references):
        seen = {*values, *(references[members.index(member)] for _, member, _ in failed)}
        waiting = [reference for reference in references if reference not in seen]
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = wait(waiting, left, relay)
        if not ready:
            break
        for reference in ready:
            try:
                values[reference] = ray.get(reference)
            except Exception as error:
                blame = innocence(error)
                failed.append((blame, by_reference[reference], error))
                patience = (0.0, _BLAME_SECONDS, _INNOCENT_SECONDS)[blame]
                until = time.monotonic() + patience
                deadline = until if deadline is None else min(deadline, until)
    if failed:
        _, member, fault = min(failed, key=lambda one: one[0])
        raise described(member, fault) from fault
    return [values[reference] for reference in references]


def innocence(error: BaseException) -> int:
    """0 if a worker has died, 1 for an error of its own, 2 if it reports another rank's end."""
    if not isinstance(error, RayTaskError):
        return 0 if isinstance(error, RayError) else 1
    return 2 if PEER_ERROR in str(error) else 1


def cause_of(error: BaseException) -> str:
    """What has happened to a worker, phrased as the end of a sentence."""
    if isinstance(error, RayTaskError):
        cause = getattr(error, "cause", None)
        return f"raised {type(cause).__name__}: {cause}" if cause is not None else str(error)
    if isinstance(error, RayError):
        return f"died: {_why_it_died(str(error))}"
    return f"returned a value that cannot be read here: {type(error).__name__}: {error}"


def described(member: Member, error: BaseException, introduction: str = "") -> WorkerFailed:
    """The error that describes a member's failure."""
    lines = ["(its output is on its node, which cannot be reached)"]
    with contextlib.suppress(Exception):
        lines = node_files.on_node(
            member.node_id, _TAIL_SECONDS, node_files.last_lines, member.output
        )
    failure = Failure(member.rank, member.hostname, member.pid, 1, lines, cause_of(error))
    cause = getattr(error, "cause", None) if isinstance(error, RayTaskError) else error
    kind = type(cause) if isinstance(cause, BaseException) else RuntimeError
    return worker_failed(introduction + failure.describe().rstrip(), member.rank, kind)


def _why_it_died(text: str) -> str:
    """Ray's reason for an actor's end, without the actor's numbers and general advice."""
    lines = [line for line in text.splitlines() if not line.startswith("\t")]
    said = " ".join(" ".join(lines).partition("Some common causes")[0].split())
    return re.sub(".*The actor (died|is dead) because ", "", said).rstrip(".")


def answering(actors: Sequence[Any], seconds: float) -> list[Any]:
    """The workers whose calls have ended within `seconds`."""
    asked = {actor.hostname.remote(): actor for actor in actors}
    ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=seconds)
    return [asked[reference] for reference in ready]


def leave(actors: Sequence[Any], seconds: float | None) -> None:
    """Wait until these workers have left the job, or died; at most `seconds`, if not None."""
    with contextlib.suppress(RayError):
        references = [actor.leave.remote() for actor in actors]
        ray.wait(references, num_returns=len(references), timeout=seconds)


def end(actors: Sequence[Any], orderly: bool) -> None:
    """End these workers; `orderly`: after they have left the job, unless that takes long."""
    if orderly and actors:
        leave(actors, _LEAVE_SECONDS)
    for actor in actors:
        with contextlib.suppress(RayError, ValueError):
            ray.kill(actor)


def members_of(actors: Sequence[Any], facts: Sequence[Mapping[str, Any]]) -> list[Member]:
    """These actors as members; their positions are their ranks."""
    return [
        Member(actor, rank, *(one[name] for name in ("pid", "hostname", "node_id", "output")))
        for rank, (actor, one) in enumerate(zip(actors, facts, strict=True))
    ]
