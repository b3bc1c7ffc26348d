"""`RayExecutor`: starts workers on Ray, and calls functions on all of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import get_placement_group, remove_placement_group

from hvdtune.ray import crew, node_files, recording
from hvdtune.ray.adapter import BaseParams
from hvdtune.ray.coordinator import Coordinator
from hvdtune.ray.elastic.adapter import ElasticAdapter, ElasticParams
from hvdtune.ray.settings import MiniSettings, start_seconds
from hvdtune.ray.static_adapter import StaticAdapter
from hvdtune.ray.worker import BaseHorovodWorker
from hvdtune.settings import knobs

__all__ = [
    "BaseHorovodWorker", "Coordinator", "ElasticAdapter", "ElasticParams", "MiniSettings",
    "RayExecutor", "StaticAdapter", "StaticParams",
]  # fmt: skip

Callbacks = Sequence[Callable[[Any], Any]]

_BUSY_SECONDS = 10.0  # how long `shutdown` waits for calls of `run_remote`


@dataclass
class StaticParams(BaseParams):
    """The workers of a job with a fixed number of workers; see `RayExecutor`."""

    num_workers: int | None = None
    num_hosts: int | None = None
    num_workers_per_host: int = 1
    use_current_placement_group: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("num_workers", "num_hosts", "num_workers_per_host"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"{name}={value!r}: give a whole number, 1 or more")
        if (self.num_workers is None) == (self.num_hosts is None):
            raise ValueError(
                "give either num_workers, or num_hosts and num_workers_per_host; got "
                f"num_workers={self.num_workers!r} and num_hosts={self.num_hosts!r}"
            )

    @property
    def elastic(self) -> bool:
        """Whether the number of workers changes."""
        return False

    @property
    def adapter(self) -> type[StaticAdapter]:
        """The class that runs the job."""
        return StaticAdapter


class RayExecutor:
    """A job whose processes are Ray actors.

    `num_workers` places that many workers on as few hosts as Ray has room for. `num_hosts` puts
    `num_workers_per_host` on each of that many. Each gets `cpus_per_worker` CPUs and, with
    `use_gpu`, `gpus_per_worker` GPUs (1); every worker sees all GPUs of its host's workers, so a
    program picks its own by `local_rank()`. Within a placement group, such as that of a Ray Tune
    trial, the workers take its resources, unless `use_current_placement_group` is False.

    `settings` come from `create_settings`; any object with these attributes works. The workers
    get this process's settings of hvdtune and Horovod (HOROVOD_*, HVDTUNE_*).

    If a worker raises or dies, all workers end, and a `WorkerFailed` names its rank and shows its
    last lines; `start` makes new ones.

    `min_workers` makes the job elastic: it starts when there is room for that many workers, uses
    new nodes up to `max_workers`, and continues without nodes that disappear; `fn` must train with
    `hvd.elastic.run`. Each call of `run` or `execute` is a job of its own, and returns the values
    of the workers that are in it at its end, oldest first. The job ends with an error after more
    than `reset_limit` resets, and if room for `min_workers` is missing for `elastic_timeout`
    seconds. A node on which a worker fails gets no more workers, unless `cooldown_range` (shortest,
    longest; seconds) lets it return after that time. With `override_discovery` False,
    `settings.discovery` names the hosts.

    Raises ValueError for numbers that contradict each other.
    """

    @classmethod
    def create_settings(
        cls,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        ssh_str: str | None = None,
        placement_group_timeout_s: float = 100,
        nics: Collection[str] | None = None,
    ) -> MiniSettings:
        """Settings of a job.

        Args:
            timeout_s: seconds within which all ranks must have connected.
            placement_group_timeout_s: seconds within which Ray must have reserved the workers'
                resources.
            nics: names of network interfaces for the ranks' connections; None: those over which
                Ray's nodes communicate.
            ssh_identity_file, ssh_str: ssh is not used. A key in `ssh_str` is written to
                `ssh_identity_file`, as under Horovod, if there is no such file.
        """
        if ssh_str and ssh_identity_file and not os.path.exists(ssh_identity_file):
            descriptor = os.open(ssh_identity_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(ssh_str)
        return MiniSettings(
            nics=nics,
            ssh_identity_file=ssh_identity_file,
            timeout_s=timeout_s,
            placement_group_timeout_s=placement_group_timeout_s,
        )

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
        min_workers: int | None = None,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        cooldown_range: Sequence[int] | None = None,
        elastic_timeout: float = 600,
        override_discovery: bool = True,
    ) -> None:
        if max_workers and not min_workers:
            raise ValueError(f"max_workers={max_workers!r} needs min_workers, 1 or more")
        if min_workers and num_workers:
            raise ValueError(
                f"min_workers={min_workers!r} and num_workers={num_workers!r} exclude each other: "
                "a job is elastic or has a fixed number of workers"
            )
        self.settings = settings
        self.params: StaticParams | ElasticParams
        share = cpus_per_worker, use_gpu, gpus_per_worker
        if min_workers is not None:
            self.params = ElasticParams(
                *share,
                min_workers,
                max_workers,
                reset_limit,
                cooldown_range,
                elastic_timeout,
                override_discovery,
            )
        else:
            self.params = StaticParams(
                *share, num_workers, num_hosts, num_workers_per_host, use_current_placement_group
            )
        self.adapter: Any = None  # an actor if Ray is reached through its client
        self._is_remote = False
        self._group = ""  # the name of the placement group that the adapter makes, if it makes one
        self._recording: recording.Recording | None = None
        self._joins = True

    def start(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Start the workers.

        Args:
            executable_cls: each worker makes an object of this class, which `execute` passes to
                functions; the worker's place in the job is already in the environment.
            executable_args, executable_kwargs: the arguments of that class.
            extra_env_vars: environment variables of the workers.

        Raises TimeoutError, which names the resources, if Ray does not reserve them in time;
        `WorkerFailed` if an object cannot be made.
        """
        if self.adapter is not None and self._ask("runs"):
            raise RuntimeError("start(): the workers run already; call shutdown() first")
        self.shutdown()  # removes what a failure has left
        variables = self._variables(extra_env_vars or {})
        client = getattr(ray.util, "client", None)
        self._is_remote = client is not None and client.ray.is_connected()
        make: Any = self.params.adapter
        if self._is_remote:
            make = ray.remote(make).options(num_cpus=0).remote
        arguments = asdict(self.params)
        if self._is_remote and not self.params.elastic:
            self._group = arguments["group_name"] = f"hvdtune-{os.urandom(8).hex()}"
        self.adapter = make(self.settings, **arguments)
        try:
            self._ask(
                "start",
                executable_cls=executable_cls,
                executable_args=executable_args,
                executable_kwargs=executable_kwargs,
                extra_env_vars=variables,
            )
        except BaseException:
            with contextlib.suppress(Exception):
                self.timeline()
            self._forget()
            raise

    def execute(self, fn: Callable[[Any], Any], callbacks: Callbacks | None = None) -> list[Any]:
        """Call `fn(executable)` on all workers; returns their values, by rank.

        Calls each of `callbacks`, in this process, with all that rank 0 logs with `ray_logger.log`.
        """
        return self._call("execute", callbacks, fn=fn)

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Callbacks | None = None,
    ) -> list[Any]:
        """Call `fn(*args, **kwargs)` on all workers; their values by rank. See `execute`."""
        return self._call("run", callbacks, fn=fn, args=args, kwargs=kwargs)

    def run_remote(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """The same, without waiting: a reference for each rank, for `ray.get`.

        If a worker raises, the others' operations end with a `HorovodInternalError`.
        """
        return list(self._ask("run_remote", fn=fn, args=args, kwargs=kwargs))

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Call `fn(executable)` on rank 0 alone; returns its value."""
        return self._ask("execute_single", fn=fn)

    def timeline(self) -> str | None:
        """The path of the job's recording, joined from all ranks' files and fetched from all nodes.

        None unless HOROVOD_TIMELINE names a file, in this process or in `extra_env_vars`: the
        recording is written there, or beside it if that file exists. When the calls of `run_remote`
        have ended, the job ends on all ranks, as with `hvd.shutdown()`; they may begin another one.
        `shutdown` also fetches the recording if you have not.
        """
        if self.adapter is None:
            raise RuntimeError("timeline(): there are no workers: call start() first")
        return self._fetch(None)

    def _fetch(self, seconds: float | None) -> str | None:
        """The recording's path. Waits this long for calls that have not ended; None: until then."""
        asked, self._recording = self._recording, None
        files = self._ask("collect", folder=asked.folder, seconds=seconds) if asked else {}
        return recording.save(asked.path, files, self._joins) if asked and files else None

    def shutdown(self) -> None:
        """End the workers and release their resources. Does nothing if there are none."""
        if self.adapter is None:
            return
        try:
            try:
                if self._recording is not None:
                    self._fetch(_BUSY_SECONDS)
            finally:
                self._ask("shutdown")
                self._group = ""
        finally:
            self._forget()

    def _variables(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        """The variables of workers' environments besides their places, mostly settings."""
        own = (knob.env for knob in knobs.KNOBS.values() if not knob.internal)
        found: dict[str, Any] = {name: os.environ[name] for name in own if name in os.environ}
        seconds = start_seconds(self.settings)
        if seconds is not None:
            found[knobs.KNOBS["start_timeout"].env] = f"{seconds:g}"
        found |= extra
        self._recording = recording.asked_for(found)
        self._joins = found.get(knobs.KNOBS["timeline_format"].env) != "horovod"
        return found | (self._recording.on_nodes() if self._recording else {})

    def _call(self, method: str, callbacks: Callbacks | None, **arguments: Any) -> list[Any]:
        if not (self._is_remote and callbacks):
            return list(self._ask(method, callbacks=callbacks, **arguments))
        relay = crew.Relay(callbacks)
        try:
            reference = self._begin(method, queue=relay.queue, **arguments)
            try:
                crew.wait([reference], None, relay)
            except BaseException:  # raised by a callback: the workers must not go on alone
                self._abandon()
                raise
            return list(self._value(reference))
        finally:
            relay.close()

    def _ask(self, method: str, **arguments: Any) -> Any:
        if self._is_remote:
            return self._value(self._begin(method, **arguments))
        self._require_started()
        return getattr(self.adapter, method)(**arguments)

    def _begin(self, method: str, **arguments: Any) -> Any:
        self._require_started()
        return getattr(self.adapter, method).remote(**arguments)

    def _value(self, reference: Any) -> Any:
        """The value from the adapter's actor; raises its error as it was raised there."""
        try:
            return ray.get(reference)
        except RayTaskError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, TimeoutError | RuntimeError):
                raise cause from error
            raise
        except KeyboardInterrupt:
            self._abandon()
            raise

    def _require_started(self) -> None:
        if self.adapter is None:
            raise RuntimeError("there are no workers: call start() first")

    def _abandon(self) -> None:
        """End the adapter's actor, which no longer answers, and save what was recorded."""
        self._forget()
        asked, self._recording = self._recording, None
        if asked is not None:
            nodes = [node["NodeID"] for node in ray.nodes() if node["alive"]]
            files = node_files.collect(nodes, asked.folder)
            if files:
                recording.save(asked.path, files, self._joins)

    def _forget(self) -> None:
        """End the adapter's actor, if there is one, and everything it has made."""
        adapter, self.adapter = self.adapter, None
        if not self._is_remote or adapter is None:
            return
        with contextlib.suppress(RayError, ConnectionError):
            ray.kill(adapter)
        # The actor's own actors end with it, but Ray keeps its group until this program ends.
        if self._group:
            with contextlib.suppress(RayError, ConnectionError, ValueError):  # there is none
                remove_placement_group(get_placement_group(self._group))
