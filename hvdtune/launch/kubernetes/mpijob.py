"""An MPIJob of Kubeflow's MPI Operator, and of the Training Operator before it.

Both start worker pods, write a hostfile, and start a launcher pod. In version v2beta1 workers run
sshd, and the launcher runs `hvdtune run`. In version v1 workers sleep, and the launcher reaches
them with `kubectl exec`, which gives a process no standard input: Open MPI's mpirun copes with it.
"""

from __future__ import annotations

from typing import Any

from hvdtune.launch.errors import LaunchError
from hvdtune.launch.kubernetes.job import HOSTFILE, Job, check, launcher, literal, ssh_server

VERSIONS = ("v2beta1", "v1")  # the usual one first
LONGEST_NAME = 50  # NAME-worker-99999
# Where the operator puts hostfiles and keys.
IMPLEMENTATIONS = {"openmpi": "OpenMPI", "intel": "Intel", "mpich": "MPICH"}
# Prints the running pods, without slots. The operator rewrites it when they change.
DISCOVERY = "/etc/mpi/discover_hosts.sh"
# Shortest and longest time, in s, without a failed pod: another may get its name.
_COOLDOWN = ("10", "300")


def mpijob(
    job: Job,
    version: str = "v2beta1",
    implementation: str = "openmpi",
    pods: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """The MPIJob, ready for YAML. Raises `LaunchError` for values that Kubernetes would not accept.

    With `pods`, the fewest and the most that may train, the job is elastic.
    """
    check(job, LONGEST_NAME)
    if version == "v1" and implementation != "openmpi":
        raise LaunchError(
            f"--mpi {implementation}: with --api-version v1 the launcher runs Open MPI's mpirun: "
            "leave --mpi out."
        )
    starts: dict[str, Any] = _mpirun(job) if version == "v1" else launcher(job)
    if pods:
        starts = _elastic(job, version, *pods)
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
            **(
                {"cleanPodPolicy": "Running"}
                if version == "v1"
                else _policy(implementation, waits=pods is None)
            ),
            "mpiReplicaSpecs": replicas,
        },
    }


def _policy(implementation: str, waits: bool) -> dict[str, Any]:
    return {
        "mpiImplementation": IMPLEMENTATIONS[implementation],
        # `hvdtune run` ends if it cannot resolve a worker's name; an elastic job waits for it.
        "launcherCreationPolicy": "WaitForWorkersReady" if waits else "AtStartup",
        "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 0},
    }


def _replicas(count: int, container: dict[str, Any]) -> dict[str, Any]:
    return {
        "replicas": count,
        "restartPolicy": "Never",
        "template": {"spec": {"containers": [container]}},
    }


def _elastic(job: Job, version: str, fewest: int, most: int) -> dict[str, Any]:
    if version == "v1":
        raise LaunchError(
            "--min-workers: jobs of --api-version v1 are not elastic, because their launcher runs "
            "mpirun."
        )
    if not fewest <= job.workers <= most:
        raise LaunchError(
            f"--min-workers {fewest}, --workers {job.workers}, --max-workers {most}: give numbers "
            "of which none is smaller than the one before."
        )
    check(job._replace(workers=most), LONGEST_NAME)
    words = ["-np", str(fewest * job.slots), "--min-np", str(fewest * job.slots)]
    words += ["--max-np", str(most * job.slots), "--slots-per-host", str(job.slots)]
    words += ["--host-discovery-script", DISCOVERY, "--blacklist-cooldown-range", *_COOLDOWN]
    return {"command": ["hvdtune", "run"], "args": [*words, *map(literal, job.command)]}


def _mpirun(job: Job) -> dict[str, list[str]]:
    """The words that both Open MPI 4 and 5 accept. 5 does not read the operator's variables."""
    words = ["--allow-run-as-root", "--tag-output", "-np", str(job.processes)]
    words += ["--hostfile", HOSTFILE, "--mca", "plm_rsh_agent", "/etc/mpi/kubexec.sh"]
    words += ["--bind-to", "none", "--map-by", "slot"]
    for name in ["PATH", *sorted(job.environment)]:
        words += ["-x", name]
    return {"command": ["mpirun"], "args": [*words, *map(literal, job.command)]}
