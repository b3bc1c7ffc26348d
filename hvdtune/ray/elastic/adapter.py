"""A job whose number of workers changes with Ray's nodes."""

from __future__ import annotations

import selectors
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray

from hvdtune.launch import placed
from hvdtune.launch.elastic.driver.driver import Driver
from hvdtune.launch.elastic.exclusion import Exclusion
from hvdtune.launch.elastic.limits import Limits
from hvdtune.launch.elastic.membership import Membership
from hvdtune.launch.errors import LaunchError
from hvdtune.ray import crew, node_files
from hvdtune.ray.adapter import BaseParams, CallingAdapter
from hvdtune.ray.elastic import discovery
from hvdtune.ray.elastic.actors import Actors, Work
from hvdtune.ray.elastic.discovery import Share
from hvdtune.ray.settings import start_seconds
from hvdtune.settings import knobs

_LOOK_SECONDS = 0.05  # between two checks for log messages
# RayExecutor's parameters, by the flags of `hvdtune run`.
_PARAMETERS = {
    "--min-np": "min_workers",
    "--max-np": "max_workers",
    "--reset-limit": "reset_limit",
    "--elastic-timeout": "elastic_timeout",
    "--start-timeout": "timeout_s",
    "--blacklist-cooldown-range": "cooldown_range",
}


_NOT_ELASTIC = "is not for elastic jobs, whose workers change: call run() or execute()"


@dataclass
class ElasticParams(BaseParams):
    """The workers of an elastic job; see `hvdtune.ray.RayExecutor`."""

    min_workers: int = 1
    max_workers: int | None = None
    reset_limit: int | None = None
    cooldown_range: Sequence[float] | None = None
    elastic_timeout: float = 600
    override_discovery: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            self.limits(None).check()
            Exclusion(self.cooldown())
        except LaunchError as error:
            raise ValueError(_in_python(str(error))) from None

    def limits(self, start_timeout: float | None) -> Limits:
        """The driver's limits for the job; `start_timeout` None: from the environment."""
        seconds = knobs.from_environ().start_timeout if start_timeout is None else start_timeout
        return Limits(
            self.min_workers,
            self.min_workers,
            self.max_workers,
            self.reset_limit,
            float(self.elastic_timeout),
            float(seconds),
        )

    def cooldown(self) -> tuple[float, float] | None:
        """The shortest and longest time (s) for which a node gets no workers after a failure."""
        if not self.cooldown_range:
            return None
        shortest, longest = self.cooldown_range
        return float(shortest), float(longest)

    @property
    def elastic(self) -> bool:
        """Whether the number of workers changes."""
        return True

    @property
    def adapter(self) -> type[ElasticAdapter]:
        """The class that runs the job."""
        return ElasticAdapter


class RayHostDiscovery(discovery.RayHostDiscovery):
    """The same, with the names of `RayExecutor`'s parameters."""

    def __init__(
        self, use_gpu: bool = False, cpus_per_worker: float = 1, gpus_per_worker: float = 1
    ) -> None:
        super().__init__(use_gpu, cpus_per_worker, gpus_per_worker)


class ElasticAdapter(CallingAdapter):
    """Runs each call as a job of its own, with the driver of `hvdtune.launch.elastic`.

    A call returns the values of the workers that were in the job at its end, the oldest first.
    """

    def __init__(
        self,
        settings: Any,
        min_workers: int,
        max_workers: int | None = None,
        use_gpu: bool = False,
        cpus_per_worker: float = 1,
        gpus_per_worker: float | None = None,
        override_discovery: bool = True,
        reset_limit: int | None = None,
        cooldown_range: Sequence[float] | None = None,
        elastic_timeout: float = 600,
    ) -> None:
        self.settings = settings
        params = ElasticParams(
            cpus_per_worker,
            use_gpu,
            gpus_per_worker,
            min_workers,
            max_workers,
            reset_limit,
            cooldown_range,
            elastic_timeout,
            override_discovery,
        )
        self._share = Share(cpus_per_worker, params.gpus_per_worker or 0)
        self._limits = params.limits(start_seconds(settings))
        self._cooldown = params.cooldown()
        self._discovery: Any = getattr(settings, "discovery", None)
        if not override_discovery and self._discovery is None:
            raise ValueError("override_discovery=False needs settings.discovery")
        self._finds_nodes = override_discovery
        self._executable: tuple[Any, ...] = ()
        self._variables: dict[str, Any] = {}
        self._nodes: dict[str, None] = {}

    def start(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Note the workers' parameters; each call starts the workers."""
        self._executable = (executable_cls, executable_args, executable_kwargs)
        self._variables = dict(extra_env_vars or {})

    def run_remote(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Raises NotImplementedError: the number of workers is not fixed."""
        raise NotImplementedError(f"run_remote() {_NOT_ELASTIC}")

    def execute_single(self, *args: Any, **kwargs: Any) -> Any:
        """Raises NotImplementedError: the number of workers is not fixed."""
        raise NotImplementedError(f"execute_single() {_NOT_ELASTIC}")

    def shutdown(self) -> None:
        """Does nothing: workers end with their call."""

    def runs(self) -> bool:
        """Whether there are workers between calls."""
        return False

    def collect(self, folder: str, seconds: float | None = None) -> dict[str, bytes]:
        """The files of a folder on all nodes that have had workers, by name; deletes the folder."""
        return node_files.collect(self._nodes, folder)

    def _carry_out(self, method: str, what: Any, queue: Any, relay: crew.Relay | None) -> list[Any]:
        """The values, in the order in which processes were started. Nothing is left of the job.

        Raises `WorkerFailed` if the job has failed because a process has; RuntimeError for other
        reasons, such as too few nodes for too long.
        """
        work = Work(method, ray.put(what), self._variables, queue, self._executable)
        job = placed.new_job()
        interfaces = sorted(getattr(self.settings, "nics", None) or ())
        with selectors.DefaultSelector() as selector:
            driver = Driver(
                selector,
                Membership(self._limits, Exclusion(self._cooldown)),
                job=job["HVDTUNE_JOB_ID"],
                secret=job["HVDTUNE_SECRET"],
                heartbeat=float(knobs.from_environ().elastic_heartbeat),
                say=self._say,
            )
            actors = Actors(driver, job, work, self._share, interfaces)
            driver.starter = actors
            whose = self._discovery
            if self._finds_nodes:
                whose = discovery.NodeDiscovery(self._share, actors.count_on)
            found = lambda hosts: actors.post(partial(driver.hosts, hosts))  # noqa: E731
            failed = lambda why: actors.post(partial(driver.discovery_failed, why))  # noqa: E731
            try:
                with discovery.Lookout(whose, found, failed):
                    self._loop(driver, selector, relay)
            finally:
                self._nodes |= actors.nodes
                driver.stop()
                actors.close()
                driver.close()
        assert driver.end is not None
        if driver.end.status == 0:
            return [actors.results[rank] for rank in sorted(actors.results)]
        reason = actors.reason()
        text = f"The job has failed: {_in_python(driver.end.text)}"
        if reason is None:
            raise RuntimeError(text)
        raise crew.described(reason.member, reason.error, f"{text}\n") from reason.error

    def _loop(
        self, driver: Driver, selector: selectors.BaseSelector, relay: crew.Relay | None
    ) -> None:
        while driver.end is None:
            due = driver.next_due()
            left = None if due is None else max(0.0, due - time.monotonic())
            if relay is not None:
                left = _LOOK_SECONDS if left is None else min(left, _LOOK_SECONDS)
            for key, _ in selector.select(left):
                key.data()
            driver.advance(time.monotonic())
            if relay is not None:
                relay.pass_on()

    def _say(self, text: str) -> None:
        if getattr(self.settings, "verbose", 1):
            print(f"hvdtune: {_in_python(text)}", file=sys.stderr, flush=True)


def _in_python(text: str) -> str:
    """A sentence of the driver, with the names of `RayExecutor`'s parameters."""
    for flag, name in _PARAMETERS.items():
        text = text.replace(flag, name)
    return text
