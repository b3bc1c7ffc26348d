"""Where Ray puts the workers: the resources it reserves, and the actors that use them."""

from __future__ import annotations

import contextlib
from typing import Any

import ray
from ray.util.placement_group import (
    PlacementGroup,
    get_current_placement_group,
    placement_group,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from hvdtune.ray.settings import placement_seconds
from hvdtune.ray.worker import BaseHorovodWorker

Resources = dict[str, float]


def create_placement_group(
    resources_per_bundle: Resources, num_bundles: int, pg_timeout: float, pg_strategy: str
) -> tuple[PlacementGroup, list[Resources]]:
    """The group of bundles, once Ray has reserved them; and the bundles.

    Raises TimeoutError, which names the wanted and the existing resources, after `pg_timeout`
    seconds; then nothing is reserved.
    """
    return _named_group(resources_per_bundle, num_bundles, pg_timeout, pg_strategy, "")


def _named_group(
    resources_per_bundle: Resources,
    num_bundles: int,
    pg_timeout: float,
    pg_strategy: str,
    name: str,
) -> tuple[PlacementGroup, list[Resources]]:
    """The same, with a name by which others find the group; "" for none."""
    bundles = [dict(resources_per_bundle) for _ in range(num_bundles)]
    group = placement_group(bundles, strategy=pg_strategy, name=name)
    ready = False
    try:
        ready = group.wait(timeout_seconds=pg_timeout)
    finally:
        if not ready:
            remove_placement_group(group)
    if not ready:
        raise TimeoutError(
            f"Ray has not reserved {num_bundles} x {_shown(resources_per_bundle)} ({pg_strategy}) "
            f"within {pg_timeout:g} s: the cluster has {_shown(ray.cluster_resources())}, of which "
            f"{_shown(ray.available_resources())} is free. Ask for less, add nodes, or raise "
            "placement_group_timeout_s."
        )
    return group, bundles


def _shown(resources: Resources) -> str:
    counted = {name: resources.get(name, 0) for name in ("CPU", "GPU")}
    return ", ".join(f"{count:g} {name}" for name, count in counted.items())


class BaseStrategy:
    """A number of workers with equal CPUs and GPUs, and their placement group."""

    def __init__(
        self,
        *,
        settings: Any,
        use_gpu: bool,
        cpus_per_worker: float,
        gpus_per_worker: float | None,
        group_name: str = "",
    ) -> None:
        self.settings = settings
        self.use_gpu = use_gpu
        self.cpus_per_worker = cpus_per_worker
        self.gpus_per_worker = gpus_per_worker or 1
        self.group_name = group_name  # of the group that is made, if one is
        self.placement_group: PlacementGroup | None = None
        self.workers: list[Any] = []
        self._owns_group = False

    @property
    def num_workers(self) -> int:
        """How many workers there will be."""
        raise NotImplementedError

    def create_workers(self) -> list[Any]:
        """Reserve the resources, and make the actors. Raises TimeoutError."""
        raise NotImplementedError

    def resources_per_worker(self, workers: int = 1) -> Resources:
        """The resources of this many workers, by Ray's names."""
        gpus = self.gpus_per_worker * int(self.use_gpu)
        return {"CPU": self.cpus_per_worker * workers, "GPU": gpus * workers}

    def shutdown(self) -> None:
        """Release what was reserved; a group that already existed stays."""
        if self._owns_group and self.placement_group is not None:
            with contextlib.suppress(ray.exceptions.RayError):
                remove_placement_group(self.placement_group)
        self.workers = []
        self.placement_group = None
        self._owns_group = False

    def _reserve(self, resources: Resources, bundles: int, strategy: str) -> None:
        seconds = placement_seconds(self.settings)
        self.placement_group, _ = _named_group(
            resources, bundles, seconds, strategy, self.group_name
        )
        self._owns_group = True

    def _add_worker(self, bundle: int) -> None:
        assert self.placement_group is not None
        place = PlacementGroupSchedulingStrategy(
            self.placement_group,
            placement_group_bundle_index=bundle,
            placement_group_capture_child_tasks=False,
        )
        options = ray.remote(BaseHorovodWorker).options(
            num_cpus=self.cpus_per_worker,
            num_gpus=self.resources_per_worker()["GPU"],
            scheduling_strategy=place,
        )
        self.workers.append(
            options.remote(world_rank=len(self.workers), world_size=self.num_workers)
        )


class ColocatedStrategy(BaseStrategy):
    """The same number of workers on each of several hosts."""

    def __init__(self, *, num_hosts: int, num_workers_per_host: int, **resources: Any) -> None:
        super().__init__(**resources)
        self.num_hosts = num_hosts
        self.num_workers_per_host = num_workers_per_host

    @property
    def num_workers(self) -> int:
        """How many workers there will be."""
        return self.num_hosts * self.num_workers_per_host

    def create_workers(self) -> list[Any]:
        """Reserve a part of each host, and make the actors. Raises TimeoutError."""
        needed = self.resources_per_worker(self.num_workers_per_host)
        self._reserve(needed, self.num_hosts, "STRICT_SPREAD")
        for bundle in range(self.num_hosts):
            for _ in range(self.num_workers_per_host):
                self._add_worker(bundle)
        return self.workers


class PGStrategy(BaseStrategy):
    """A number of workers, on as few hosts as Ray has room for.

    They use the given placement group, or else the current one, as in a Ray Tune trial. With
    `force_create_placement_group`, or without a current group, they get a group of their own.
    """

    def __init__(
        self,
        *,
        num_workers: int,
        placement_group: PlacementGroup | None = None,
        force_create_placement_group: bool = False,
        **resources: Any,
    ) -> None:
        super().__init__(**resources)
        self._num_workers = num_workers
        if not force_create_placement_group:
            self.placement_group = placement_group or get_current_placement_group()

    @property
    def num_workers(self) -> int:
        """How many workers there will be."""
        return self._num_workers

    def create_workers(self) -> list[Any]:
        """Reserve a part for each worker if there is no group yet, and make the actors."""
        if self.placement_group is None:
            self._reserve(self.resources_per_worker(), self.num_workers, "PACK")
        for worker in range(self.num_workers):
            self._add_worker(worker if self._owns_group else -1)
        return self.workers
