"""Which machine this is: what decides whether processes can share memory.

Ranks meet at a Unix socket whose name belongs to a network namespace, so two processes are on the
same machine, as far as a job is concerned, when kernel, network namespace and hostname are the
same, and so is the user.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from hvdtune.core.meeting.addresses import present_interfaces
from hvdtune.launch.remote.interfaces import addresses
from hvdtune.version import __version__


def facts() -> dict[str, Any]:
    """This host as another needs to know it, ready for JSON.

    "machine" is equal on hosts that are the same machine; "interfaces" are the names of the
    network interfaces, "addresses" an address of each that has one. Of a host that was reached by
    ssh, "ssh_to" is the address by which, and "ssh_from" that of whoever has come.
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
