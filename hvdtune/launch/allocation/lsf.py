"""LSF: the hosts of the job we are in, and what IBM's CSM says about them.

Modelled on Horovod's code; it has not been tried with a real LSF.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from hvdtune.launch.allocation.hosts import Host
from hvdtune.launch.errors import LaunchError

ALLOCATION_QUERY = "/opt/ibm/csm/bin/csm_allocation_query"
NODE_QUERY = "/opt/ibm/csm/bin/csm_node_attributes_query"
_QUERY_SECONDS = 30.0


def inside(environ: Mapping[str, str]) -> bool:
    """Whether LSF has started us."""
    return bool(environ.get("LSB_JOBID"))


def allocation(environ: Mapping[str, str]) -> list[Host] | None:
    """The hosts of this LSF job with their slots, or None outside of one.

    With IBM's CSM: its compute nodes, with a slot for every GPU; otherwise LSF's own list of hosts.
    Raises `LaunchError` if neither is available.
    """
    if not inside(environ):
        return None
    if environ.get("CSM_ALLOCATION_ID"):
        nodes, hardware = nodes_of(environ)
        return [Host(name, hardware["gpus"]) for name in nodes]
    words = environ.get("LSB_MCPU_HOSTS", "").split()
    names, counts = words[::2], words[1::2]
    if not names or len(names) != len(counts) or not all(count.isdigit() for count in counts):
        raise LaunchError(
            f"LSB_MCPU_HOSTS={environ.get('LSB_MCPU_HOSTS', '')!r} is no list of LSF's hosts: give "
            "the hosts with -H and their number with -np."
        )
    return [Host(name, int(count)) for name, count in zip(names, counts, strict=True)]


def nodes_of(environ: Mapping[str, str]) -> tuple[list[str], dict[str, int]]:
    """CSM's compute nodes by name, and each one's cores and GPUs. Raises `LaunchError`."""
    allocated = environ["CSM_ALLOCATION_ID"].strip()
    found = records(query([ALLOCATION_QUERY, "-a", allocated]))
    nodes = found.get("compute_nodes")
    if not isinstance(nodes, list) or not nodes:
        raise LaunchError(f"{ALLOCATION_QUERY} names no compute nodes of allocation {allocated}.")
    isolated = number(found, "isolated_cores", ALLOCATION_QUERY)
    names = sorted(map(str, nodes))
    node = records(query([NODE_QUERY, "-n", names[0]])).get("Record_1")
    node = node if isinstance(node, dict) else {}
    cores, sockets, gpus = (
        number(node, f"discovered_{name}", NODE_QUERY) for name in ("cores", "sockets", "gpus")
    )
    return names, {"cores": cores - sockets * isolated, "gpus": gpus}


def query(command: Sequence[str]) -> str:
    """What a command prints. Raises `LaunchError` if it fails or does not answer."""
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_QUERY_SECONDS,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{command[0]} does not answer: {error}.") from None
    if ended.returncode != 0:
        said = ended.stderr.decode("utf-8", "replace").strip().splitlines()
        raise LaunchError(
            f"{command[0]} failed with exit code {ended.returncode}"
            f"{f' ({said[-1]})' if said else ''}."
        )
    return ended.stdout.decode("utf-8", "replace")


def records(text: str) -> dict[str, Any]:
    """The `key: value` lines of a text; empty if it has none."""
    import yaml

    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        found = None
    return found if isinstance(found, dict) else {}


def number(record: Mapping[str, Any], key: str, source: str) -> int:
    """A record's whole number `key`. Raises `LaunchError`, naming the `source`, if it has none."""
    try:
        return int(record[key])
    except (KeyError, TypeError, ValueError):
        raise LaunchError(f"{source} does not say {key}.") from None
