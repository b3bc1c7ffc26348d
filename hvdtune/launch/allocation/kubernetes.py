"""A training job as an object of Kubernetes: the MPIJob of Kubeflow's MPI Operator, version 2.

The operator starts worker pods that run sshd, writes a hostfile, and then a launcher pod, which
reaches the workers by ssh: mpirun does where there is one of them. Processes of several need to be
told where rank 0 is, and a key, which mpirun does not; so `hvdtune run` starts them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hvdtune.launch.errors import LaunchError

_NAME = r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?"
_QUANTITY = r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?"
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
# _native.MAX_RANKS, which need not be there where a job is described.
MOST_RANKS = 64
# Where the operator puts it: a worker's name and "slots=N" in each line.
_HOSTFILE = "/etc/mpi/hostfile"


class MpiJobSpec(NamedTuple):
    """What to run: `workers` pods with `slots` processes each.

    `cpus`, `memory` and `gpus` are for each worker pod; `environment` for the processes.
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


def mpijob(spec: MpiJobSpec) -> dict[str, Any]:
    """The MPIJob, ready for YAML. Raises `LaunchError` for what Kubernetes would not take."""
    _check(spec)
    metadata = {"name": spec.name}
    if spec.namespace:
        metadata["namespace"] = spec.namespace
    worker: dict[str, Any] = {"name": "worker", "image": spec.image}
    limits = {"cpu": spec.cpus, "memory": spec.memory}
    resources: dict[str, Any] = {key: value for key, value in limits.items() if value}
    if spec.gpus:
        resources["nvidia.com/gpu"] = spec.gpus
    if resources:
        worker["resources"] = {"limits": resources}
    launcher: dict[str, Any] = {
        "name": "launcher",
        "image": spec.image,
        "command": ["mpirun"] if spec.workers == 1 else ["hvdtune", "run"],
        "args": _mpirun_arguments(spec) if spec.workers == 1 else _our_arguments(spec),
    }
    if spec.environment:
        launcher["env"] = [{"name": k, "value": v} for k, v in sorted(spec.environment.items())]
    # Of a worker that is not there yet no name is known, which ends `hvdtune run`.
    waits = {"launcherCreationPolicy": "WaitForWorkersReady"} if spec.workers > 1 else {}
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": metadata,
        "spec": {
            "slotsPerWorker": spec.slots,
            "mpiImplementation": "OpenMPI",
            **waits,
            "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 0},
            "mpiReplicaSpecs": {
                "Launcher": _replicas(1, launcher),
                "Worker": _replicas(spec.workers, worker),
            },
        },
    }


def _replicas(count: int, container: dict[str, Any]) -> dict[str, Any]:
    return {
        "replicas": count,
        "restartPolicy": "Never",
        "template": {"spec": {"containers": [container]}},
    }


def _mpirun_arguments(spec: MpiJobSpec) -> list[str]:
    """What Open MPI of any version takes; its hostfile is set by the operator."""
    words = ["--allow-run-as-root", "--tag-output", "-np", str(spec.workers * spec.slots)]
    words += ["--bind-to", "none", "--map-by", "slot"]
    words += ["--mca", "pml", "ob1", "--mca", "btl", "^openib"]
    for name in ["PATH", *sorted(spec.environment)]:
        words += ["-x", name]
    return [*words, *spec.command]


def _our_arguments(spec: MpiJobSpec) -> list[str]:
    """Its environment, which the variables are in, reaches the processes."""
    count = str(spec.workers * spec.slots)
    return ["-np", count, "--hostfile", _HOSTFILE, *spec.command]


def _check(spec: MpiJobSpec) -> None:
    for flag, name in (("--name", spec.name), ("--namespace", spec.namespace)):
        if name is not None and not re.fullmatch(_NAME, name):
            raise LaunchError(
                f"{flag} is {name!r}, which is not accepted: give small letters, digits and "
                "dashes, at most 52, a letter first."
            )
    for flag, quantity in (("--cpus", spec.cpus), ("--memory", spec.memory)):
        if quantity is not None and not re.fullmatch(_QUANTITY, quantity):
            raise LaunchError(
                f"{flag} is {quantity!r}, which is not accepted: give a quantity of Kubernetes, "
                "such as 4, 500m or 16Gi."
            )
    for name in spec.environment:
        if not re.fullmatch(_VARIABLE, name):
            raise LaunchError(f"-e {name}: this is not the name of a variable.")
    if spec.workers > 1 and spec.workers * spec.slots > MOST_RANKS:
        raise LaunchError(
            f"--workers {spec.workers} with --slots {spec.slots} are {spec.workers * spec.slots} "
            f"processes, but a job on several hosts can have {MOST_RANKS}."
        )
