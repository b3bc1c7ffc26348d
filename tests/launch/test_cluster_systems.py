"""What cluster systems run on their launcher's host, on hosts that stand for their nodes.

Each row is done by hand as the system does it: the same command line, the variables that it sets,
the files that it mounts, its way to reach the other nodes. hosta is where the launcher runs.

The program sums up arrays of all sizes, and what comes out is the same bits as on one host; in one
test, or in all with HVDTUNE_TEST_LONG=1, it is a script of Horovod's API, unchanged, which trains
what it trains on one host.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from rank_programs import digits
from rank_programs import hosts as programs
from support.hosts.hosts_rig import Rig, hosts_rig, why_not
from support.hosts.mpis import MPIS, OPEN_MPI, Mpi
from support.jobs.ranks import (
    Ranks,
    clean_environment,
    hvdtune_command,
    new_directory,
    program_command,
    run_ranks,
)
from support.tiers import EVERY

from hvdtune.cli.main import main

REASON = why_not()
pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(REASON), reason=REASON)]
STEPS = 10
_, OPEN_MPI_4, _ = MPIS
DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
EPOCHS = Path(__file__).parents[1] / "rank_programs" / "elastic_epochs.py"
SSH_PORT = "2222"  # the hosts' own sshd, which stands for a login that is set up, has 22


class System(NamedTuple):
    """A system's launcher: what it runs, and what the system has set and mounted there.

    `{folder}` in a text is a folder that all hosts see. `agent` is how mpirun reaches hosts; "" is
    the ssh that is set up in the image.
    """

    command: str
    mpi: Mpi | None = OPEN_MPI_4
    environment: Mapping[str, str] = {}
    files: Mapping[str, str] = {}
    agent: str = ""


def operator(hostfile: str, **environment: str) -> dict[str, Any]:
    """What Kubeflow's operators set, and mount."""
    return {
        "environment": {"K_MPI_JOB_ROLE": "launcher", **environment},
        "files": {"/etc/mpi/hostfile": hostfile},
    }


# Reaches a pod by `kubectl exec`, without its standard input.
KUBEXEC = """#!/bin/sh
POD_NAME=$1
shift
case $POD_NAME in
{cases}
esac
"""
OMPI = {
    "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
    "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
OVER_SSH = {**OMPI, "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
            "OMPI_MCA_orte_set_default_slots": "2"}  # fmt: skip
OVER_KUBEXEC = {**OMPI, "OMPI_MCA_plm_rsh_agent": "/etc/mpi/kubexec.sh"}
PODS = "hostb slots=2\nhostc slots=2\n"
AZURE = {
    "AZ_BATCH_MASTER_NODE": "10.77.0.1:6105",
    "AZ_BATCH_NODE_LIST": "10.77.0.1;10.77.0.2",
    "AZUREML_NODE_COUNT": "2",
}
AZURE_COMMAND = (
    "mpirun --allow-run-as-root -np 4 --host 10.77.0.1:2,10.77.0.2:2 --bind-to none --map-by slot "
    "--mca btl_tcp_if_include eth0 -x PATH -x AZ_BATCH_MASTER_NODE -x AZUREML_NODE_COUNT"
)
SYSTEMS = {
    "MPI Operator, mpirun": System("mpirun -np 4", **operator(PODS, **OVER_SSH)),
    "MPI Operator, mpirun of Open MPI 5": System(
        "mpirun -np 4 --hostfile /etc/mpi/hostfile", OPEN_MPI, **operator(PODS, **OVER_SSH)
    ),
    "MLRun": System(
        "mpirun -x NCCL_SOCKET_NTHREADS=2 -x NCCL_NSOCKS_PERTHREAD=8 -x NCCL_MIN_NCHANNELS=4",
        **operator(PODS, **OVER_KUBEXEC, HOROVOD_TIMELINE="{folder}/hvd_logs/trace.log"),
        agent="/etc/mpi/kubexec.sh",
    ),
    "Azure ML": System(AZURE_COMMAND, environment=AZURE),
    "Azure ML, Open MPI 5": System(AZURE_COMMAND, OPEN_MPI, AZURE),
    "Gradient": System(
        "mpirun --allow-run-as-root -np 4 --hostfile /generated/hostfile "
        "-bind-to none -map-by slot -mca pml ob1 -mca btl ^openib",
        files={"/generated/hostfile": "hosta slots=1\nhostb slots=3\n"},
    ),
    "SageMaker": System(
        "mpirun --host hosta:2,hostb:2 -np 4 --allow-run-as-root --display-map --tag-output "
        "-mca btl_tcp_if_include eth0 -mca oob_tcp_if_include eth0 -mca plm_rsh_no_tree_spawn 1 "
        "-bind-to none -map-by slot -mca pml ob1 -mca btl ^openib "
        "-mca orte_abort_on_non_zero_status 1 -x NCCL_MIN_NRINGS=4 -x NCCL_SOCKET_IFNAME=eth0 "
        "-x NCCL_DEBUG -x LD_LIBRARY_PATH -x PATH -x SM_HOSTS",
        environment={"SM_HOSTS": '["hosta","hostb"]', "NCCL_DEBUG": "WARN"},
    ),
    "Horovod's Helm chart": System(
        "mpiexec --allow-run-as-root --hostfile /horovod/generated/hostfile "
        "--mca orte_keep_fqdn_hostnames t --mca oob_tcp_if_include eth0",
        files={"/horovod/generated/hostfile": "hosta slots=2\nhostb slots=1\nhostc slots=1\n"},
    ),
    "MXNet's README": System(
        "mpirun -np 4 -H hosta:2,hostb:2 -bind-to none -map-by slot -x NCCL_DEBUG=INFO "
        "-mca pml ob1 -mca btl ^openib",
        environment={"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    ),
}


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with hosts_rig(3) as running:
        agent = running.folder / "agent"
        agent.write_text(f'#!/bin/sh\nexec {running.client} -o StrictHostKeyChecking=no "$@"\n')
        agent.chmod(0o755)
        yield running


@contextlib.contextmanager
def mounted(rig: Rig, host: str, folder: Path, path: str) -> Iterator[None]:
    """`folder` lies at `path`, on that host alone."""
    made = [str(parent) for parent in (Path(path), *Path(path).parents) if not parent.exists()]
    os.makedirs(path, exist_ok=True)
    try:
        subprocess.run(rig.on(host, ["mount", "--bind", str(folder), path]), check=True)
        yield
    finally:
        subprocess.run(rig.on(host, ["umount", path]), check=False)
        for name in made:
            with contextlib.suppress(OSError):
                os.rmdir(name)


def write_kubexec(rig: Rig, path: Path, environment: Mapping[str, str]) -> None:
    """A process in a pod gets the pod's environment, and nothing of the launcher's."""
    own = {"OMP_NUM_THREADS": "1", "HOME": "/root", **environment}
    own |= {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    pod = ["env", "-i", *(f"{name}={text}" for name, text in own.items())]
    cases = [
        f'{name}) exec {shlex.join(rig.on(name, pod))} /bin/sh -c "$*" </dev/null ;;'
        for name in rig.names
    ]
    path.write_text(KUBEXEC.format(cases="\n".join(cases)))
    path.chmod(0o755)


@cache
def sums_of_one_host() -> str:
    [digest] = set(run_ranks(4, programs.train, STEPS).values)
    return digest


@cache
def weights_of_one_host() -> np.ndarray[Any, Any]:
    weights: np.ndarray[Any, Any] = run_ranks(4, digits.train, 1, timeout=200).values[0]["weights"]
    return weights


def train(
    rig: Rig,
    words: list[str],
    environment: Mapping[str, str],
    module: str = "",
) -> None:
    """Run the program behind a command on hosta, or on request a script; it ends as on one host."""
    directory = new_directory()
    program, argument = (digits.train, 1) if EVERY else (programs.train, STEPS)
    python, *rest = program_command(program, (argument,), directory)
    behind = [python, *(["-m", module] if module else []), *rest]
    with Ranks(directory, directory / "values") as ranks:
        ranks.start(rig.on("hosta", [*words, *behind]), clean_environment(environment))
        values = ranks.wait(150).values
    assert len(values) == 4
    for seen in values:
        if EVERY:
            assert np.allclose(seen["weights"], weights_of_one_host(), atol=1e-4)
        else:
            assert seen == sums_of_one_host()


@pytest.mark.timeout(250)
@pytest.mark.parametrize("name", SYSTEMS)
def test_mpirun_of(rig: Rig, tmp_path: Path, name: str) -> None:
    system = SYSTEMS[name]
    assert system.mpi is not None
    system.mpi.require()
    module = "mpi4py" if name == "SageMaker" else ""
    if module:
        pytest.importorskip("mpi4py")
    environment = {name: text.format(folder=tmp_path) for name, text in system.environment.items()}
    agent = system.agent or str(rig.folder / "agent")
    key = "OMPI_MCA_plm_rsh_agent" if system.mpi is OPEN_MPI_4 else "PRTE_MCA_plm_ssh_agent"
    environment[key] = agent
    _, *words = system.command.split()
    with contextlib.ExitStack() as stack:
        for path, text in system.files.items():
            folder = tmp_path / path.strip("/").replace("/", "-")
            folder.mkdir()
            (folder / "hostfile").write_text(text)
            if system.agent:
                own = {
                    key: value for key, value in environment.items() if key.startswith("HOROVOD")
                }
                write_kubexec(rig, folder / "kubexec.sh", own)
            # Open MPI looks on every host for the program that reaches hosts.
            for host in rig.names if system.agent else ["hosta"]:
                stack.enter_context(mounted(rig, host, folder, str(Path(path).parent)))
        train(rig, [system.mpi.launcher[0], *words], environment, module)
    if name == "MLRun":
        assert (tmp_path / "hvd_logs" / "trace.log").stat().st_size > 0


def printed(capsys: pytest.CaptureFixture[str], kind: str, *words: str) -> list[dict[str, Any]]:
    flags = ("--name=d", "--image=i", "--workers=2", "--slots=2", *words)
    assert main(["k8s", kind, *flags, "PROGRAM"]) == 0
    return list(yaml.safe_load_all(capsys.readouterr().out))


def pods_of(job: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The containers of an MPIJob's launcher, and of its workers."""
    replicas = job["spec"]["mpiReplicaSpecs"]
    return [replicas[r]["template"]["spec"]["containers"][0] for r in ("Launcher", "Worker")]


@contextlib.contextmanager
def pods(rig: Rig, command: list[str], keys: str, folder: Path) -> Iterator[None]:
    """hostb and hostc run `command`, an sshd; mounted keys lie in the folder `keys`."""
    secret = folder / "secret"
    (secret / "..data").mkdir(parents=True)
    secret.chmod(0o1777)
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", str(secret / "..data/id_rsa")],
        check=True,
    )
    shutil.copy(secret / "..data/id_rsa.pub", secret / "..data/authorized_keys")
    for file in (secret / "..data").iterdir():
        file.chmod(0o600 if keys == "/root/.ssh" else 0o640)
        (secret / file.name).symlink_to(f"..data/{file.name}")
    subprocess.run(["ssh-keygen", "-A"], check=True, stdout=subprocess.DEVNULL)
    servers = []
    with contextlib.ExitStack() as stack:
        for host in ("hosta", "hostb", "hostc"):
            stack.enter_context(mounted(rig, host, secret, keys))
        try:
            for host in ("hostb", "hostc"):
                words = rig.on(host, [*command, "-p", SSH_PORT])
                servers.append(subprocess.Popen(words, stdin=subprocess.DEVNULL))
            yield
        finally:
            for server in servers:
                server.kill()
                server.wait()


def image(folder: Path) -> dict[str, str]:
    """What is in the launcher's image: programs by their names, and how ssh is set up."""
    programs = folder / "programs"
    programs.mkdir()
    ssh = f"{shutil.which('ssh')} -p {SSH_PORT} -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    for name, words in (("hvdtune", shlex.join(hvdtune_command())), ("ssh", ssh)):
        (programs / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (programs / name).chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    return {"PATH": path, "XDG_CACHE_HOME": str(folder), "TMPDIR": str(folder)}


def without_program(container: Mapping[str, Any]) -> list[str]:
    """The words of a container, but for the program that was to be printed."""
    *words, program = [*container["command"], *container["args"]]
    assert program == "PROGRAM"
    return [word.replace("$$", "$") for word in words]  # as Kubernetes does


@pytest.fixture
def etc_mpi(rig: Rig, tmp_path: Path) -> Iterator[Path]:
    """/etc/mpi of the pods; but for `kubexec.sh`, only the launcher's has something there."""
    folder = tmp_path / "mpi"
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        for host in rig.names:
            stack.enter_context(mounted(rig, host, folder, "/etc/mpi"))
        yield folder


@pytest.mark.timeout(250)
@pytest.mark.parametrize(("mpi", "hostfile"), [("openmpi", PODS), ("mpich", "hostb:2\nhostc:2\n")])
def test_a_printed_mpijob(
    rig: Rig,
    etc_mpi: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    mpi: str,
    hostfile: str,
) -> None:
    [job] = printed(capsys, "mpijob", f"--mpi={mpi}")
    launcher, worker = pods_of(job)
    (etc_mpi / "hostfile").write_text(hostfile)
    with pods(rig, worker["command"], "/root/.ssh", tmp_path):
        train(rig, without_program(launcher), image(tmp_path))


@pytest.mark.timeout(120)
def test_a_printed_mpijob_whose_pods_come_and_go(
    rig: Rig, etc_mpi: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The operator writes its script anew for the pods that run."""
    [job] = printed(capsys, "mpijob", "--min-workers=1", "--slots=1")
    launcher, worker = pods_of(job)

    def run_pods(*hosts: str) -> None:
        script = etc_mpi / "new"
        script.write_text("#!/bin/sh\n" + "".join(f"echo {host}\n" for host in hosts))
        script.chmod(0o555)
        script.rename(etc_mpi / "discover_hosts.sh")

    log, output = tmp_path / "log", tmp_path / "output"
    log.touch()
    plan = json.dumps({"log": str(log), "sizes": [1, 2, 1], "fails": {}})
    words = [*without_program(launcher), sys.executable, str(EPOCHS), plan]

    def wait_for_notes(count: int) -> None:
        while len(log.read_text().splitlines()) < count:
            assert process.poll() is None, output.read_text()
            time.sleep(0.05)

    run_pods("hostb")
    with pods(rig, worker["command"], "/root/.ssh", tmp_path), output.open("wb") as out:
        process = subprocess.Popen(
            rig.on("hosta", words), env=clean_environment(image(tmp_path)),
            stdin=subprocess.DEVNULL, stdout=out, stderr=out,
        )  # fmt: skip
        try:
            wait_for_notes(1)
            run_pods("hostb", "hostc")
            wait_for_notes(2)
            run_pods("hostc")
            assert process.wait(60) == 0, output.read_text()
        finally:
            process.terminate()
            process.wait(60)
    notes = [json.loads(line) for line in log.read_text().splitlines()]
    assert [note["size"] for note in notes] == [1, 2, 1]
    assert [note["host"] for note in notes] == ["hostb", "hostb", "hostc"]


@pytest.mark.timeout(250)
@pytest.mark.parametrize("mpi", [OPEN_MPI_4, OPEN_MPI], ids=str)
def test_a_printed_mpijob_of_version_1(
    rig: Rig, etc_mpi: Path, capsys: pytest.CaptureFixture[str], mpi: Mpi
) -> None:
    mpi.require()
    [job] = printed(capsys, "mpijob", "--api-version=v1")
    launcher, _ = pods_of(job)
    (etc_mpi / "hostfile").write_text(PODS)
    write_kubexec(rig, etc_mpi / "kubexec.sh", {})
    _, *words = without_program(launcher)
    train(rig, [mpi.launcher[0], *words], OVER_KUBEXEC)


@pytest.mark.timeout(250)
def test_a_printed_trainjob(
    rig: Rig, etc_mpi: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime, job = printed(capsys, "trainjob")
    keys = runtime["spec"]["mlPolicy"]["mpi"]["sshAuthMountPath"]
    node = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]
    [server] = node["template"]["spec"]["template"]["spec"]["containers"]
    (etc_mpi / "hostfile").write_text(PODS)
    words = without_program(job["spec"]["trainer"])
    with pods(rig, server["command"], keys, tmp_path):
        train(rig, words, {**image(tmp_path), **OVER_SSH})


@pytest.mark.timeout(250)
def test_the_plain_manifest(rig: Rig, tmp_path: Path) -> None:
    """Which is the Helm chart's, too (tests/unit/test_deploy.py)."""
    objects = [*yaml.safe_load_all((DEPLOY / "kubernetes" / "pods.yaml").read_text())]
    [worker], [launcher] = (o["spec"]["template"]["spec"]["containers"] for o in objects[1:])
    variables = {entry["name"]: entry["value"] for entry in launcher["env"]}
    with (rig.folder / "hosts").open("a") as names:
        for number, host in enumerate(("hostb", "hostc")):
            names.write(f"{rig.address(host)} digits-{number}.digits\n")
    [mount] = launcher["volumeMounts"]
    with pods(rig, worker["command"], mount["mountPath"], tmp_path):
        environment = {**image(tmp_path), **variables, "SLOTS": "2"}
        train(rig, launcher["command"], environment)
