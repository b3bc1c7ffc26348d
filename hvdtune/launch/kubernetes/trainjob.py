"""A TrainJob of Kubeflow's Trainer, version 2, and the TrainingRuntime that it refers to.

The runtime describes pods, the job what they run. The Trainer's MPI policy mounts a hostfile and
keys, as the MPI Operator does. The pod that starts the others trains nothing itself: a runtime in
which it counts as a node has two nodes at least.
"""

from __future__ import annotations

from typing import Any

from hvdtune.launch.kubernetes.job import Job, check, launcher, ssh_server

API = "trainer.kubeflow.org/v1alpha1"
SSH_PORT = 22
# The Trainer lets the group read the private key, which root's ssh does not take where it is.
KEYS = "/etc/mpi-ssh"


def trainjob(job: Job, runtime: str | None = None) -> list[dict[str, Any]]:
    """The objects, ready for YAML: the TrainJob, after a runtime of its own if none is named.

    `runtime` is the name of a ClusterTrainingRuntime with an MPI policy. Raises `LaunchError` for
    what Kubernetes would not take.
    """
    check(job)
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
    """Its jobs and containers have the names that the Trainer looks for."""
    node = {
        "name": "node",
        "image": job.image,
        "command": ssh_server(KEYS),
        **job.resources(),
        "readinessProbe": {"tcpSocket": {"port": SSH_PORT}, "initialDelaySeconds": 1},
    }
    starter = {
        **_replicated("launcher", {"name": "node", "image": job.image}),
        "dependsOn": [{"name": "node", "status": "Ready"}],
    }
    starter["template"]["metadata"] = {
        "labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    }
    return {
        "apiVersion": API,
        "kind": "TrainingRuntime",
        "metadata": job.metadata(),
        "spec": {
            "mlPolicy": {
                "numNodes": job.workers,
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
                    "replicatedJobs": [_replicated("node", node), starter],
                }
            },
        },
    }


def _replicated(name: str, container: dict[str, Any]) -> dict[str, Any]:
    pod = {"spec": {"containers": [container]}}
    return {"name": name, "template": {"spec": {"template": pod}}}
