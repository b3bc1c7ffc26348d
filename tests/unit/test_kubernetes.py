"""The MPIJob that `hvdtune k8s mpijob` prints, against the fields that the operator publishes."""

import shlex

import pytest
import yaml

from hvdtune import _native
from hvdtune.cli.main import main
from hvdtune.launch.allocation import kubernetes

# kubeflow.org/v2beta1 as its swagger.json has it, and of Kubernetes' core what a pod here needs:
# name -> type, with a star where the field must be there. A text names another table.
SCHEMA = {
    "MPIJob": {"apiVersion*": str, "kind*": str, "metadata*": "Metadata", "spec*": "MPIJobSpec"},
    "Metadata": {"name*": str, "namespace": str, "labels": dict},
    "MPIJobSpec": {
        "slotsPerWorker": int,
        "runPolicy": "RunPolicy",
        "mpiReplicaSpecs*": "Replicas",
        "sshAuthMountPath": str,
        "launcherCreationPolicy": ("AtStartup", "WaitForWorkersReady"),
        "mpiImplementation": ("OpenMPI", "Intel", "MPICH"),
        "runLauncherAsWorker": bool,
    },
    "RunPolicy": {
        "cleanPodPolicy": ("", "All", "Running", "None"),
        "ttlSecondsAfterFinished": int,
        "activeDeadlineSeconds": int,
        "backoffLimit": int,
        "suspend": bool,
    },
    "Replicas": {"Launcher*": "Replica", "Worker": "Replica"},
    "Replica": {
        "replicas": int,
        "restartPolicy": ("Always", "OnFailure", "Never", "ExitCode"),
        "template*": "Template",
    },
    "Template": {"metadata": "Metadata", "spec*": "Pod"},
    "Pod": {"containers*": ["Container"]},
    "Container": {
        "name*": str,
        "image*": str,
        "command": [str],
        "args": [str],
        "env": ["Variable"],
        "resources": "Resources",
    },
    "Variable": {"name*": str, "value": str},
    "Resources": {"limits": "Quantities", "requests": "Quantities"},
    "Quantities": {"cpu": str, "memory": str, "nvidia.com/gpu": int},
}


def faults(value, kind, where="MPIJob"):
    """What is wrong with a value, one text each."""
    if isinstance(kind, list):
        if not isinstance(value, list):
            return [f"{where} is no list"]
        return [f for i, entry in enumerate(value) for f in faults(entry, kind[0], f"{where}[{i}]")]
    if isinstance(kind, tuple):
        return [] if value in kind else [f"{where} is {value!r}"]
    if isinstance(kind, type):
        right = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        return [] if right else [f"{where} is {value!r}"]
    if not isinstance(value, dict):
        return [f"{where} is no object"]
    table = {name.rstrip("*"): kind for name, kind in SCHEMA[kind].items()}
    needed = {name[:-1] for name in SCHEMA[kind] if name.endswith("*")}
    found = [f"{where} has no {name}" for name in needed - set(value)]
    for name, entry in value.items():
        if name not in table:
            found.append(f"{where} has {name}")
        else:
            found += faults(entry, table[name], f"{where}.{name}")
    return found


def printed(capsys, line):
    assert main(["k8s", "mpijob", *shlex.split(line)]) == 0
    return yaml.safe_load(capsys.readouterr().out)


FLAGS = (
    "--name digits --image here/train:1 --slots 4 --namespace ml --cpus 500m --memory 8Gi --gpus 2 "
    "-e 'A=b c' -e EMPTY= --cycle-time-ms 5 --autotune -- python train.py --epochs 3 'x y'"
)


def test_only_fields_that_there_are(capsys):
    for line in ("--name d --image i --slots 1 true", FLAGS, f"--workers 3 {FLAGS}"):
        assert faults(printed(capsys, line), "MPIJob") == []


def test_the_check_of_fields_can_fail(capsys):
    job = printed(capsys, FLAGS)
    job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["args"] = "x"
    del job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]
    job["spec"].update(slotsPerWorker="4", mpiImplementation="LAM", cleanPodPolicy="All")
    assert sorted(faults(job, "MPIJob")) == [
        "MPIJob.spec has cleanPodPolicy",
        "MPIJob.spec.mpiImplementation is 'LAM'",
        "MPIJob.spec.mpiReplicaSpecs.Launcher.template.spec.containers[0].args is no list",
        "MPIJob.spec.mpiReplicaSpecs.Worker has no template",
        "MPIJob.spec.slotsPerWorker is '4'",
    ]


def test_what_was_asked_for_is_there(capsys):
    job = printed(capsys, FLAGS)
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    assert job["metadata"] == {"name": "digits", "namespace": "ml"}
    assert job["spec"]["slotsPerWorker"] == 4
    replicas = job["spec"]["mpiReplicaSpecs"]
    [launcher] = replicas["Launcher"]["template"]["spec"]["containers"]
    [worker] = replicas["Worker"]["template"]["spec"]["containers"]
    assert launcher["command"] == ["mpirun"]
    words = launcher["args"]
    assert words[words.index("-np") + 1] == "4"
    assert words[-5:] == ["python", "train.py", "--epochs", "3", "x y"]
    variables = {entry["name"]: entry["value"] for entry in launcher["env"]}
    assert variables == {
        **{"A": "b c", "EMPTY": ""},
        **{"HOROVOD_AUTOTUNE": "1", "HOROVOD_CYCLE_TIME": "5.0"},
    }
    passed_on = [words[i + 1] for i, word in enumerate(words) if word == "-x"]
    assert passed_on == ["PATH", *sorted(variables)]
    limits = {"cpu": "500m", "memory": "8Gi", "nvidia.com/gpu": 2}
    assert worker["resources"] == {"limits": limits}
    assert launcher["image"] == worker["image"] == "here/train:1"
    assert replicas["Worker"]["replicas"] == 1


def test_several_workers_are_hosts_of_our_launcher(capsys):
    """It tells the processes where rank 0 is, and they have a key in common."""
    job = printed(capsys, f"--workers 3 {FLAGS}")
    assert job["spec"]["launcherCreationPolicy"] == "WaitForWorkersReady"
    replicas = job["spec"]["mpiReplicaSpecs"]
    assert replicas["Worker"]["replicas"] == 3
    [launcher] = replicas["Launcher"]["template"]["spec"]["containers"]
    assert launcher["command"] == ["hvdtune", "run"]
    assert launcher["args"] == [
        *("-np", "12", "--hostfile", "/etc/mpi/hostfile"),
        *("python", "train.py", "--epochs", "3", "x y"),
    ]
    assert {"name": "A", "value": "b c"} in launcher["env"]
    [worker] = replicas["Worker"]["template"]["spec"]["containers"]
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == 2


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--name Digits --image i --slots 1 true", "--name is 'Digits'"),
        (f"--name {'d' * 53} --image i --slots 1 true", "at most 52"),
        ("--name d --namespace -x --image i --slots 1 true", "expected one argument"),
        ("--name d --image i --slots 0 true", "'0' is not accepted"),
        ("--name d --image i --slots 1", "give the command to run"),
        ("--name d --image i --slots 1 --cpus many true", "--cpus is 'many'"),
        ("--name d --image i --slots 1 -e A true", "-e A: give NAME=VALUE"),
        ("--name d --image i --slots 1 -e 1A=2 true", "-e 1A: this is not the name"),
        (
            "--name d --image i --slots 8 --workers 9 true",
            "--workers 9 with --slots 8 are 72 processes, but a job on several hosts can have 64",
        ),
        ("--image i --slots 2 true", "--name"),
    ],
)
def test_mistakes_are_one_sentence(capsys, line, words):
    try:
        status = main(["k8s", "mpijob", *shlex.split(line)])
    except SystemExit as end:
        status = end.code
    assert status == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert words in told.err


def test_the_most_ranks_are_the_engines():
    assert kubernetes.MOST_RANKS == _native.MAX_RANKS
