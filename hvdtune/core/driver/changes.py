"""The changes that can happen to a job's hosts."""

from __future__ import annotations

from enum import IntFlag


class HostUpdateResult(IntFlag):
    """The change of the hosts; kinds are joined by ``|``."""

    no_update = 0
    removed = 1
    added = 2
    mixed = 3
