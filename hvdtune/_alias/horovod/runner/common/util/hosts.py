"""Hosts, their slots, and which rank runs where."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from hvdtune.launch.allocation import hosts as places


@dataclass(frozen=True)
class HostInfo:
    """A host and the number of processes that it takes."""

    hostname: str
    slots: int

    @staticmethod
    def from_string(host_string: str) -> HostInfo:
        """Read `name:slots`. Raises ValueError for any other form."""
        [host] = places.parse_hosts(host_string, "host_string:")
        return HostInfo(host.name, host.slots)


@dataclass(frozen=True)
class SlotInfo:
    """The place of one process."""

    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int
    local_size: int
    cross_size: int

    def to_response_string(self) -> str:
        """The numbers as `rank,size,local_rank,local_size,cross_rank,cross_size`."""
        return (
            f"{self.rank},{self.size},{self.local_rank},{self.local_size},"
            f"{self.cross_rank},{self.cross_size}"
        )


INVALID_SLOT_INFO = SlotInfo("", -1, -1, -1, -1, -1, -1)


def parse_hosts(hosts_string: str) -> list[HostInfo]:
    """Read `host1:2,host2:4`. Raises ValueError naming the entry that is not `name:slots`."""
    return [HostInfo(*host) for host in places.parse_hosts(hosts_string, "hosts_string:")]


def parse_host_files(filename: str | os.PathLike[str]) -> str:
    """A hostfile's hosts as `host1:2,host2:4`. Raises ValueError naming a wrong line."""
    found = places.read_hostfile(os.fspath(filename), "filename")
    return ",".join(f"{host.name}:{host.slots}" for host in found)


def get_host_assignments(
    hosts: Sequence[HostInfo], min_num_proc: int, max_num_proc: int | None = None
) -> list[SlotInfo]:
    """The place of every process in rank order: one for each slot, up to `max_num_proc`.

    Raises ValueError if the hosts have fewer than `min_num_proc` slots.
    """
    available = sum(host.slots for host in hosts)
    count = available if max_num_proc is None else min(available, max_num_proc)
    given = [places.Host(*astuple(host)) for host in hosts]
    slots = places.assign_ranks(given, max(count, min_num_proc))
    return [
        SlotInfo(
            slot.hostname, slot.rank, slot.local_rank, slot.cross_rank,
            slot.size, slot.local_size, slot.cross_size,
        )
        for slot in slots
    ]  # fmt: skip
