"""Hosts and their slots, and which rank runs where.

Ranks fill the hosts in the order given, all slots of a host before the next. A rank's local rank
is its index on its host; its cross rank is the host's index among those that have that local
rank. The number of processes is the one asked for, however many slots the hosts offer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from hvdtune.launch.errors import LaunchError

# ssh would take a name that begins with a dash for an option.
_NAME = r"[\w.][\w.-]*"
_ENTRY = rf"({_NAME}):([0-9]+)"
# What else Open MPI's hostfiles may say about a host; hvdtune ignores it.
_IGNORED_HOSTFILE_KEYS = {"max_slots", "max-slots", "sockets", "cores", "boards", "username"}


class Host(NamedTuple):
    """A machine and the number of processes it takes."""

    name: str
    slots: int


class Slot(NamedTuple):
    """The place of one process."""

    hostname: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


def parse_hosts(text: str, setting: str = "--hosts") -> list[Host]:
    """Read `-H host1:2,host2:4`; a host named twice gets the slots of both entries.

    Raises `LaunchError` naming the setting and the entry that is not `name:slots`.
    """
    hosts = []
    for entry in text.split(","):
        match = re.fullmatch(_ENTRY, entry.strip())
        if not match:
            raise LaunchError(
                f"{setting} entry {entry.strip()!r} is not accepted: "
                "give name:slots, several separated by commas, such as localhost:4,node2:4."
            )
        hosts.append(Host(match[1], int(match[2])))
    return _merged(hosts)


def read_hostfile(path: str, setting: str = "--hostfile") -> list[Host]:
    """Read a hostfile in Open MPI's format: `name slots=4 max_slots=8`, one host a line.

    Comments start with `#`; without `slots=` each mention of a host is one slot; `name:4` is
    accepted as well. Raises `LaunchError` naming file and line.
    """
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise LaunchError(f"{setting} {path} cannot be read: {reason}.") from None
    hosts = []
    for number, line in enumerate(lines, start=1):
        words = re.sub(r"\s*=\s*", "=", line.partition("#")[0]).split()
        if words:
            hosts.append(_hostfile_host(words, f"{path}, line {number}"))
    if not hosts:
        raise LaunchError(f"{setting} {path} names no host.")
    return _merged(hosts)


def _hostfile_host(words: list[str], where: str) -> Host:
    name, slots = words[0], 1
    entry = re.fullmatch(_ENTRY, name)
    if entry:
        name, slots = entry[1], int(entry[2])
    else:
        require_name(name, where, "give letters, digits, dots and dashes, such as node1 slots=4.")
    for word in words[1:]:
        key, _, value = word.partition("=")
        if key not in {"slots", *_IGNORED_HOSTFILE_KEYS} or not value:
            raise LaunchError(
                f"{where}: {word!r} is not accepted: after the host's name give slots=N."
            )
        if key == "slots":
            if not re.fullmatch(r"[0-9]+", value):
                raise LaunchError(f"{where}: slots={value!r} is not a whole number.")
            slots = int(value)
    return Host(name, slots)


def require_name(name: str, where: str, advice: str = "it would reach ssh's command line.") -> None:
    """Raise `LaunchError`, naming the place, if `name` cannot be the name of a host."""
    if not re.fullmatch(_NAME, name):
        raise LaunchError(f"{where}: {name!r} is not the name of a host: {advice}")


def _merged(hosts: Iterable[Host]) -> list[Host]:
    slots: dict[str, int] = {}
    for host in hosts:
        slots[host.name] = slots.get(host.name, 0) + host.slots
    return [Host(name, count) for name, count in slots.items()]


def assign_ranks(hosts: Iterable[Host], count: int) -> list[Slot]:
    """Give `count` processes their places; the result is in rank order.

    Raises `LaunchError` if the hosts have fewer slots than that.
    """
    hosts = list(hosts)
    available = sum(host.slots for host in hosts)
    if count > available:
        raise LaunchError(
            f"Requested more processes ({count}) than there are available slots ({available})."
        )
    places: list[tuple[int, int]] = []  # (host's index, local rank), by rank
    for index, host in enumerate(hosts):
        taken = min(host.slots, count - len(places))
        places += [(index, local_rank) for local_rank in range(taken)]
    local_sizes = [sum(host == index for host, _ in places) for index in range(len(hosts))]
    slots = []
    for rank, (index, local_rank) in enumerate(places):
        peers = [peer for peer, size in enumerate(local_sizes) if size > local_rank]
        slots.append(
            Slot(
                hostname=hosts[index].name,
                rank=rank,
                size=count,
                local_rank=local_rank,
                local_size=local_sizes[index],
                cross_rank=peers.index(index),
                cross_size=len(peers),
            )
        )
    return slots


def is_local(name: str) -> bool:
    """Whether a host's name means this machine: by name, or by resolving to one of its addresses.

    An address is this machine's if a socket can be bound to it. If the kernel lets a socket be
    bound to any address (ip_nonlocal_bind), packets to it must also have it as their source.
    """
    if name in ("localhost", os.uname().nodename):
        return True
    import socket

    from hvdtune.launch import interruption

    try:
        with interruption.fatal():
            found = socket.getaddrinfo(name, 0, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return False
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
            if not _binds_to_any_address(family) or _is_own_peer(family, kind, protocol, address):
                return True
        except OSError:
            continue
    return False


def _binds_to_any_address(family: int) -> bool:
    import socket

    version = "ipv6" if family == socket.AF_INET6 else "ipv4"
    try:
        with open(f"/proc/sys/net/{version}/ip_nonlocal_bind") as file:
            return file.read().strip() != "0"
    except OSError:
        return False


def _is_own_peer(family: int, kind: int, protocol: int, address: Any) -> bool:
    """Whether packets to an address would also have it as their source. Sends nothing."""
    import ipaddress
    import socket

    if ipaddress.ip_address(address[0].partition("%")[0]).is_loopback:
        return True
    with socket.socket(family, kind, protocol) as probe:
        probe.connect((address[0], 9, *address[2:]))  # connect() needs some port
        return bool(probe.getsockname()[0] == address[0])
