"""The hosts of an elastic job: Ray's nodes, or those that the user's own discovery finds."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import ray

from hvdtune.launch.allocation.hosts import Host

_SECONDS = 1.0  # between an answer and the next question
_UNIT = 10_000  # Ray counts resources in these parts


class Share(NamedTuple):
    """What Ray gives to each process."""

    cpus: float
    gpus: float


def _fits(resource: float, share: float) -> int:
    """How many shares a resource has; exact, unlike the division of floating-point numbers."""
    return round(resource * _UNIT) // max(1, round(share * _UNIT))


def slots_of(
    nodes: Iterable[Mapping[str, Any]],
    cpus_per_slot: float,
    gpus_per_slot: float | None,
    name: str = "NodeManagerAddress",
) -> dict[str, int]:
    """How many slots each living Ray node has, by this field; nodes without slots are left out.

    `gpus_per_slot` None: a slot needs no GPU.
    """
    found = {}
    for node in nodes:
        resources = node["Resources"]
        slots = _fits(resources.get("CPU", 0), cpus_per_slot)
        if gpus_per_slot is not None:
            slots = min(slots, _fits(resources.get("GPU", 0), gpus_per_slot))
        if node["alive"] and slots:
            found[node[name]] = slots
    return found


class RayHostDiscovery:
    """Finds the hosts of a job among Ray's nodes; counts all resources of the nodes."""

    def __init__(
        self, use_gpu: bool = False, cpus_per_slot: float = 1, gpus_per_slot: float = 1
    ) -> None:
        self.use_gpu = use_gpu
        self.cpus_per_slot = cpus_per_slot
        self.gpus_per_slot = gpus_per_slot

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """The addresses of living nodes, and how many slots each has."""
        return self._slots("NodeManagerAddress")

    def _slots(self, name: str) -> dict[str, int]:
        gpus = self.gpus_per_slot if self.use_gpu else None
        return slots_of(ray.nodes(), self.cpus_per_slot, gpus, name)


class TestDiscovery(RayHostDiscovery):
    """Hides and shows nodes at random, to test how a training function copes with it.

    Every `change_frequency_s` seconds it hides a node if there are `max_hosts` or more, or shows a
    hidden one if there are `min_hosts` or fewer; in between, chance decides. With `verbose`, it
    prints the result. Nodes are hidden, not ended: `_graceful` must be true.
    """

    __test__ = False  # pytest would collect a class with this name

    def __init__(
        self,
        min_hosts: int,
        max_hosts: int,
        change_frequency_s: float,
        use_gpu: bool = False,
        cpus_per_slot: float = 1,
        gpus_per_slot: float = 1,
        verbose: bool = True,
        _graceful: bool = True,
    ) -> None:
        if not _graceful:
            raise ValueError("_graceful=False is not accepted: TestDiscovery ends no nodes")
        super().__init__(use_gpu, cpus_per_slot, gpus_per_slot)
        self._bounds = min_hosts, max_hosts
        self._every = change_frequency_s
        self._verbose = verbose
        self._hidden: set[str] = set()
        self._changed_at: float | None = None

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """The addresses of nodes that are not hidden, and how many slots each has."""
        hosts, now = super().find_available_hosts_and_slots(), time.monotonic()
        self._hidden &= hosts.keys()
        if self._changed_at is None:
            self._changed_at = now
        elif now - self._changed_at >= self._every:
            self._changed_at = now
            self._change(sorted(hosts.keys() - self._hidden))
        shown = {host: slots for host, slots in hosts.items() if host not in self._hidden}
        if self._verbose:
            print(f"{len(shown)} of {len(hosts)} hosts: {shown}", flush=True)
        return shown

    def _change(self, shown: Sequence[str]) -> None:
        fewest, most = self._bounds
        goes = len(shown) >= most or (len(shown) > fewest and random.random() < 0.5)
        if goes and shown:
            self._hidden.add(random.choice(shown))
        elif self._hidden:
            self._hidden.remove(random.choice(sorted(self._hidden)))


class NodeDiscovery(RayHostDiscovery):
    """The same by node ids, as several nodes may share an address. Omits resources others use.

    `own`: how many of the job's processes run on a node; None while some are being started there,
    because then it is unknown whether Ray already counts their resources.
    """

    def __init__(self, share: Share, own: Callable[[str], int | None]) -> None:
        super().__init__(share.gpus > 0, share.cpus, share.gpus)
        self._own = own
        self._last: dict[str, int] = {}

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """The ids of living nodes, and how many slots each has for the job."""
        free, found = _free_by_node(), {}
        for node, slots in self._slots("NodeID").items():
            own = self._own(node)
            if own is None and node in self._last:
                found[node] = self._last[node]
            elif node in free:
                left = _fits(free[node].get("CPU", 0), self.cpus_per_slot)
                if self.use_gpu:
                    left = min(left, _fits(free[node].get("GPU", 0), self.gpus_per_slot))
                found[node] = min(slots, (own or 0) + left)
            else:
                found[node] = slots
        self._last = {node: slots for node, slots in found.items() if slots}
        return self._last


def _free_by_node() -> Mapping[str, Mapping[str, float]]:
    """The free part of each node's resources; nothing if this Ray version does not report it."""
    try:
        from ray._private.state import available_resources_per_node
    except ImportError:
        return {}
    return available_resources_per_node()  # type: ignore[no-any-return, unused-ignore]


class Lookout:
    """Queries a discovery repeatedly, in a thread of its own. A context manager."""

    def __init__(
        self,
        discovery: Any,
        found: Callable[[Sequence[Host]], None],
        failed: Callable[[str], None],
    ) -> None:
        self._discovery = discovery
        self._found = found
        self._failed = failed
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._look, name="hvdtune-discovery", daemon=True)

    def __enter__(self) -> Lookout:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ends.set()
        self._thread.join(timeout=_SECONDS)  # a user's discovery may take longer

    def _look(self) -> None:
        while not self._ends.is_set():
            try:
                slots = self._discovery.find_available_hosts_and_slots()
                hosts = [Host(name, int(count)) for name, count in slots.items()]
            except Exception as error:
                self._failed(f"{type(error).__name__}: {error}")
            else:
                self._found(hosts)
            self._ends.wait(_SECONDS)
