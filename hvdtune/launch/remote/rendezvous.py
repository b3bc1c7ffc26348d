"""Where the ranks of a job on several hosts meet: an address of rank 0's host, and a port there."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from hvdtune.core.libraries.network import ADDRESS, FIRST_PORT, INTERFACES, PORT, PORTS
from hvdtune.launch.allocation.hosts import is_local
from hvdtune.launch.remote.interfaces import Interfaces, addresses

_TRIES = 20


def over_ssh(
    hosts: Sequence[str],
    own: Mapping[str, Any],
    found: Mapping[str, Mapping[str, Any]],
    interfaces: Interfaces,
) -> dict[str, str]:
    """The variables that lead to rank 0, which is on the first of `hosts`.

    `own` and `found` are the facts about this host and about the others (see
    `hvdtune.launch.remote.identity.facts`). Without `interfaces` the connection that ssh uses
    decides. HOROVOD_GLOO_IFACE reaches the ranks in any case.

    Raises `LaunchError` if none of the interfaces has an address on rank 0's host that other
    hosts can use.
    """
    first = hosts[0]
    local = first not in found
    facts = own if local else found[first]
    if interfaces.names:
        address = interfaces.address(facts.get("addresses", {}), f"host {first}")
    elif local:
        # As another host sees this one, unless that is a gateway's address.
        seen = (f["ssh_from"] for f in found.values() if f.get("ssh_from"))
        address = next(filter(is_local, seen), "") or own_address_towards(next(iter(found)))
    else:
        address = facts.get("ssh_to") or first
    return variables(address, free_port(address) if local else _some_port(), interfaces.by_flag)


def by_names(hosts: Sequence[str], interfaces: Interfaces, *, dry: bool = False) -> dict[str, str]:
    """The same for a job that mpirun or jsrun starts: only the names of its hosts are known.

    Nothing for a job on one host. If rank 0 is on another host and there are `interfaces`, it has
    to tell the others its address itself. In a `dry` run only the variables' names are right.
    """
    others = [name for name in hosts if not is_local(name)]
    if not others or len(set(hosts)) == 1:
        return {}
    local = is_local(hosts[0])
    if interfaces.names and not local:
        return _of_interfaces(interfaces.by_flag)
    if dry:
        return variables(hosts[0], 0, interfaces.by_flag)
    if interfaces.names:
        address = interfaces.address(addresses(), f"host {hosts[0]}")
    else:
        address = own_address_towards(others[0]) if local else _digits(hosts[0])
    return variables(address, free_port(address) if local else _some_port(), interfaces.by_flag)


def variables(address: str, port: int, interfaces: Sequence[str]) -> dict[str, str]:
    """The variables for workers; see `hvdtune.core.libraries.network`.

    NCCL is told the same `interfaces`, as in Horovod, even if the user has told it others.
    """
    return {ADDRESS: address, PORT: str(port), **_of_interfaces(interfaces)}


def _of_interfaces(interfaces: Sequence[str]) -> dict[str, str]:
    names = ",".join(interfaces)
    return {INTERFACES: names, "NCCL_SOCKET_IFNAME": names} if names else {}


def _digits(name: str) -> str:
    """A host may know itself by another address than others do: Debian's by 127.0.1.1."""
    import socket

    with contextlib.suppress(OSError, UnicodeError):
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    return name


def own_address_towards(other: str) -> str:
    """The address from which this host would reach another one; nothing is sent."""
    import socket

    with contextlib.suppress(OSError, UnicodeError):
        family, _, _, _, place = socket.getaddrinfo(other, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(place)
            return str(probe.getsockname()[0])
    return socket.gethostname()


def free_port(address: str) -> int:
    """A port of this host's that is unused and that no outgoing connection will be given."""
    import socket

    port = _some_port()
    for _ in range(_TRIES):
        with contextlib.suppress(OSError):
            family, _, _, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind(place)
                return port
        port = _some_port()
    return port


def _some_port() -> int:
    """A port on another host; the engine reports it if the port is taken."""
    import secrets

    return FIRST_PORT + secrets.randbelow(PORTS)
