"""The parts of a job for Kubernetes that are the same in every object.

The MPI Operator and the Trainer set up the same for a job: pods that run sshd, a hostfile that
names them, and a launcher pod that may log in to them and runs `hvdtune run`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hvdtune.launch.errors import LaunchError

_NAME = r"[a-z]([-a-z0-9]*[a-z0-9])?"
_NAMESPACE = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_QUANTITY = r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?"
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
# Where both put the hostfile: a pod's name and its slots per line.
HOSTFILE = "/etc/mpi/hostfile"
# The native module's limits; it may be missing where a job is described.
MAX_RANKS = 1024
MAX_RANKS_PER_HOST = 64


class Job(NamedTuple):
    """What to run: `workers` pods with `slots` processes each.

    `cpus`, `memory` and `gpus` are for each of these pods; `environment` for the processes.
    """

    name: str
    image: str
    command: Sequence[str]
    slots: int
    workers: int = 1
    namespace: str | None = None
    cpus: str | None = None
    memory: str | None = None
    gpus: int = 0
    environment: Mapping[str, str] = {}

    @property
    def processes(self) -> int:
        """The number of processes in all pods."""
        return self.workers * self.slots

    def metadata(self) -> dict[str, str]:
        """The name and, if given, the namespace."""
        place = {"namespace": self.namespace} if self.namespace else {}
        return {"name": self.name, **place}

    def variables(self) -> dict[str, Any]:
        """The field `env`, or nothing, for the container whose processes start the others."""
        given = sorted(self.environment.items())
        entries = [{"name": name, "value": literal(value)} for name, value in given]
        return {"env": entries} if entries else {}

    def resources(self) -> dict[str, Any]:
        """The field `resources`, or nothing, for the container that trains."""
        named = {"cpu": self.cpus, "memory": self.memory}
        limits: dict[str, Any] = {name: amount for name, amount in named.items() if amount}
        if self.gpus:
            limits["nvidia.com/gpu"] = self.gpus
        return {"resources": {"limits": limits}} if limits else {}


def literal(text: str) -> str:
    """A command's or a variable's text, escaped because Kubernetes replaces `$(NAME)` with a
    variable, and `$$` with `$`."""
    return text.replace("$", "$$")


def launcher(job: Job, keys: str | None = None) -> dict[str, list[str]]:
    """`command` and `args` of the launcher pod: `hvdtune run`, which needs no MPI.

    `keys` is the folder of a private key that others may read; ssh does not accept such a key.
    """
    words = ["-np", str(job.processes), "--hostfile", HOSTFILE, *map(literal, job.command)]
    if keys is None:
        return {"command": ["hvdtune", "run"], "args": words}
    script = f'key=$(mktemp) && cat {keys}/id_rsa > "$key" && exec hvdtune run -i "$key" "$@"'
    return {"command": ["/bin/sh", "-c", script, "hvdtune"], "args": words}


def ssh_server(keys: str | None = None) -> list[str]:
    """The command of a pod that the launcher pod logs in to.

    The folder of mounted keys is writable for all, which sshd refuses in its strict mode. `keys`
    is this folder, if it is not root's own.
    """
    words = ["/usr/sbin/sshd", "-De", "-o", "StrictModes=no"]
    return words if keys is None else [*words, "-o", f"AuthorizedKeysFile={keys}/authorized_keys"]


def check(job: Job, longest_name: int) -> None:
    """Raise `LaunchError` for values that Kubernetes, or a job's processes, would not accept.

    With `longest_name` characters, pods' names, which begin with the job's, still fit in 63.
    """
    if not re.fullmatch(_NAME, job.name) or len(job.name) > longest_name:
        raise LaunchError(
            f"--name is {job.name!r}, which is not accepted: give small letters, digits and "
            f"dashes, at most {longest_name}, a letter first and no dash last."
        )
    if job.namespace is not None and not re.fullmatch(_NAMESPACE, job.namespace):
        raise LaunchError(
            f"--namespace is {job.namespace!r}, which is not accepted: give small letters, digits "
            "and dashes, at most 63, no dash first or last."
        )
    if not job.image.strip():
        raise LaunchError("--image is empty: give the name of a container image.")
    for flag, quantity in (("--cpus", job.cpus), ("--memory", job.memory)):
        if quantity is not None and not re.fullmatch(_QUANTITY, quantity):
            raise LaunchError(
                f"{flag} is {quantity!r}, which is not accepted: give a Kubernetes quantity, "
                "such as 4, 500m or 16Gi."
            )
    if job.slots > MAX_RANKS_PER_HOST:
        raise LaunchError(
            f"--slots is {job.slots}; at most {MAX_RANKS_PER_HOST} processes run in a pod."
        )
    if job.processes > MAX_RANKS:
        raise LaunchError(
            f"--workers {job.workers} with --slots {job.slots} are {job.processes} processes; "
            f"at most {MAX_RANKS} are supported."
        )
    for name in job.environment:
        if not re.fullmatch(_VARIABLE, name):
            raise LaunchError(f"-e {name}: this is not the name of a variable.")
