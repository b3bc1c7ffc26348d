"""This host's interfaces, addresses and names."""

from __future__ import annotations

from collections.abc import Iterable

from hvdtune.core.meeting.addresses import present_interfaces
from hvdtune.launch.allocation import hosts
from hvdtune.launch.remote import interfaces


def get_local_host_intfs() -> set[str]:
    """The names of this host's interfaces."""
    return set(present_interfaces())


def get_local_host_addresses() -> set[str]:
    """An address of each interface that has one."""
    return set(interfaces.addresses().values())


def filter_local_addresses(all_host_names: Iterable[str]) -> list[str]:
    """The names that mean other hosts."""
    return [name for name in all_host_names if not hosts.is_local(name)]
