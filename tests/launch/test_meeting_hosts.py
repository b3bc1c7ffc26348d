"""Ranks on two hosts whose launcher is told nothing: no address, no port, no key."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from rank_programs import meeting
from support.hosts import intel_mpi, slurm_cluster
from support.hosts.hosts_rig import Rig, hosts_rig, why_not
from support.hosts.mpis import MPIS, OPEN_MPI, Mpi
from support.jobs.ranks import (
    Program,
    Ranks,
    clean_environment,
    new_directory,
    program_command,
    tool,
)

REASON = why_not()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)
_, OPEN_MPI_4, MPICH = MPIS
SERVER = Path(__file__).resolve().parents[1] / "support/hosts/key_value_server.py"
RUNS, NEW_MPI = "MPI, which runs already", "MPI"


@pytest.fixture(scope="module")
def rig():
    with hosts_rig(2) as running:
        agent = running.folder / "agent"
        agent.write_text(f'#!/bin/sh\nexec {running.client} -o StrictHostKeyChecking=no "$@"\n')
        agent.chmod(0o755)
        yield running


def mpirun(rig: Rig, mpi: Mpi, names: Sequence[str]) -> list[str]:
    """Starts two ranks on each host."""
    mpi.require()
    agent = str(rig.folder / "agent")
    words = [mpi.launcher[0], "-np", "4"]
    if mpi is MPICH:
        return [*words, "-launcher", "ssh", "-launcher-exec", agent, *["-ppn", "2", "-hosts"],
                "hosta,hostb"]  # fmt: skip
    words += ["--allow-run-as-root", "--bind-to", "none", "-H", "hosta:2,hostb:2"]
    words += ["--mca", "plm_ssh_agent" if mpi is OPEN_MPI else "plm_rsh_agent", agent]
    return [*words, *(word for name in names for word in ("-x", name))]


def environment_of(mpi: Mpi, folder: Path) -> dict[str, str]:
    """What makes mpi4py, and UCX, suit the MPI."""
    if mpi is not MPICH:
        # mpi4py asks the machine's default MPI which one it is, and that may be MPICH.
        return {"OMP_NUM_THREADS": "1", "MPI4PY_MPIABI": "openmpi"}
    (folder / "libmpi.so.12").symlink_to(mpi.library)
    # Otherwise UCX sees one machine, and uses its memory between the hosts.
    return {"UCX_TLS": "tcp,self", "MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": str(folder)}


def run(
    commands: Mapping[str, Sequence[str]],
    rig: Rig,
    environment: Mapping[str, str],
    program: Program,
    *args: Any,
    module: str = "",
) -> list[dict[str, Any]]:
    """What the four ranks return that a command on each of some hosts starts."""
    directory = new_directory()
    python, *rest = program_command(program, args, directory)
    behind = [python, *(["-m", module] if module else []), *rest]
    ranks = Ranks(directory, directory / "values")
    with ranks:
        for name, words in commands.items():
            ranks.start(rig.on(name, [*words, *behind]), clean_environment(environment))
        values = ranks.wait(100).values
    assert len(values) == 4
    return list(values)


def check(values: Sequence[Mapping[str, Any]], means: str) -> None:
    for seen in values:
        assert seen["means"] == ([means] if means else [])
        assert set(seen["sums"]) == {4.0}
        assert sorted(seen["hosts"]) == [0, 0, 1, 1]
    assert sorted(seen["rank"] for seen in values) == [0, 1, 2, 3]


LONG = pytest.mark.long
CASES = [
    pytest.param(OPEN_MPI, "", (), "PMIx", id="Open MPI 5"),
    pytest.param(OPEN_MPI_4, "", (), "PMIx", id="Open MPI 4"),
    pytest.param(MPICH, "", (), "PMI", id="MPICH"),
    *(
        pytest.param(mpi, mpi4py, (), means, id=f"{mpi.name}, mpi4py {mpi4py}", marks=LONG)
        for mpi, own in ((OPEN_MPI, "PMIx"), (OPEN_MPI_4, "PMIx"), (MPICH, "PMI"))
        for mpi4py, means in (("first", RUNS), ("last", own))
    ),
    *(
        pytest.param(mpi, "", ("PMIx", "PMI"), NEW_MPI, id=f"{mpi.name}, by MPI alone", marks=LONG)
        for mpi in MPIS
    ),
]


@pytest.mark.timeout(150)
@pytest.mark.parametrize(("mpi", "mpi4py", "without", "means"), CASES)
def test_a_bare_mpirun(
    rig: Rig, tmp_path: Path, mpi: Mpi, mpi4py: str, without: Sequence[str], means: str
) -> None:
    if mpi4py:
        pytest.importorskip("mpi4py")
    environment = environment_of(mpi, tmp_path)
    command = mpirun(rig, mpi, [*environment])
    values = run({"hosta": command}, rig, environment, meeting.meet, mpi4py, without)
    check(values, means)
    if mpi4py == "last":
        assert [seen["mpi4py"] for seen in values] == [4] * 4


@pytest.mark.long
@pytest.mark.timeout(150)
@pytest.mark.parametrize("mpi", MPIS, ids=str)
@pytest.mark.parametrize("program", [meeting.meet, meeting.meet_in_a_communicator])
def test_python_m_mpi4py(rig: Rig, tmp_path: Path, mpi: Mpi, program: Program) -> None:
    pytest.importorskip("mpi4py")
    environment = environment_of(mpi, tmp_path)
    command = mpirun(rig, mpi, [*environment])
    values = run({"hosta": command}, rig, environment, program, module="mpi4py")
    if program is meeting.meet:
        check(values, "PMI" if mpi is MPICH else "PMIx")
    else:
        check(values, "")


# A process of jsrun's, which runs a PMIx server as Open MPI's launcher does, and starts no MPI.
AS_JSRUN = """
export JSM_NAMESPACE_RANK=$OMPI_COMM_WORLD_RANK JSM_NAMESPACE_SIZE=$OMPI_COMM_WORLD_SIZE
export JSM_NAMESPACE_LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK
export JSM_NAMESPACE_LOCAL_SIZE=$OMPI_COMM_WORLD_LOCAL_SIZE LSB_JOBID=17
unset $(env | sed -n 's/^\\(OMPI_[A-Za-z0-9_]*\\)=.*/\\1/p')
exec "$@"
"""


@pytest.mark.long
@pytest.mark.timeout(150)
@pytest.mark.parametrize("mpi", [OPEN_MPI, OPEN_MPI_4], ids=str)
def test_jsrun_that_starts_no_mpi(rig: Rig, mpi: Mpi) -> None:
    command = [*mpirun(rig, mpi, ()), "/bin/sh", "-c", AS_JSRUN, "sh"]
    check(run({"hosta": command}, rig, {}, meeting.meet), "PMIx")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_intel_mpi(rig: Rig) -> None:
    folder = intel_mpi.intel_mpi()
    environment = intel_mpi.environment(folder, rig.folder / "agent")
    command = [str(folder / "bin" / "mpiexec.hydra"), "-np", "4", "-ppn", "2"]
    command += ["-hosts", "hosta,hostb"]
    check(run({"hosta": command}, rig, environment, meeting.meet), "PMI")


@pytest.mark.long
@pytest.mark.timeout(150)
def test_torchrun(rig: Rig) -> None:
    pytest.importorskip("torch")
    words = [tool("torchrun"), "--nnodes", "2", "--nproc-per-node", "2", "--no-python"]
    words += ["--master-addr", rig.address("hosta"), "--master-port", "29400"]
    commands = {f"host{letter}": [*words, "--node-rank", str(node)]
                for node, letter in enumerate("ab")}  # fmt: skip
    check(run(commands, rig, {}, meeting.meet), "torchrun's store")


@pytest.fixture(scope="module")
def slurm_environment(rig: Rig) -> Iterator[dict[str, str]]:
    """For commands of a running Slurm, whose munge does not listen at the usual place."""
    missing = slurm_cluster.why_not()
    if missing:
        pytest.skip(missing)
    with slurm_cluster.slurm_cluster(rig) as running:
        programs = running.folder / "programs"
        programs.mkdir()
        for name in ("munge", "unmunge"):
            path = shutil.which(name)
            text = f'#!/bin/sh\nexec {path} --socket={running.folder}/munge.socket "$@"\n'
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        yield {**running.environment, "PATH": f"{programs}:{slurm_cluster.PATH}"}


@pytest.mark.long
@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("kind", "mpi4py", "without", "means"),
    [
        ("none", "", (), "munge"),
        ("pmi2", "", (), "munge"),
        ("pmi2", "last", (), "munge"),
        ("pmi2", "first", (), RUNS),
        ("pmi2", "last", ("munge",), NEW_MPI),
        ("pmi2", "", ("munge", NEW_MPI), ""),
        ("pmix", "", (), "munge"),
        ("pmix", "", ("munge",), "PMIx"),
        ("pmix", "last", (), "munge"),
        ("pmix", "first", (), RUNS),
    ],
)
def test_srun(
    rig: Rig,
    slurm_environment: Mapping[str, str],
    tmp_path: Path,
    kind: str,
    mpi4py: str,
    without: Sequence[str],
    means: str,
) -> None:
    command = ["srun", f"--mpi={kind}", "-N", "2", "--ntasks-per-node", "2"]
    environment = {**slurm_environment}
    if mpi4py or NEW_MPI in without:
        pytest.importorskip("mpi4py")
        mpi = OPEN_MPI_4 if kind == "pmix" else MPICH
        mpi.require()
        environment |= {**environment_of(mpi, tmp_path), "HVDTUNE_MPI_LIBRARY": mpi.library}
    if not means:
        with pytest.raises(AssertionError, match="Slurm lets a process start PMI only once"):
            run({"hosta": command}, rig, environment, meeting.meet, mpi4py, without)
        return
    values = run({"hosta": command}, rig, environment, meeting.meet, mpi4py, without)
    check(values, means)
    if mpi4py == "last":
        assert [seen["mpi4py"] for seen in values] == [4] * 4


@pytest.mark.timeout(100)
def test_horovods_key_value_server(rig: Rig) -> None:
    """As TonY starts ranks: the server is on another host than rank 0, at no rank's address."""
    address, port = rig.address("hostb"), 31234
    server = subprocess.Popen(
        rig.on("hostb", [sys.executable, str(SERVER), address, str(port)]),
        stdin=subprocess.DEVNULL,
    )
    try:
        listening = rig.on("hostb", ["ss", "-Hltn"])
        deadline = time.monotonic() + 20
        while f":{port} ".encode() not in subprocess.check_output(listening):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        directory = new_directory()
        command = program_command(meeting.meet, (), directory)
        ranks = Ranks(directory, directory / "values")
        with ranks:
            for rank in range(4):
                own = clean_environment(tony_environment(rank, address, port))
                ranks.start(rig.on("hosta" if rank < 2 else "hostb", command), own)
            check(ranks.wait(60).values, "a key-value server")
    finally:
        server.kill()
        server.wait()


def tony_environment(rank: int, address: str, port: int) -> dict[str, str]:
    return {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": "4",
        "HOROVOD_LOCAL_RANK": str(rank % 2),
        "HOROVOD_LOCAL_SIZE": "2",
        "HOROVOD_CROSS_RANK": str(rank // 2),
        "HOROVOD_CROSS_SIZE": "2",
        "HOROVOD_HOSTNAME": "ab"[rank // 2],
    }
