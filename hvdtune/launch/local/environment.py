"""The environment a worker is started with."""

from __future__ import annotations

import os
from collections.abc import Mapping

from hvdtune import bootstrap
from hvdtune.core.driver import messages
from hvdtune.launch.allocation.hosts import Slot

PREFER_HOROVOD = "HVDTUNE_PREFER_HOROVOD"
_PLACE = {
    f"HOROVOD_{name}"
    for name in (
        *("HOSTNAME", "RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"),
        *("GLOO_RENDEZVOUS_ADDR", "GLOO_RENDEZVOUS_PORT", "ELASTIC"),
    )
} | {messages.DRIVER, messages.IDENTITY}


def job_environment(base: Mapping[str, str]) -> dict[str, str]:
    """The variables that all workers share: the launcher's environment and the job's name and key.

    PYTHONPATH leads `import horovod` to hvdtune, unless HVDTUNE_PREFER_HOROVOD=1.
    """
    return {**base, **new_job(), "PYTHONUNBUFFERED": "1", **with_alias(base)}


def new_job() -> dict[str, str]:
    """The variables with a job's name and with the key that admits to it: new ones each time."""
    return {"HVDTUNE_JOB_ID": os.urandom(16).hex(), "HVDTUNE_SECRET": os.urandom(32).hex()}


def alias_folder(environ: Mapping[str, str]) -> list[str]:
    """The first entry of sys.path, with which `import horovod` reaches hvdtune, or nothing.

    Nothing with HVDTUNE_PREFER_HOROVOD=1.
    """
    if environ.get(PREFER_HOROVOD, "0") not in ("", "0"):
        return []
    return [os.path.join(bootstrap.PACKAGE, "_alias")]


def with_alias(environ: Mapping[str, str]) -> dict[str, str]:
    """The PYTHONPATH with which Python processes find the alias first."""
    alias = alias_folder(environ)
    if not alias:
        return {}
    inherited = environ.get("PYTHONPATH")
    others = inherited.split(os.pathsep) if inherited else []
    return {"PYTHONPATH": os.pathsep.join([*alias, *(p for p in others if p not in alias)])}


def without_place(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables without those that give a process its place in an hvdtune job."""
    return {name: value for name, value in environ.items() if name not in _PLACE}


def place(slot: Slot) -> dict[str, str]:
    """The variables that tell the worker in `slot` its place in the job."""
    return {
        "HOROVOD_HOSTNAME": slot.hostname,
        "HOROVOD_RANK": str(slot.rank),
        "HOROVOD_SIZE": str(slot.size),
        "HOROVOD_LOCAL_RANK": str(slot.local_rank),
        "HOROVOD_LOCAL_SIZE": str(slot.local_size),
        "HOROVOD_CROSS_RANK": str(slot.cross_rank),
        "HOROVOD_CROSS_SIZE": str(slot.cross_size),
    }


def worker_environment(shared: Mapping[str, str], slot: Slot) -> dict[str, str]:
    """The environment of the worker in `slot`; `shared` comes from `job_environment`."""
    return {**shared, **place(slot)}
