"""The network interfaces of this host, and those that the user names for a job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hvdtune.core.libraries.network import INTERFACES, interface_names
from hvdtune.core.meeting.addresses import addresses_of, ipv4_address, present_interfaces
from hvdtune.launch.errors import LaunchError

_LOOPBACK = "127.0.0.1"
FLAG = "--network-interfaces"


class Interfaces(NamedTuple):
    """The interfaces that the user has named for a job on several hosts.

    `setting` is what has named them, for messages: `FLAG`, a function's argument, or the variable.
    """

    names: Sequence[str] = ()
    setting: str = FLAG

    @property
    def by_flag(self) -> Sequence[str]:
        """Those of the flag or argument: it is for this job, while a variable may be for many."""
        return () if self.setting == INTERFACES else self.names

    def require(self, present: Sequence[str], host: str = "this host") -> None:
        """Raise `LaunchError` for an interface that is not among those present on a host."""
        for name in self.names:
            if name not in present:
                raise LaunchError(
                    f"{self.setting}: {host} has no interface {name!r}; it has "
                    f"{', '.join(present)}."
                )

    def address(self, there: Mapping[str, str], host: str) -> str:
        """The first of a host's addresses, by interface, that belongs to one of these.

        Raises `LaunchError` if none does.
        """
        found = next((there[name] for name in self.names if there.get(name)), "")
        if not found:
            raise LaunchError(
                f"{self.setting}: on {host} none of {', '.join(self.names)} has an address that "
                "other hosts can use."
            )
        return found


def named_interfaces(flags: Iterable[str] | None, variable: str) -> Interfaces:
    """Those of --network-interfaces a,b and --network-interface c, otherwise of the variable."""
    by_flag = Interfaces(interface_names(",".join(flags or ())))
    return by_flag if by_flag.names else Interfaces(interface_names(variable), INTERFACES)


def loopback_interfaces() -> Sequence[str]:
    """The interfaces that carry 127.0.0.1, which a job on this host alone uses."""
    return [name for name in present_interfaces() if ipv4_address(name) == _LOOPBACK]


def addresses() -> dict[str, str]:
    """An address of each interface that has one: the first IPv4 address, otherwise IPv6."""
    return addresses_of(present_interfaces())
