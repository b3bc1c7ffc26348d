"""Jobs on Ray whose number of workers changes: what of them there is in this version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import ray

UNSUPPORTED = (
    "this version of hvdtune does not run elastic jobs on Ray: use RayExecutor with num_workers, "
    "or with num_hosts and num_workers_per_host"
)


def slots_of(
    nodes: Iterable[Mapping[str, Any]], cpus_per_slot: float, gpus_per_slot: float | None
) -> dict[str, int]:
    """How many slots each of Ray's living nodes has, by its address; nodes without one are left
    out. `gpus_per_slot` None: a slot needs no GPU."""
    found = {}
    for node in nodes:
        resources = node["Resources"]
        slots = resources.get("CPU", 0) // cpus_per_slot
        if gpus_per_slot is not None:
            slots = min(slots, resources.get("GPU", 0) // gpus_per_slot)
        if node["alive"] and slots:
            found[node["NodeManagerAddress"]] = int(slots)
    return found


class RayHostDiscovery:
    """Finds the hosts of a job among Ray's nodes, all of whose resources it counts."""

    def __init__(
        self, use_gpu: bool = False, cpus_per_slot: float = 1, gpus_per_slot: float = 1
    ) -> None:
        self.use_gpu = use_gpu
        self.cpus_per_slot = cpus_per_slot
        self.gpus_per_slot = gpus_per_slot

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """The addresses of living nodes, and how many slots each has."""
        gpus = self.gpus_per_slot if self.use_gpu else None
        return slots_of(ray.nodes(), self.cpus_per_slot, gpus)


class ElasticRayExecutor:
    """Horovod's executor of elastic jobs; making one raises NotImplementedError."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(f"ElasticRayExecutor: {UNSUPPORTED}")
