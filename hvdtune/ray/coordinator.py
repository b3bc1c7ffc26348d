"""Places for workers that another program has placed, such as Ray Train."""

from __future__ import annotations

from typing import Any

import ray

from hvdtune.core.libraries.network import FIRST_PORT, PORTS
from hvdtune.launch import placed
from hvdtune.launch.allocation.hosts import Host, assign_ranks
from hvdtune.launch.remote import rendezvous


class Coordinator:
    """Notes each worker's node, then gives the variables that make a job of the workers.

    The workers keep their ranks. `RayExecutor` does not need it.
    """

    def __init__(self, settings: Any) -> None:
        self.settings = settings
        self.node_id_by_rank: dict[str, list[int]] = {}  # the ranks on each node
        self.hostnames: set[str] = set()

    @property
    def world_size(self) -> int:
        """How many workers are registered."""
        return sum(map(len, self.node_id_by_rank.values()))

    @property
    def node_id_string(self) -> str:
        """The nodes and how many workers each has: "a:2,b:1"."""
        return ",".join(f"{node}:{len(ranks)}" for node, ranks in self.node_id_by_rank.items())

    def register(self, hostname: str, node_id: str, world_rank: int) -> None:
        """Note the node of the worker with this rank."""
        self.hostnames.add(hostname)
        self.node_id_by_rank.setdefault(node_id, []).append(world_rank)

    def finalize_registration(self) -> dict[int, dict[str, int]]:
        """By rank: HOROVOD_LOCAL_RANK, HOROVOD_LOCAL_SIZE, HOROVOD_CROSS_RANK, HOROVOD_CROSS_SIZE.

        Local ranks are counted in the order of registration.
        """
        nodes = [Host(node, len(ranks)) for node, ranks in self.node_id_by_rank.items()]
        ranks = [rank for those in self.node_id_by_rank.values() for rank in those]
        return {
            rank: {
                "HOROVOD_CROSS_RANK": slot.cross_rank,
                "HOROVOD_CROSS_SIZE": slot.cross_size,
                "HOROVOD_LOCAL_RANK": slot.local_rank,
                "HOROVOD_LOCAL_SIZE": slot.local_size,
            }
            for rank, slot in zip(ranks, assign_ranks(nodes, self.world_size), strict=True)
        }

    def establish_rendezvous(self) -> dict[str, str]:
        """The variables that all workers share; with them, workers find rank 0 of a new job.

        Raises ValueError if no worker with rank 0 is registered, or Ray does not know its node.
        """
        first = [node for node, ranks in self.node_id_by_rank.items() if 0 in ranks]
        addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
        if not first or first[0] not in addresses:
            where = f"is on node {first[0]!r}, which Ray does not know" if first else "is missing"
            raise ValueError(f"establish_rendezvous(): the worker with rank 0 {where}")
        job = placed.new_job()
        if len(self.node_id_by_rank) == 1:
            return job
        # The free ports of another host are unknown; if this one is taken, the engine says so.
        port = FIRST_PORT + int(job["HVDTUNE_JOB_ID"][:8], 16) % PORTS
        return {**job, **rendezvous.variables(addresses[first[0]], port, ())}
