"""The identity of this machine, which decides whether processes can share memory.

Ranks meet at a Unix socket whose name belongs to a network namespace. So for a job two processes
are on the same machine if kernel, network namespace, hostname and user are the same.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from hvdtune.core.meeting.addresses import present_interfaces
from hvdtune.launch.remote.interfaces import addresses
from hvdtune.version import __version__


def facts() -> dict[str, Any]:
    """The description of this host for others, ready for JSON.

    "machine" is equal on hosts that are the same machine; "interfaces" are the names of the
    network interfaces, "addresses" an address of each that has one. If this host was reached over
    ssh, "ssh_to" is the address that the client used, and "ssh_from" the client's own.
    """
    # Client's address and port, this host's address and port.
    connection = os.environ.get("SSH_CONNECTION", "").split()
    return {
        "machine": machine(),
        "hostname": os.uname().nodename,
        "version": __version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable,
        "interfaces": present_interfaces(),
        "addresses": addresses(),
        "ssh_from": connection[0] if len(connection) == 4 else "",
        "ssh_to": connection[2] if len(connection) == 4 else "",
    }


def machine() -> str:
    """The identity of this machine, for this user."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        kernel = file.read().strip()
    network = os.stat("/proc/self/ns/net")
    return f"{kernel}/{network.st_dev}:{network.st_ino}/{os.uname().nodename}/{os.getuid()}"
