"""The network interfaces of this host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hvdtune.launch.errors import LaunchError

_SIOCGIFADDR = 0x8915
_LOOPBACK = "127.0.0.1"
# The kernel's list, a line an address: its digits, number of the interface, length of the prefix,
# scope, flags, name of the interface.
_IPV6_ADDRESSES = "/proc/net/if_inet6"
_LINK_SCOPE = 0x20


def given_interfaces(flags: Iterable[str] | None) -> list[str]:
    """The names in --network-interfaces a,b and --network-interface a, each once, in order."""
    names = (name.strip() for flag in flags or () for name in flag.split(","))
    return list(dict.fromkeys(name for name in names if name))


def require_interfaces(
    names: Iterable[str],
    present: Sequence[str],
    host: str = "this host",
    setting: str = "--network-interfaces",
) -> None:
    """Raise `LaunchError` for an interface that is not among those present on a host."""
    for name in names:
        if name not in present:
            raise LaunchError(
                f"{setting}: {host} has no interface {name!r}; it has {', '.join(present)}."
            )


def present_interfaces() -> list[str]:
    """The names of this host's interfaces, in the kernel's order."""
    import socket  # here and below: a job without other hosts and interfaces does not need it

    return [name for _, name in socket.if_nameindex()]


def loopback_interfaces() -> Sequence[str]:
    """The interfaces that carry 127.0.0.1: what a job on this host alone uses."""
    return [name for name in present_interfaces() if _address(name) == _LOOPBACK]


def addresses() -> dict[str, str]:
    """An address of each interface that has one: the first of IPv4, or else of IPv6."""
    found = {name: _address(name) or _ipv6_address(name) for name in present_interfaces()}
    return {name: address for name, address in found.items() if address}


def _address(interface: str) -> str | None:
    """The interface's first IPv4 address."""
    import fcntl
    import socket
    import struct

    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, request)
        except OSError:
            return None  # it has none
    return socket.inet_ntoa(answer[20:24])


def _ipv6_address(interface: str) -> str | None:
    """The interface's first IPv6 address that is known beyond its link."""
    import socket

    try:
        with open(_IPV6_ADDRESSES, encoding="ascii") as file:
            lines = [line.split() for line in file]
    except OSError:
        return None  # a kernel without IPv6
    for digits, _, _, scope, _, name in lines:
        if name == interface and int(scope, 16) != _LINK_SCOPE:
            return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
    return None
