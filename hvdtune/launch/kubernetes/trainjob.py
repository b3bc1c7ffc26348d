"""A TrainJob of Kubeflow's Trainer, version 2, and the TrainingRuntime that it refers to.

The runtime describes pods, the job the program that they run. The Trainer's MPI policy mounts a
hostfile and keys, as the MPI Operator does. The pod that starts the others trains nothing itself
(`runLauncherAsNode`): otherwise the Trainer would create at least one more pod.
"""

from __future__ import annotations

import re
from typing import Any

from hvdtune.launch.errors import LaunchError
from hvdtune.launch.kubernetes.job import Job, check, launcher, ssh_server

API = "trainer.kubeflow.org/v1alpha1"
SSH_PORT = 22
LONGEST_NAME = 44  # NAME-launcher-0-0-abcde
_RUNTIME = r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?"
# The Trainer lets the group read the private key, which root's ssh would refuse.
KEYS = "/etc/mpi-ssh"


def trainjob(job: Job, runtime: str | None = None) -> list[dict[str, Any]]:
    """The objects, ready for YAML: the TrainJob, after its own runtime if none is named.

    `runtime` is the name of a ClusterTrainingRuntime with an MPI policy. Raises `LaunchError` for
    values that Kubernetes would not accept.
    """
    check(job, LONGEST_NAME)
    if runtime is not None and not re.fullmatch(_RUNTIME, runtime):
        raise LaunchError(f"--runtime is {runtime!r}, which is not the name of a runtime.")
    kind = "ClusterTrainingRuntime" if runtime else "TrainingRuntime"
    limits = job.resources()
    trains = {
        "apiVersion": API,
        "kind": "TrainJob",
        "metadata": job.metadata(),
        "spec": {
            "runtimeRef": {
                "apiGroup": API.partition("/")[0],
                "kind": kind,
                "name": runtime or job.name,
            },
            "trainer": {
                "image": job.image,
                **launcher(job, keys=None if runtime else KEYS),
                **job.variables(),
                **({"resourcesPerNode": limits["resources"]} if runtime and limits else {}),
                "numNodes": job.workers,
                "numProcPerNode": job.slots,
            },
        },
    }
    return [trains] if runtime else [_runtime(job), trains]


def _runtime(job: Job) -> dict[str, Any]:
    """The TrainingRuntime: its jobs and containers have the names that the Trainer looks for. Its
    `numNodes` counts the pods of the labelled job, the launcher; the TrainJob's counts the nodes.
    """
    node = {
        "name": "node",
        "image": job.image,
        "command": ssh_server(KEYS),
        **job.resources(),
        "readinessProbe": {"tcpSocket": {"port": SSH_PORT}, "initialDelaySeconds": 1},
    }
    starter = {"name": "node", "image": job.image}
    label = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    jobs = [
        {"name": "node", "template": {"spec": {"template": _pod(node)}}},
        {
            "name": "launcher",
            "dependsOn": [{"name": "node", "status": "Ready"}],
            "template": {
                "metadata": {"labels": label},
                "spec": {"backoffLimit": 0, "template": _pod(starter, restartPolicy="Never")},
            },
        },
    ]
    return {
        "apiVersion": API,
        "kind": "TrainingRuntime",
        # Kubeflow's SDK lists only runtimes with this label.
        "metadata": {**job.metadata(), "labels": {"trainer.kubeflow.org/framework": "hvdtune"}},
        "spec": {
            "mlPolicy": {
                "numNodes": 1,
                "mpi": {
                    "mpiImplementation": "OpenMPI",
                    "numProcPerNode": job.slots,
                    "sshAuthMountPath": KEYS,
                    "runLauncherAsNode": False,
                },
            },
            "template": {
                "spec": {
                    "network": {"publishNotReadyAddresses": True},
                    "successPolicy": {"operator": "All", "targetReplicatedJobs": ["launcher"]},
                    "replicatedJobs": jobs,
                }
            },
        },
    }


def _pod(container: dict[str, Any], **more: str) -> dict[str, Any]:
    return {"spec": {"containers": [container], **more}}
