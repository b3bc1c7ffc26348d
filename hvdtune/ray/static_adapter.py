"""A job with a fixed number of workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.util.placement_group import get_current_placement_group

from hvdtune.launch import placed
from hvdtune.ray import crew, node_files
from hvdtune.ray.adapter import CallingAdapter
from hvdtune.ray.settings import placement_seconds
from hvdtune.ray.strategy import BaseStrategy, ColocatedStrategy, PGStrategy


class StaticAdapter(CallingAdapter):
    """Reserves resources, makes actors ranks of one job, and ends them all if one fails."""

    def __init__(
        self,
        settings: Any,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: float = 1,
        use_gpu: bool = False,
        gpus_per_worker: float | None = None,
        use_current_placement_group: bool = True,
        group_name: str = "",
    ) -> None:
        self.settings = settings
        self.num_workers = num_workers
        self.num_hosts = num_hosts
        self.num_workers_per_host = num_workers_per_host
        self.use_current_placement_group = use_current_placement_group
        self.strategy: BaseStrategy | None = None
        self.members: list[crew.Member] = []
        self._resources = {
            "settings": settings,
            "cpus_per_worker": cpus_per_worker,
            "use_gpu": use_gpu,
            "gpus_per_worker": gpus_per_worker,
            "group_name": group_name,
        }
        self._logs = False  # whether workers have a queue
        self._nodes: list[str] = []  # of these workers, also after their end

    @property
    def workers(self) -> list[Any]:
        """The actors, by rank."""
        return [member.actor for member in self.members]

    def start(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Start the workers, and their executables if there is a class.

        Raises TimeoutError if Ray does not reserve the resources or start the workers in time, and
        `WorkerFailed` if an executable cannot be made. Then nothing is left.
        """
        if self.strategy is not None:
            raise RuntimeError("start(): the workers run already; call shutdown() first")
        self.strategy = self._create_strategy()
        try:
            self._start_workers(self.strategy.create_workers(), dict(extra_env_vars or {}))
            executable = (executable_cls, executable_args, executable_kwargs)
            self._gather([w.start_executable.remote(*executable) for w in self.workers], None)
        except BaseException:
            self._end(orderly=False)
            raise

    def _create_strategy(self) -> BaseStrategy:
        current = self.use_current_placement_group and get_current_placement_group()
        if self.num_workers or current:
            count = self.num_workers or (self.num_hosts or 1) * self.num_workers_per_host
            return PGStrategy(
                num_workers=count,
                force_create_placement_group=not self.use_current_placement_group,
                **self._resources,
            )
        return ColocatedStrategy(
            num_hosts=self.num_hosts or 1,
            num_workers_per_host=self.num_workers_per_host,
            **self._resources,
        )

    def _start_workers(self, actors: Sequence[Any], extra: Mapping[str, Any]) -> None:
        facts = self._facts(actors)
        processes = [placed.PlacedProcess(**one["process"]) for one in facts]
        interfaces = sorted(getattr(self.settings, "nics", None) or ())
        places = placed.environments(processes, placed.new_job(), interfaces)
        by_rank = sorted(range(len(actors)), key=lambda i: int(places[i]["HOROVOD_RANK"]))
        self.members = crew.members_of([actors[i] for i in by_rank], [facts[i] for i in by_rank])
        self._nodes = list(dict.fromkeys(member.node_id for member in self.members))
        nccl = {"NCCL_SOCKET_IFNAME": ",".join(interfaces)} if interfaces else {}
        ray.get(
            [
                member.actor.become_rank.remote(places[number], {**nccl, **extra})
                for member, number in zip(self.members, by_rank, strict=True)
            ]
        )

    def _facts(self, actors: Sequence[Any]) -> list[dict[str, Any]]:
        """The facts that each worker reports. Raises TimeoutError if some do not start."""
        references = [actor.facts.remote() for actor in actors]
        seconds = placement_seconds(self.settings)
        _, late = ray.wait(references, num_returns=len(actors), timeout=seconds)
        if late:
            raise TimeoutError(
                f"{len(late)} of {len(actors)} workers have not started within {seconds:g} s "
                "(placement_group_timeout_s): the placement group has no room for them, or Ray "
                "cannot start processes"
            )
        return list(ray.get(references))

    def run_remote(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """References to the values of `fn(*args, **kwargs)` on each worker."""
        self._listen(None)
        return self._begin("run", (fn, args or (), kwargs or {}), self._running())

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """`fn(executable)` on rank 0."""
        self._listen(None)
        members = self._running()[:1]
        return self._gather(self._begin("execute", fn, members), None, members)[0]

    def shutdown(self) -> None:
        """End the workers, and release their resources."""
        self._end(orderly=True)

    def collect(self, folder: str, seconds: float | None = None) -> dict[str, bytes]:
        """The files of a folder on all nodes that have had workers, by name; deletes the folder.

        Workers leave the job first, when their calls have ended, so that their recordings are
        complete. Those that have died, or whose calls take longer than `seconds`, are not waited
        for.
        """
        if self.members:
            free = self.workers if seconds is None else crew.answering(self.workers, seconds)
            crew.leave(free, None)
        return node_files.collect(self._nodes, folder)

    def runs(self) -> bool:
        """Whether there are workers: not before `start`, and not after a failure."""
        return bool(self.members)

    # ---- calls ----

    def _running(self) -> list[crew.Member]:
        if not self.members:
            raise RuntimeError("there are no workers: call start() first")
        return self.members

    def _carry_out(self, method: str, what: Any, queue: Any, relay: crew.Relay | None) -> list[Any]:
        members = self._running()
        self._listen(queue)
        return self._gather(self._begin(method, what, members), relay)

    def _listen(self, queue: Any) -> None:
        """Set the queue for what the workers log in later calls."""
        if queue is not None or self._logs:
            for member in self.members:
                member.actor.set_queue.remote(queue)
        self._logs = queue is not None

    def _begin(self, method: str, what: Any, members: Sequence[crew.Member]) -> list[Any]:
        shared = ray.put(what)  # pickled once
        return [getattr(member.actor, method).remote(shared) for member in members]

    def _gather(
        self,
        references: Sequence[Any],
        relay: crew.Relay | None,
        members: Sequence[crew.Member] | None = None,
    ) -> list[Any]:
        """The values of the calls. If this raises, it has ended the workers."""
        try:
            return crew.gather(members or self.members, references, relay)
        except BaseException:
            self._end(orderly=False)
            raise

    # ---- the end ----

    def _end(self, orderly: bool) -> None:
        strategy = self.strategy
        actors = self.workers or (strategy.workers if strategy else [])
        self.strategy, self.members, self._logs = None, [], False
        try:
            crew.end(actors, orderly)
        finally:
            if strategy is not None:
                strategy.shutdown()
