"""Helpers that programs import from `horovod.ray.utils`, such as Ray Train's Horovod backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ray


def map_blocking(fn: Callable[[Any], Any], collection: Iterable[Any]) -> list[Any]:
    """The values of the references that `fn` returns for each worker; waits for all."""
    return list(ray.get([fn(worker) for worker in collection]))


def detect_nics(
    settings: Any, all_host_names: Sequence[str], node_workers: Sequence[Any] | None = None
) -> list[str]:
    """The network interfaces that the settings name; none if they name none.

    Nothing is probed: ranks connect over the addresses that Ray itself uses.
    """
    return sorted(getattr(settings, "nics", None) or ())


def nics_to_env_var(nics: Iterable[str]) -> dict[str, str]:
    """The variables that make a job use these interfaces; empty if there are none."""
    names = ",".join(nics)
    return {"HOROVOD_GLOO_IFACE": names, "NCCL_SOCKET_IFNAME": names} if names else {}
