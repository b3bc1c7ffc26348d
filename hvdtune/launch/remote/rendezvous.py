"""Where the ranks of a job on several hosts meet: an address of rank 0's host, and a port there."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from hvdtune.core.libraries.network import FIRST_PORT, PORTS
from hvdtune.launch.allocation.hosts import is_local
from hvdtune.launch.errors import LaunchError

_TRIES = 20


def over_ssh(
    hosts: Sequence[str],
    own: Mapping[str, Any],
    found: Mapping[str, Mapping[str, Any]],
    interfaces: Sequence[str],
) -> dict[str, str]:
    """The variables that lead to rank 0, which is on the first of `hosts`.

    `own` and `found` are the facts about this host and about the others (see
    `hvdtune.launch.remote.identity.facts`). Without `interfaces` the connection that ssh uses
    decides.

    Raises `LaunchError` if none of the interfaces has an address on rank 0's host that other
    hosts can use.
    """
    first = hosts[0]
    local = first not in found
    facts = own if local else found[first]
    if interfaces:
        addresses = facts.get("addresses", {})
        address = next((addresses[name] for name in interfaces if addresses.get(name)), "")
        if not address:
            raise LaunchError(
                f"--network-interfaces: on host {first} none of {', '.join(interfaces)} has an "
                "address that other hosts can use."
            )
    elif local:
        # As another host sees this one, unless that is a gateway's address.
        seen = (f["ssh_from"] for f in found.values() if f.get("ssh_from"))
        address = next(filter(is_local, seen), "") or own_address_towards(next(iter(found)))
    else:
        address = facts.get("ssh_to") or first
    return variables(address, free_port(address) if local else _some_port(), interfaces)


def by_names(hosts: Sequence[str], interfaces: Sequence[str], dry: bool = False) -> dict[str, str]:
    """The same for a job that mpirun or jsrun starts: only the names of its hosts are known.

    Nothing for a job on one host. In a `dry` run only the variables' names are right.
    """
    others = [name for name in hosts if not is_local(name)]
    if not others or len(set(hosts)) == 1:
        return {}
    if dry:
        return variables(hosts[0], 0, interfaces)
    local = is_local(hosts[0])
    address = own_address_towards(others[0]) if local else _digits(hosts[0])
    return variables(address, free_port(address) if local else _some_port(), interfaces)


def variables(address: str, port: int, interfaces: Sequence[str]) -> dict[str, str]:
    """The variables for workers; see `hvdtune.core.libraries.network`."""
    chosen = {"HOROVOD_GLOO_IFACE": ",".join(interfaces)} if interfaces else {}
    return {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        **chosen,
    }


def _digits(name: str) -> str:
    """A host may know itself by another address than others do: Debian's by 127.0.1.1."""
    import socket

    with contextlib.suppress(OSError):
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    return name


def own_address_towards(other: str) -> str:
    """The address from which this host would reach another one; nothing is sent."""
    import socket

    with contextlib.suppress(OSError):
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
