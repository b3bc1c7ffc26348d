"""The settings of a job on Ray: `MiniSettings`, or any object with the same attributes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

_PLACEMENT_SECONDS = 100.0


@dataclass
class MiniSettings:
    """What `RayExecutor` reads, and, below, what Horovod's has besides, without effect here.

    `nics`: the network interfaces that the ranks use; None: Ray's. `timeout_s`: seconds within
    which all ranks must have met. `placement_group_timeout_s`: seconds within which Ray must have
    reserved what the workers need.
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
    """How long Ray may take to reserve what the workers need. Horovod's `Settings` do not say."""
    seconds = getattr(settings, "placement_group_timeout_s", None)
    return _PLACEMENT_SECONDS if seconds is None else float(seconds)


def start_seconds(settings: Any) -> float | None:
    """How long the ranks may take to meet; None: as the environment says."""
    seconds = getattr(settings, "timeout_s", None)
    if seconds is not None:
        return float(seconds)
    # Horovod's `Settings` have a stop watch instead.
    left = getattr(getattr(settings, "start_timeout", None), "remaining", None)
    return max(1.0, float(left())) if left is not None else None
