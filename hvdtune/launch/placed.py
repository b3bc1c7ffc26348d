"""A job whose processes another system has placed and started: Ray's actors, Spark's tasks.

Each process describes itself (`this_process`). From all descriptions `environments` makes the
variables that make each process a rank. A process adopts them before it imports a framework
(`become`, or `environment` for a child). Nothing is contacted, and the same descriptions always
give the same variables.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hvdtune.launch.allocation.hosts import Host, Slot, assign_ranks
from hvdtune.launch.errors import LaunchError
from hvdtune.launch.local import environment as environments_of_workers
from hvdtune.launch.remote import identity, rendezvous
from hvdtune.launch.remote.interfaces import Interfaces

GPUS = "CUDA_VISIBLE_DEVICES"


class PlacedProcess(NamedTuple):
    """The facts needed to give a process a place. `_asdict()` is ready for JSON.

    `host` is the same text in processes that count as on one host, whose local ranks are counted
    together. `hostname` is that host's name in messages and HOROVOD_HOSTNAME. Other hosts reach it
    at `address`, and at those of its network `interfaces` (name: address). `port` is free there.
    `gpus` are the devices that were given to this process, as CUDA_VISIBLE_DEVICES names them.
    """

    host: str
    hostname: str
    machine: str
    address: str
    interfaces: Mapping[str, str]
    port: int
    version: str
    gpus: Sequence[str] = ()


def this_process(
    host: str = "", hostname: str = "", address: str = "", gpus: Sequence[str] = ()
) -> PlacedProcess:
    """The facts about the calling process; it finds out those that are not given.

    Without `host`, processes count as on one host if they run on the same machine, in the same
    network namespace, as the same user.
    """
    from hvdtune.core.meeting import addresses, place

    facts = identity.facts()
    return PlacedProcess(
        host=host or facts["machine"],
        hostname=hostname or facts["hostname"],
        machine=facts["machine"],
        address=address or next(iter(addresses.reachable().values()), "127.0.0.1"),
        interfaces=facts["addresses"],
        port=place.free_port(),
        version=facts["version"],
        gpus=list(gpus),
    )


def new_job() -> dict[str, str]:
    """The name and the key of a new job, for `environments`; both must stay secret."""
    return environments_of_workers.new_job()


def environments(
    processes: Sequence[PlacedProcess], job: Mapping[str, str], interfaces: Sequence[str] = ()
) -> list[dict[str, str]]:
    """The variables that make each process a rank of the job, in the order of `processes`.

    Ranks are counted host by host, beginning with the host of processes[0], which is rank 0; a
    host's processes keep their order. On several hosts the variables lead to rank 0, at its
    `address` or at its address on the first of `interfaces` that has one. If a host's processes
    were given GPUs, each sees all of these, in the order of local ranks.

    Raises `LaunchError` if a process has another version of hvdtune than processes[0], or lacks one
    of the interfaces, or if other machines cannot reach rank 0's.
    """
    _require_alike(processes, interfaces)
    hosts: dict[str, list[int]] = {}  # the numbers of each host's processes
    for number, process in enumerate(processes):
        hosts.setdefault(process.host, []).append(number)
    slots = assign_ranks(
        [Host(processes[numbers[0]].hostname, len(numbers)) for numbers in hosts.values()],
        len(processes),
    )
    shared = dict(job)
    if len(hosts) > 1:
        address = meeting_address(processes, interfaces)
        shared |= rendezvous.variables(address, processes[0].port, interfaces)
    found: list[dict[str, str]] = [{}] * len(processes)
    in_rank_order = [number for numbers in hosts.values() for number in numbers]
    for number, slot in zip(in_rank_order, slots, strict=True):
        there = [processes[other] for other in hosts[processes[number].host]]
        found[number] = {**shared, **_place(slot, there)}
    return found


def environment(base: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a process that becomes a rank and would otherwise have `base`.

    Variables of `base` that give a place in another job are left out; `import horovod` finds
    hvdtune.
    """
    without = environments_of_workers.without_place(base)
    return {**without, **environments_of_workers.with_alias(base), **variables}


def become(variables: Mapping[str, str]) -> None:
    """Make the calling process the rank that `environments` describes."""
    new = environment(os.environ, variables)
    for name in set(os.environ) - set(new):
        del os.environ[name]
    os.environ.update(new)
    alias = environments_of_workers.alias_folder(os.environ)
    sys.path[:] = [*alias, *(entry for entry in sys.path if entry not in alias)]


def _require_alike(processes: Sequence[PlacedProcess], interfaces: Sequence[str]) -> None:
    first, named = processes[0], Interfaces(interfaces, "network interfaces")
    for process in processes:
        if process.version != first.version:
            raise LaunchError(
                f"host {process.hostname} has hvdtune {process.version}, "
                f"host {first.hostname} has {first.version}: install the same version on both."
            )
        named.require(list(process.interfaces), f"host {process.hostname}")


def meeting_address(processes: Sequence[PlacedProcess], interfaces: Sequence[str]) -> str:
    """The address at which the others find the host of processes[0], which is rank 0.

    Raises `LaunchError` if there is none.
    """
    first = processes[0]
    if interfaces:
        return first.interfaces[interfaces[0]]
    if all(process.machine == first.machine for process in processes):
        return first.address
    # A host may know itself by an address that means another machine on other hosts.
    candidates = (first.address, *first.interfaces.values())
    for address in candidates:
        if not _is_loopback(address):
            return address
    raise LaunchError(
        f"host {first.hostname}, where rank 0 is, has no address that other hosts can use: it has "
        f"{', '.join(dict.fromkeys(candidates))}."
    )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return address == "localhost"  # a name


def _place(slot: Slot, there: Sequence[PlacedProcess]) -> dict[str, str]:
    """`there`: all processes of the slot's host, by local rank."""
    gpus = dict.fromkeys(gpu for process in there for gpu in process.gpus)
    visible = {GPUS: ",".join(gpus)} if gpus else {}
    return {**environments_of_workers.place(slot), **visible}
