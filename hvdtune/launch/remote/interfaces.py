"""The network interfaces of this host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hvdtune.core.meeting.addresses import addresses_of, ipv4_address, present_interfaces
from hvdtune.launch.errors import LaunchError

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


def loopback_interfaces() -> Sequence[str]:
    """The interfaces that carry 127.0.0.1, which a job on this host alone uses."""
    return [name for name in present_interfaces() if ipv4_address(name) == _LOOPBACK]


def addresses() -> dict[str, str]:
    """An address of each interface that has one: the first IPv4 address, otherwise IPv6."""
    return addresses_of(present_interfaces())
