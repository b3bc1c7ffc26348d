"""The network interfaces of this host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hvdtune.launch.errors import LaunchError

_SIOCGIFADDR = 0x8915
_LOOPBACK = "127.0.0.1"


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
    """The first IPv4 address of each interface that has one."""
    found = {name: _address(name) for name in present_interfaces()}
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
