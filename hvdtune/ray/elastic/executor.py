"""`ElasticRayExecutor`, as Horovod had it before `RayExecutor(min_workers=…)`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hvdtune.ray.elastic.adapter import ElasticAdapter, ElasticParams
from hvdtune.ray.settings import MiniSettings


@dataclass
class ElasticSettings(MiniSettings):
    """The settings of an elastic job; see `ElasticRayExecutor.create_settings`."""

    min_num_proc: int = 1
    max_num_proc: int | None = None
    reset_limit: int | None = None
    elastic_timeout: float = 600
    cooldown_range: Sequence[float] | None = None
    discovery: Any = None


class ElasticRayExecutor:
    """Runs elastic jobs on Ray's nodes; `RayExecutor(settings, min_workers=…)` does the same.

    With `override_discovery` False, `settings.discovery` names the hosts: it is an object with
    `find_available_hosts_and_slots()`, which returns slots by the nodes' addresses.

    Raises ValueError for `gpus_per_slot` without `use_gpu`.
    """

    @staticmethod
    def create_settings(
        min_num_proc: int = 1,
        max_num_proc: int | None = None,
        reset_limit: int | None = None,
        elastic_timeout: float = 600,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        nics: Collection[str] | None = None,
        min_np: int | None = None,
        max_np: int | None = None,
        **kwargs: Any,
    ) -> ElasticSettings:
        """Settings of an elastic job.

        Args:
            min_num_proc, max_num_proc: bounds of the number of workers.
            reset_limit: how often the workers may be reassembled.
            elastic_timeout: seconds within which slots must be found, and ranks must connect again.
            timeout_s: seconds that a worker waits for others that were started with it.
            nics: names of network interfaces for the ranks' connections.
            min_np, max_np: old names (DeprecationWarning).
            kwargs: further attributes, such as `cooldown_range` and `discovery`.
        """
        for old, value, new in (
            ("min_np", min_np, "min_num_proc"),
            ("max_np", max_np, "max_num_proc"),
        ):
            if value is not None:
                warnings.warn(
                    f"{old} is deprecated, use {new} instead", DeprecationWarning, stacklevel=2
                )
        settings = ElasticSettings(
            nics=nics,
            ssh_identity_file=ssh_identity_file,
            timeout_s=timeout_s,
            elastic=True,
            min_num_proc=min_num_proc if min_np is None else min_np,
            max_num_proc=max_num_proc if max_np is None else max_np,
            reset_limit=reset_limit,
            elastic_timeout=elastic_timeout,
        )
        for name, value in kwargs.items():
            setattr(settings, name, value)
        return settings

    def __init__(
        self,
        settings: Any,
        use_gpu: bool = False,
        cpus_per_slot: float = 1,
        gpus_per_slot: float | None = None,
        env_vars: Mapping[str, Any] | None = None,
        override_discovery: bool = True,
    ) -> None:
        params = ElasticParams(cpus_per_slot, use_gpu, gpus_per_slot)
        self.settings = settings
        self._env_vars = dict(env_vars or {})
        self._adapter = ElasticAdapter(
            settings,
            settings.min_num_proc,
            settings.max_num_proc,
            use_gpu,
            cpus_per_slot,
            params.gpus_per_worker,
            override_discovery,
            settings.reset_limit,
            getattr(settings, "cooldown_range", None),
            settings.elastic_timeout,
        )

    def start(self) -> None:
        """Note the workers' variables; `run` starts the workers."""
        self._adapter.start(extra_env_vars=self._env_vars)

    def run(
        self,
        worker_fn: Callable[[], Any],
        callbacks: Sequence[Callable[[Any], Any]] | None = None,
    ) -> list[Any]:
        """The values of `worker_fn()` on the workers that return, the oldest first."""
        return self._adapter.run(worker_fn, callbacks=callbacks)
