"""The objects that `hvdtune k8s` prints, against the fields that Kubeflow publishes."""

import random
import shlex

import pytest
import yaml

from hvdtune import _native
from hvdtune.cli.main import main
from hvdtune.launch.kubernetes import job as jobs

# kubeflow.org/v2beta1 as its swagger.json has it, kubeflow.org/v1 and trainer.kubeflow.org/v1alpha1
# as their Go types do, and of Kubernetes' core and JobSet what is needed here: name -> type, with a
# star where the field must be there. A text names another table.
SCHEMA = {
    "MPIJob": {"apiVersion*": str, "kind*": str, "metadata*": "Metadata", "spec*": "MPIJobSpec"},
    "MPIJobV1": {
        "apiVersion*": str,
        "kind*": str,
        "metadata*": "Metadata",
        "spec*": "MPIJobV1Spec",
    },
    "MPIJobV1Spec": {
        "slotsPerWorker": int,
        "cleanPodPolicy": ("All", "Running", "None"),
        "mpiReplicaSpecs*": "Replicas",
    },
    "TrainJob": {
        "apiVersion*": str,
        "kind*": str,
        "metadata*": "Metadata",
        "spec*": "TrainJobSpec",
    },
    "TrainJobSpec": {"runtimeRef*": "RuntimeRef", "trainer": "Trainer", "suspend": bool},
    "RuntimeRef": {
        "apiGroup": ("trainer.kubeflow.org",),
        "kind": ("ClusterTrainingRuntime", "TrainingRuntime"),
        "name*": str,
    },
    "Trainer": {
        "image": str,
        "command": [str],
        "args": [str],
        "env": ["Variable"],
        "numNodes": int,
        "numProcPerNode": int,
        "resourcesPerNode": "Resources",
    },
    "TrainingRuntime": {
        "apiVersion*": str,
        "kind*": str,
        "metadata*": "Metadata",
        "spec*": "RuntimeSpec",
    },
    "RuntimeSpec": {"mlPolicy": "MlPolicy", "template*": "JobSetTemplate"},
    "MlPolicy": {"numNodes": int, "mpi": "MpiPolicy"},
    "MpiPolicy": {
        "numProcPerNode": int,
        "mpiImplementation": ("OpenMPI", "Intel", "MPICH"),
        "sshAuthMountPath": str,
        "runLauncherAsNode": bool,
    },
    "JobSetTemplate": {"metadata": "Metadata", "spec": "JobSetSpec"},
    "JobSetSpec": {
        "network": "Network",
        "successPolicy": "SuccessPolicy",
        "replicatedJobs": ["ReplicatedJob"],
    },
    "Network": {"publishNotReadyAddresses": bool},
    "SuccessPolicy": {"operator*": ("All", "Any"), "targetReplicatedJobs": [str]},
    "ReplicatedJob": {"name*": str, "template*": "JobTemplate", "dependsOn": ["DependsOn"]},
    "DependsOn": {"name*": str, "status*": ("Ready", "Complete")},
    "JobTemplate": {"metadata": "Metadata", "spec*": "JobSpec"},
    "JobSpec": {"template*": "Template", "backoffLimit": int},
    "Metadata": {"name": str, "namespace": str, "labels": dict},
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
    "Pod": {"containers*": ["Container"], "restartPolicy": ("Always", "OnFailure", "Never")},
    "Container": {
        "name*": str,
        "image*": str,
        "command": [str],
        "args": [str],
        "env": ["Variable"],
        "resources": "Resources",
        "readinessProbe": "Probe",
    },
    "Probe": {"tcpSocket": "TcpSocket", "initialDelaySeconds": int},
    "TcpSocket": {"port*": int},
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


def printed(capsys, line, kind="mpijob"):
    assert main(["k8s", kind, *shlex.split(line)]) == 0
    return list(yaml.safe_load_all(capsys.readouterr().out))


def mpijob(capsys, line):
    [job] = printed(capsys, line)
    return job


FLAGS = (
    "--name digits --image here/train:1 --slots 4 --namespace ml --cpus 500m --memory 8Gi --gpus 2 "
    "-e 'A=b c' -e EMPTY= --cycle-time-ms 5 --autotune -- python train.py --epochs 3 'x y'"
)
VARIABLES = {"A": "b c", "EMPTY": "", "HOROVOD_AUTOTUNE": "1", "HOROVOD_CYCLE_TIME": "5.0"}
PROGRAM = ["python", "train.py", "--epochs", "3", "x y"]


def variables_of(container):
    return {entry["name"]: entry["value"] for entry in container["env"]}


def pods_of(job):
    """The containers of an MPIJob's launcher and of its workers."""
    replicas = job["spec"]["mpiReplicaSpecs"]
    return [
        container
        for role in ("Launcher", "Worker")
        for container in replicas[role]["template"]["spec"]["containers"]
    ]


@pytest.mark.parametrize(
    "line", ["--name d --image i --slots 1 true", FLAGS, f"--workers 3 {FLAGS}"]
)
def test_only_fields_that_there_are(capsys, line):
    for mpi in ("openmpi", "intel", "mpich"):
        assert faults(mpijob(capsys, f"--mpi {mpi} {line}"), "MPIJob") == []
    assert faults(mpijob(capsys, f"--api-version v1 {line}"), "MPIJobV1") == []
    runtime, job = printed(capsys, line, "trainjob")
    assert faults(runtime, "TrainingRuntime") == []
    assert faults(job, "TrainJob") == []
    [job] = printed(capsys, f"--runtime theirs {line}", "trainjob")
    assert faults(job, "TrainJob") == []


def test_the_check_of_fields_can_fail(capsys):
    job = mpijob(capsys, FLAGS)
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


def test_an_mpijob_of_the_operator(capsys):
    """The hostfile is named: Open MPI 5 would not find it, and train in the launcher's pod."""
    job = mpijob(capsys, f"--workers 3 --mpi mpich {FLAGS}")
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    assert job["metadata"] == {"name": "digits", "namespace": "ml"}
    assert job["spec"]["slotsPerWorker"] == 4
    assert job["spec"]["mpiImplementation"] == "MPICH"
    assert job["spec"]["launcherCreationPolicy"] == "WaitForWorkersReady"
    assert job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] == 3
    launcher, worker = pods_of(job)
    assert launcher["command"] == ["hvdtune", "run"]
    assert launcher["args"] == ["-np", "12", "--hostfile", "/etc/mpi/hostfile", *PROGRAM]
    assert variables_of(launcher) == VARIABLES
    assert launcher["image"] == worker["image"] == "here/train:1"
    assert worker["command"] == ["/usr/sbin/sshd", "-De", "-o", "StrictModes=no"]
    limits = {"cpu": "500m", "memory": "8Gi", "nvidia.com/gpu": 2}
    assert worker["resources"] == {"limits": limits}


def test_an_elastic_mpijob(capsys):
    """The operator's script names no slots, and the launcher may be there before any pod."""
    line = f"--workers 3 --min-workers 2 --max-workers 5 {FLAGS}"
    job = mpijob(capsys, line)
    assert job["spec"]["launcherCreationPolicy"] == "AtStartup"
    assert job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] == 3
    launcher, _ = pods_of(job)
    assert launcher["command"] == ["hvdtune", "run"]
    words = launcher["args"]
    numbers = {"-np": "8", "--min-np": "8", "--max-np": "20", "--slots-per-host": "4"}
    assert {flag: words[words.index(flag) + 1] for flag in numbers} == numbers
    script = words.index("--host-discovery-script")
    assert words[script + 1] == "/etc/mpi/discover_hosts.sh"
    assert words[-5:] == PROGRAM


ELASTIC_MISTAKES = [
    ("--max-workers 2", "also give --min-workers"),
    ("--min-workers 3 --workers 2", "none is smaller than the one before"),
    ("--min-workers 1 --workers 3 --max-workers 2", "none is smaller than the one before"),
    ("--min-workers 1 --api-version v1", "are not elastic"),
    ("--min-workers 1 --max-workers 2000", "at most 1024"),
]


@pytest.mark.parametrize(("flags", "words"), ELASTIC_MISTAKES)
def test_mistakes_of_elastic_jobs_are_one_sentence(capsys, flags, words):
    assert main(shlex.split(f"k8s mpijob --name d --image i --slots 1 {flags} true")) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert words in told.err


@pytest.mark.parametrize("kind", ["mpijob", "trainjob"])
def test_the_commands_own_flags_may_begin_as_ours_do(capsys, kind):
    line = f"k8s {kind} --name d --image i --slots 1 python train.py --log runs --timeline x"
    assert main(shlex.split(line)) == 0
    assert "--log" in capsys.readouterr().out


def test_an_mpijob_of_version_1(capsys):
    """Its workers are reached without a standard input, which our own launcher needs."""
    launcher, worker = pods_of(mpijob(capsys, f"--workers 3 --api-version v1 {FLAGS}"))
    assert launcher["command"] == ["mpirun"]
    words = launcher["args"]
    assert words[words.index("-np") + 1] == "12"
    assert words[words.index("--hostfile") + 1] == "/etc/mpi/hostfile"
    assert words[-5:] == PROGRAM
    assert variables_of(launcher) == VARIABLES
    passed_on = [words[i + 1] for i, word in enumerate(words) if word == "-x"]
    assert passed_on == ["PATH", *sorted(VARIABLES)]
    assert "command" not in worker


def test_version_1_takes_only_open_mpi(capsys):
    line = "--name d --image i --slots 1 --api-version v1 --mpi"
    assert main(["k8s", "mpijob", *line.split(), "mpich", "true"]) == 2
    assert "--mpi mpich: with --api-version v1" in capsys.readouterr().err
    assert faults(mpijob(capsys, f"{line} openmpi true"), "MPIJobV1") == []


def test_a_flag_may_need_what_a_variable_says(capsys):
    line = (
        "--name d --image i --workers 2 --slots 1 -e HOROVOD_AUTOTUNE=1 -e HOROVOD_TIMELINE=t.json "
        "--autotune-warmup-samples 7 --timeline-mark-cycles true"
    )
    launcher, _ = pods_of(mpijob(capsys, line))
    assert variables_of(launcher) == {
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "7",
        "HOROVOD_TIMELINE": "t.json",
        "HOROVOD_TIMELINE_MARK_CYCLES": "1",
    }


ON_ONE_HOST = "--hierarchical-allreduce has no effect: all ranks are on one host."
NOTICES = [
    ("mpijob", "--autotune-log-file x", "--autotune-log-file has no effect without --autotune."),
    ("mpijob", "--hierarchical-allreduce", ON_ONE_HOST),
    ("trainjob", "--hierarchical-allreduce", ON_ONE_HOST),
    ("trainjob", "--hierarchical-allreduce --workers 2", ""),
    ("mpijob", "--hierarchical-allreduce --min-workers 1 --max-workers 2", ""),
]


@pytest.mark.parametrize(("kind", "flags", "notice"), NOTICES)
def test_what_has_no_effect_is_said(capsys, kind, flags, notice):
    line = f"k8s {kind} --name d --image i --slots 2 {flags} true"
    assert main(line.split()) == 0
    told = capsys.readouterr()
    assert told.err == (f"hvdtune k8s: {notice}\n" if notice else "")
    assert "kind: " in told.out


def test_a_trainjob_with_a_runtime(capsys):
    runtime, job = printed(capsys, f"--workers 3 {FLAGS}", "trainjob")
    assert job["metadata"] == {"name": "digits", "namespace": "ml"}
    assert {**runtime["metadata"], **job["metadata"]} == runtime["metadata"]
    reference = job["spec"]["runtimeRef"]
    assert (reference["kind"], reference["name"]) == ("TrainingRuntime", "digits")
    policy = runtime["spec"]["mlPolicy"]
    # The Trainer makes so many launchers.
    assert (policy["numNodes"], policy["mpi"]["numProcPerNode"]) == (1, 4)
    node, starter = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    # The Trainer gives the command to every job that has labels.
    assert "metadata" not in node["template"]
    assert starter["template"]["metadata"]["labels"]
    [trains] = node["template"]["spec"]["template"]["spec"]["containers"]
    assert trains["resources"]["limits"]["nvidia.com/gpu"] == 2
    keys = policy["mpi"]["sshAuthMountPath"]
    assert trains["command"][-1] == f"AuthorizedKeysFile={keys}/authorized_keys"
    trainer = job["spec"]["trainer"]
    assert trainer["args"] == ["-np", "12", "--hostfile", "/etc/mpi/hostfile", *PROGRAM]
    assert variables_of(trainer) == VARIABLES
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (3, 4)
    assert "resourcesPerNode" not in trainer  # they would be the launcher's


def test_a_trainjob_of_a_runtime_that_there_is(capsys):
    [job] = printed(capsys, f"--workers 3 --runtime theirs {FLAGS}", "trainjob")
    reference = job["spec"]["runtimeRef"]
    assert (reference["kind"], reference["name"]) == ("ClusterTrainingRuntime", "theirs")
    trainer = job["spec"]["trainer"]
    assert trainer["command"] == ["hvdtune", "run"]
    assert trainer["resourcesPerNode"]["limits"]["memory"] == "8Gi"


MISTAKES = [
    ("--name Digits --image i --slots 1 true", "--name is 'Digits'"),
    (f"--name {'d' * 51} --image i --slots 1 true", "at most "),
    ("--name d --namespace A --image i --slots 1 true", "--namespace is 'A'"),
    ("--name d --image '' --slots 1 true", "--image is empty"),
    ("--name d --namespace -x --image i --slots 1 true", "expected one argument"),
    ("--name d --image i --slots 0 true", "'0' is not accepted"),
    ("--name d --image i --slots 1", "give the command to run"),
    ("--name d --image i --slots 1 --cpus many true", "--cpus is 'many'"),
    ("--name d --image i --slots 1 -e A true", "-e A: give NAME=VALUE"),
    ("--name d --image i --slots 1 -e 1A=2 true", "-e 1A: this is not the name"),
    ("--name d --image i --slots 1 -e HOROVOD_CYCLE_TIME=x true", "HOROVOD_CYCLE_TIME is 'x'"),
    (
        "--name d --image i --slots 1 -e HOROVOD_CYCLE_TIME=3 --cycle-time-ms 2 true",
        "-e HOROVOD_CYCLE_TIME: --cycle-time-ms gives this variable, too",
    ),
    ("--name d --image i --slots 65 true", "--slots is 65; at most 64"),
    ("--name d --image i --slots 64 --workers 17 true", "are 1088 processes; at most 1024"),
    ("--image i --slots 2 true", "--name"),
]


@pytest.mark.parametrize("kind", ["mpijob", "trainjob"])
@pytest.mark.parametrize(("line", "words"), MISTAKES)
def test_mistakes_are_one_sentence(capsys, kind, line, words):
    try:
        status = main(["k8s", kind, *shlex.split(line)])
    except SystemExit as end:
        status = end.code
    assert status == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert words in told.err


def test_the_most_processes_are_the_engines():
    assert (jobs.MAX_RANKS, jobs.MAX_RANKS_PER_HOST) == (
        _native.MAX_RANKS,
        _native.MAX_RANKS_PER_HOST,
    )


def expanded(text):
    """What Kubernetes makes of a text of a command, if no variable is known."""
    return text.replace("$$", "$")


def test_kubernetes_replaces_nothing(capsys):
    """It would put a variable's value for `$(A)`, and one dollar sign for two."""
    line = "--name d --image i --slots 1 -e A=1 -e 'B=$(A)' -- sh -c 'echo $$ $(A) $A'"
    launcher, _ = pods_of(mpijob(capsys, line))
    assert launcher["args"][-1] == "echo $$$$ $$(A) $$A"
    assert variables_of(launcher) == {"A": "1", "B": "$$(A)"}
    _, job = printed(capsys, line, "trainjob")
    assert job["spec"]["trainer"]["args"][-1] == "echo $$$$ $$(A) $$A"


def test_a_runtime_that_cannot_be(capsys):
    for name in ("Not A Name!", ""):
        words = ["--name=d", "--image=i", "--slots=1", f"--runtime={name}", "true"]
        assert main(["k8s", "trainjob", *words]) == 2
        assert f"--runtime is {name!r}" in capsys.readouterr().err
    words = ["--name", "d" * 45, "--image=i", "--slots=1", "true"]
    assert main(["k8s", "trainjob", *words]) == 2
    assert "at most 44" in capsys.readouterr().err


def test_names_of_all_kinds_are_printed_as_they_are_or_refused(capsys):
    """Whatever a name or a quantity is: one line of error, or an object that has it."""
    random.seed(5)
    letters = "ab-.01_ A:\n'é/{#$"
    accepted = 0
    for _ in range(400):
        name, memory, image, value = ("".join(random.choices(letters, k=4)) for _ in range(4))
        name = random.choice((name, "a" + name.strip("-. _A:\n'é/{#$"), "a-1"))
        memory = random.choice((memory, "1Gi", "0.5G"))
        words = [f"--name={name}", f"--image={image}", "--slots=1", f"--memory={memory}"]
        try:
            status = main(["k8s", "mpijob", *words, f"-eX={value}", "echo", value])
        except SystemExit as end:
            status = end.code
        told = capsys.readouterr()
        if status:
            assert (status, told.out, told.err.count("\n")) == (2, "", 1)
            continue
        accepted += 1
        job = yaml.safe_load(told.out)
        assert faults(job, "MPIJob") == []
        launcher, worker = pods_of(job)
        assert job["metadata"]["name"] == name
        assert launcher["image"] == image
        assert expanded(variables_of(launcher)["X"]) == value
        assert expanded(launcher["args"][-1]) == value
        assert worker["resources"]["limits"]["memory"] == memory
    assert accepted > 40


FULL = (
    "--name d --namespace n --image i --workers 2 --slots 2 --cpus 3 --memory 16Gi --gpus 1 "
    "-e A=1 python t.py"
)


@pytest.mark.parametrize("words", [f"--api-version v1 {FULL}", FULL, f"--min-workers 1 {FULL}"])
def test_kubernetes_takes_the_pods_of_an_mpijob(capsys, words):
    validator = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    [job] = printed(capsys, words)
    for replica in job["spec"]["mpiReplicaSpecs"].values():
        template = {"metadata": {}, **replica["template"]}
        pod = {"apiVersion": "v1", "kind": "Pod", **template}
        validator.validate(pod, validator.latest_version(), strict=True)


def test_kubernetes_takes_the_jobs_of_a_runtime(capsys):
    validator = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    runtime, _ = printed(capsys, FULL, "trainjob")
    for replicated in runtime["spec"]["template"]["spec"]["replicatedJobs"]:
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {}, **replicated["template"]}
        validator.validate(job, validator.latest_version(), strict=True)
        job["spec"]["template"]["spec"]["container"] = []
        with pytest.raises(validator.ValidationError):
            validator.validate(job, validator.latest_version(), strict=True)


@pytest.mark.parametrize("kind", ["mpijob", "trainjob"])
@pytest.mark.parametrize(
    "text", ["1e-4", "5E3", "1.5e3", "-.5", "08", "0o17", "25921e05", "y", "N"]
)
def test_what_only_kubernetes_parser_takes_for_a_number_has_quotes(capsys, kind, text):
    words = ["--name=d", "--image=i", "--slots=1", f"-eA={text}", "train", text]
    assert main(["k8s", kind, *words]) == 0
    told = capsys.readouterr().out
    assert f"- '{text}'\n" in told
    assert f"value: '{text}'\n" in told
