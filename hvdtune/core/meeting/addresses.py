"""The addresses of this host's network interfaces."""

from __future__ import annotations

from collections.abc import Collection

_SIOCGIFFLAGS, _SIOCGIFADDR = 0x8913, 0x8915
_UP, _LOOPBACK, _RUNNING = 0x1, 0x8, 0x40
# The kernel's list, one address per line: digits, number of the interface, length of the prefix,
# scope, flags, name of the interface.
_IPV6_ADDRESSES = "/proc/net/if_inet6"
_LINK_SCOPE = 0x20
_OWN_MAKING = "169.254."  # RFC 3927


def present_interfaces() -> list[str]:
    """The names of this host's interfaces, in the kernel's order."""
    import socket  # here and below: a job on one host does not need it

    return [name for _, name in socket.if_nameindex()]


def addresses_of(names: Collection[str]) -> dict[str, str]:
    """An address of each interface that has one: the first IPv4 address, otherwise IPv6."""
    found = {name: ipv4_address(name) or ipv6_address(name) for name in names}
    return {name: address for name, address in found.items() if address}


def reachable() -> dict[str, str]:
    """An address of each interface at which other hosts may reach this one."""
    found = addresses_of([name for name in present_interfaces() if _leads_out(name)])
    # Addresses that interfaces give themselves, such as a board controller's, reach no other host.
    known = {name: text for name, text in found.items() if not text.startswith(_OWN_MAKING)}
    return known or found


def ipv4_address(interface: str) -> str | None:
    """The interface's first IPv4 address."""
    import socket

    answer = _ask(interface, _SIOCGIFADDR)
    return socket.inet_ntoa(answer[20:24]) if answer else None


def ipv6_address(interface: str) -> str | None:
    """The interface's first IPv6 address whose scope is wider than its link."""
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


def _leads_out(interface: str) -> bool:
    answer = _ask(interface, _SIOCGIFFLAGS)
    flags = int.from_bytes(answer[16:18], "little") if answer else 0
    return flags & (_UP | _RUNNING | _LOOPBACK) == _UP | _RUNNING


def _ask(interface: str, question: int) -> bytes | None:
    import fcntl
    import socket
    import struct

    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            return fcntl.ioctl(any_socket.fileno(), question, request)
        except OSError:
            return None  # it has none
