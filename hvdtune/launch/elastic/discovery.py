"""The hosts that a host discovery script prints.

One host per line: `name`, `name:slots` or `name slots=N`; an IPv6 address is in brackets if slots
follow. Surrounding blanks, empty lines and comments that begin with `#` are ignored.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from hvdtune.core.driver.changes import HostUpdateResult
from hvdtune.launch.allocation.hosts import Host, require_name
from hvdtune.launch.errors import LaunchError

MOST_SLOTS = 64  # of a host: as many as the engine connects

_LINE = re.compile(
    r"(?:\[(?P<address>[^\]\s]+)\]|(?P<name>[^\s\[\]]+?))"
    r"(?:\s*:\s*(?P<slots>[0-9]{1,9})|\s+slots\s*=\s*(?P<more>[0-9]{1,9}))?"
)


def parse(output: str, slots_per_host: int | None = None) -> list[Host]:
    """The hosts in the order of the lines; `slots_per_host` is for hosts printed without slots (1).

    A repeated line counts once. Raises `LaunchError` with one sentence for a line that names no
    host, or a host named with different slots.
    """
    slots: dict[str, int] = {}
    for number, line in enumerate(output.splitlines(), start=1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        name, count = _host(line, f"line {number} of the host discovery script's output")
        count = (slots_per_host or 1) if count is None else count
        if slots.setdefault(name, count) != count:
            raise LaunchError(
                f"the host discovery script names {name} twice, with {slots[name]} and with "
                f"{count} slots."
            )
    return [Host(name, count) for name, count in slots.items()]


def _host(line: str, where: str) -> tuple[str, int | None]:
    if _is_ipv6(line):  # not an address and a number of slots: those have brackets
        return line, None
    match = _LINE.fullmatch(line)
    if not match or (match["address"] and not _is_ipv6(match["address"])):
        raise LaunchError(
            f"{where} is {_shortened(line)}: a host with its slots is expected, such as node1:4."
        )
    if match["name"]:
        require_name(match["name"], where, "a host with its slots is expected, such as node1:4.")
    count = match["slots"] or match["more"]
    if int(count or 0) > MOST_SLOTS:
        raise LaunchError(
            f"{where} is {_shortened(line)}: at most {MOST_SLOTS} processes run on a host."
        )
    return match["address"] or match["name"], None if count is None else int(count)


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def _shortened(line: str) -> str:
    return repr(line if len(line) <= 60 else line[:60] + "…")


def ordered(previous: Iterable[str], found: Iterable[Host]) -> list[Host]:
    """The hosts found: first those known before, in the order they had, then the new ones."""
    slots = dict(found)
    known = [name for name in previous if name in slots]
    return [Host(name, slots[name]) for name in dict.fromkeys([*known, *slots])]


def difference(previous: Iterable[Host], found: Iterable[Host]) -> HostUpdateResult:
    """What changed between two answers: hosts or slots removed, added, both, or neither."""
    before, after = dict(previous), dict(found)
    change = HostUpdateResult.no_update
    for name in {*before, *after}:
        was, now = before.get(name, 0), after.get(name, 0)
        if name not in after or now < was:
            change |= HostUpdateResult.removed
        elif name not in before or now > was:
            change |= HostUpdateResult.added
    return change
