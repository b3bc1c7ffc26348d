"""Which hosts the batch system gave us, if the command line does not name any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hvdtune.launch.allocation import lsf, slurm
from hvdtune.launch.allocation.hosts import Host, require_name


class Allocation(NamedTuple):
    """The hosts that the batch system has given us, and how many processes it was asked for."""

    hosts: Sequence[Host]
    processes: int


def allocation(environ: Mapping[str, str]) -> Allocation | None:
    """The allocation of LSF or Slurm that we are in, or None.

    Raises `LaunchError` if it cannot be understood.
    """
    hosts = lsf.allocation(environ)
    if hosts is not None:
        _require_names(hosts, "LSF")
        return Allocation(hosts, sum(host.slots for host in hosts))
    hosts = slurm.allocation(environ)
    if hosts is None:
        return None
    _require_names(hosts, "Slurm")
    tasks = environ.get("SLURM_NTASKS", "")
    slots = sum(host.slots for host in hosts)
    return Allocation(hosts, min(int(tasks), slots) if tasks.isdigit() else slots)


def _require_names(hosts: Sequence[Host], source: str) -> None:
    for host in hosts:
        require_name(host.name, f"the allocation of {source}")
