"""An MPIJob of Kubeflow's MPI Operator, and of the Training Operator before it.

Both start worker pods, write a hostfile, and start a launcher pod. In version v2beta1 workers run
sshd, and the launcher runs `hvdtune run`. In version v1 workers sleep, and the launcher reaches
them by `kubectl exec`, which gives a process no standard input: Open MPI's mpirun can do with that.
"""

from __future__ import annotations

from typing import Any

from hvdtune.launch.kubernetes.job import HOSTFILE, Job, check, launcher, literal, ssh_server

VERSIONS = ("v2beta1", "v1")  # the usual one first
LONGEST_NAME = 50  # NAME-worker-99999
# What the operator writes hostfiles and keys for.
IMPLEMENTATIONS = {"openmpi": "OpenMPI", "intel": "Intel", "mpich": "MPICH"}


def mpijob(job: Job, version: str = "v2beta1", implementation: str = "openmpi") -> dict[str, Any]:
    """The MPIJob, ready for YAML. Raises `LaunchError` for what Kubernetes would not take."""
    check(job, LONGEST_NAME)
    starts: dict[str, Any] = _mpirun(job) if version == "v1" else launcher(job)
    serves = {} if version == "v1" else {"command": ssh_server()}
    launches = {"name": "launcher", "image": job.image, **starts, **job.variables()}
    trains = {"name": "worker", "image": job.image, **serves, **job.resources()}
    replicas = {"Launcher": _replicas(1, launches), "Worker": _replicas(job.workers, trains)}
    return {
        "apiVersion": f"kubeflow.org/{version}",
        "kind": "MPIJob",
        "metadata": job.metadata(),
        "spec": {
            "slotsPerWorker": job.slots,
            **({"cleanPodPolicy": "Running"} if version == "v1" else _policy(implementation)),
            "mpiReplicaSpecs": replicas,
        },
    }


def _policy(implementation: str) -> dict[str, Any]:
    return {
        "mpiImplementation": IMPLEMENTATIONS[implementation],
        # `hvdtune run` ends if it cannot resolve a worker's name.
        "launcherCreationPolicy": "WaitForWorkersReady",
        "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 0},
    }


def _replicas(count: int, container: dict[str, Any]) -> dict[str, Any]:
    return {
        "replicas": count,
        "restartPolicy": "Never",
        "template": {"spec": {"containers": [container]}},
    }


def _mpirun(job: Job) -> dict[str, list[str]]:
    """What Open MPI 4 and 5 both take. 5 does not read the operator's variables."""
    words = ["--allow-run-as-root", "--tag-output", "-np", str(job.processes)]
    words += ["--hostfile", HOSTFILE, "--mca", "plm_rsh_agent", "/etc/mpi/kubexec.sh"]
    words += ["--bind-to", "none", "--map-by", "slot"]
    for name in ["PATH", *sorted(job.environment)]:
        words += ["-x", name]
    return {"command": ["mpirun"], "args": [*words, *map(literal, job.command)]}
