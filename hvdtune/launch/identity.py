"""Which machine this is: what decides whether processes can share memory.

Ranks meet at a Unix socket whose name belongs to a network namespace, so two processes are on the
same machine, as far as a job is concerned, when kernel, network namespace and hostname are the
same, and so is the user.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from hvdtune.launch.interfaces import present_interfaces


def facts() -> dict[str, Any]:
    """This host as another needs to know it, ready for JSON.

    "machine" is equal on hosts that are the same machine; "interfaces" are the names of the
    network interfaces.
    """
    from hvdtune import __version__

    return {
        "machine": machine(),
        "hostname": os.uname().nodename,
        "version": __version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable,
        "interfaces": present_interfaces(),
    }


def machine() -> str:
    """The identity of this machine, for this user."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        kernel = file.read().strip()
    network = os.stat("/proc/self/ns/net")
    return f"{kernel}/{network.st_dev}:{network.st_ino}/{os.uname().nodename}/{os.getuid()}"
