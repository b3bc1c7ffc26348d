"""What programs import from `horovod.ray.utils`: Ray Train's backend for Horovod, above all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ray


def map_blocking(fn: Callable[[Any], Any], collection: Iterable[Any]) -> list[Any]:
    """The values of the references that `fn` gives for each worker, once all are there."""
    return list(ray.get([fn(worker) for worker in collection]))


def detect_nics(
    settings: Any, all_host_names: Sequence[str], node_workers: Sequence[Any] | None = None
) -> list[str]:
    """The network interfaces that the settings name; none if they name none.

    Nothing is probed: ranks find each other by the addresses that Ray itself uses.
    """
    return sorted(getattr(settings, "nics", None) or ())


def nics_to_env_var(nics: Iterable[str]) -> dict[str, str]:
    """The variables by which a job uses these interfaces; none for none."""
    names = ",".join(nics)
    return {"HOROVOD_GLOO_IFACE": names, "NCCL_SOCKET_IFNAME": names} if names else {}
