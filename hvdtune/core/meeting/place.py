"""Rank 0's message to the others: its addresses, a free port, and a secret, in one short text."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

from hvdtune.core.libraries.network import FIRST_PORT, PORTS
from hvdtune.core.meeting import addresses

_FORM = "hvdtune1"
# The texts of PMI-1 are 1024 bytes at most, names included.
_MOST_ADDRESSES = 12
_TRIES = 50
_SETTLED = 0.05  # s after which an address that has not answered is given up
_PAUSE = 0.01


class Place(NamedTuple):
    """Rank 0 listens at `port` of its `addresses` for processes that know `secret`."""

    addresses: tuple[str, ...]
    port: int
    secret: str

    def text(self) -> str:
        """The message. It has no blanks, "=" or ";", as PMI's messages use these themselves."""
        return ",".join((_FORM, str(self.port), self.secret, *self.addresses))


def of_this_process(interfaces: Sequence[str] = ()) -> Place:
    """Rank 0's place: at the named interfaces, or at all that reach other hosts."""
    found = addresses.addresses_of(interfaces) if interfaces else addresses.reachable()
    # Without a network there are no other hosts, but perhaps containers on this one.
    told = tuple(dict.fromkeys(found.values()))[:_MOST_ADDRESSES] or ("127.0.0.1",)
    return Place(told, free_port(), os.urandom(16).hex())


def read(text: str) -> Place:
    """Parse the text of `Place.text`. Raises ValueError, which does not quote the text."""
    form, *rest = text.split(",")
    if form != _FORM or len(rest) < 3 or not rest[0].isdecimal():
        raise ValueError("this version of hvdtune does not understand the message of rank 0")
    port, secret, *hosts = rest
    return Place(tuple(hosts), int(port), secret)


def free_port() -> int:
    """A port of this host's that is unused and that no outgoing connection will be given."""
    import socket

    for _ in range(_TRIES):
        port = FIRST_PORT + int.from_bytes(os.urandom(4), "big") % PORTS
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            return port
    raise ValueError(f"none of {_TRIES} ports from {FIRST_PORT} on was free")


def way_to(place: Place, deadline: float) -> str:
    """The one of rank 0's addresses at which this process reaches it.

    If there are several, all are tried until rank 0 listens. Raises ValueError if it does not until
    the `deadline` of time.monotonic().
    """
    own = addresses.addresses_of(addresses.present_interfaces()).values()
    # An address that this host also has, such as that of a bridge to containers, leads back here.
    others = [address for address in place.addresses if address not in own]
    if len(others) < 2:
        return (others or place.addresses)[0]
    while True:
        found, reasons = _first_to_answer(others, place.port)
        if found:
            return found
        if time.monotonic() > deadline:
            tried = "; ".join(f"{address}: {reasons[address]}" for address in others)
            raise ValueError(f"rank 0 cannot be reached at port {place.port} of {tried}")
        time.sleep(_PAUSE)


def _first_to_answer(hosts: Collection[str], port: int) -> tuple[str, dict[str, str]]:
    """The first of `hosts` that accepts a connection; otherwise "" and why each did not."""
    import selectors
    import socket

    reasons: dict[str, str] = {}
    answered: set[str] = set()
    end = time.monotonic() + _SETTLED
    with contextlib.ExitStack() as opened:
        waiting = opened.enter_context(selectors.DefaultSelector())
        for host in hosts:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            probe = opened.enter_context(socket.socket(family, socket.SOCK_STREAM))
            probe.setblocking(False)
            code = probe.connect_ex((host, port))
            if code in (0, errno.EINPROGRESS):
                waiting.register(probe, selectors.EVENT_WRITE, host)
            else:
                reasons[host] = os.strerror(code)
        while waiting.get_map() and time.monotonic() < end:
            for key, _ in waiting.select(max(0.0, end - time.monotonic())):
                assert isinstance(key.fileobj, socket.socket)
                code = key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                waiting.unregister(key.fileobj)
                if code:
                    reasons[key.data] = os.strerror(code)
                else:
                    answered.add(key.data)
            # All ranks should use the same address: an earlier one may still answer.
            if next((host for host in hosts if host not in reasons), None) in answered:
                break
    first = next((host for host in hosts if host in answered), "")
    return first, {host: reasons.get(host, "no answer") for host in hosts}
