"""A name for this host that other containers on the same machine do not share."""

from __future__ import annotations

import hashlib
import os
import socket


def host_hash(salt: str | None = None) -> str:
    """The host's name and a digest of its name, its namespaces and the salt."""
    name = socket.gethostname()
    parts = [name, salt or ""]
    for namespace in ("uts", "pid", "mnt"):
        try:
            parts.append(os.readlink(f"/proc/self/ns/{namespace}"))
        except OSError:
            parts.append("")
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
    return f"{name.partition('.')[0]}-{digest}"
