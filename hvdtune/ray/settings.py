"""The settings of a job on Ray: `MiniSettings`, or any object with the same attributes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

_PLACEMENT_SECONDS = 100.0


@dataclass
class MiniSettings:
    """The settings that `RayExecutor` reads, then Horovod's others, which have no effect here.

    `nics`: the network interfaces that the ranks use; None: Ray's. `timeout_s`: seconds within
    which all ranks must have connected. `placement_group_timeout_s`: seconds within which Ray must
    have reserved the workers' resources.
    """

    nics: Collection[str] | None = None
    verbose: int = 1
    key: bytes | None = None
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    timeout_s: float = 300
    placement_group_timeout_s: float = _PLACEMENT_SECONDS
    elastic: bool = False


def placement_seconds(settings: Any) -> float:
    """How long Ray may take to reserve the resources. Horovod's `Settings` do not say."""
    seconds = getattr(settings, "placement_group_timeout_s", None)
    return _PLACEMENT_SECONDS if seconds is None else float(seconds)


def start_seconds(settings: Any) -> float | None:
    """How long the ranks may take to connect; None: as the environment says."""
    seconds = getattr(settings, "timeout_s", None)
    if seconds is not None:
        return float(seconds)
    # Horovod's `Settings` have a timer object instead.
    left = getattr(getattr(settings, "start_timeout", None), "remaining", None)
    return max(1.0, float(left())) if left is not None else None
