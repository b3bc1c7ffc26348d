"""The table of launchers in docs/running/data-planes.md, cell by cell, on two hosts of two ranks.

Usually every launcher is tried with one data plane, another one from row to row. With
HVDTUNE_TEST_LONG=1 each is tried with all, and runs examples/digits.py, which on two hosts ends
with the weights of one host (test_hosts.py always has one of these).
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from subprocess import PIPE
from typing import Any

import numpy as np
import pytest
from rank_programs import data_planes, digits
from rank_programs import hosts as programs
from support.hosts import slurm_cluster
from support.hosts.hosts_rig import Rig, hosts_rig, why_not
from support.hosts.mpis import MPIS, OPEN_MPI
from support.hosts.slurm_cluster import Slurm
from support.jobs.ranks import (
    Program,
    Ranks,
    RanksResult,
    clean_environment,
    hvdtune_command,
    new_directory,
    program_command,
    run_ranks,
    tool,
)
from support.tiers import EVERY

import hvdtune

DOCS = Path(__file__).resolve().parents[2] / "docs"
sys.path.insert(0, str(DOCS))
import launchers_table as table  # noqa: E402

sys.path.remove(str(DOCS))
REASON = why_not()
pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(REASON), reason=REASON)]
STEPS = 10
HOSTS_FIRST = {"HOROVOD_HIERARCHICAL_ALLREDUCE": "1"}
_, OPEN_MPI_4, MPICH = MPIS
# Which MPI starts the processes; of a job that no mpirun starts, which could carry its tensors.
MPI_OF = {
    "mpi-4": OPEN_MPI_4, "mpirun-4": OPEN_MPI_4,
    "mpi-mpich": MPICH, "mpich": MPICH, "srun-pmi2": MPICH,
}  # fmt: skip
HOSTS_SCRIPT = DOCS.parent / "examples" / "slurm" / "hosts.sh"
EPOCHS = Path(__file__).parents[1] / "rank_programs" / "elastic_epochs.py"
SLURMS = ("srun", "srun-pmi2", "sbatch")


@pytest.fixture(scope="module")
def rig():
    with hosts_rig(2) as running:
        agent = running.folder / "agent"
        agent.write_text(f'#!/bin/sh\nexec {running.client} -o StrictHostKeyChecking=no "$@"\n')
        agent.chmod(0o755)
        yield running


@pytest.fixture(scope="module")
def slurm(rig):
    missing = slurm_cluster.why_not()
    if missing:
        pytest.skip(missing)
    with slurm_cluster.slurm_cluster(rig) as running:
        yield running


class Job:
    """How one of the table's launchers starts four ranks on two hosts."""

    def __init__(self, rig: Rig, key: str, environment: Mapping[str, str], folder: Path) -> None:
        self.rig, self.key, self.folder = rig, key, folder
        self.mpi = MPI_OF.get(key, OPEN_MPI)
        self.environment = dict(environment)
        if self.mpi is not OPEN_MPI:
            self.mpi.require()
            self.environment["HVDTUNE_MPI_LIBRARY"] = self.mpi.library
        if self.mpi is MPICH:
            # Otherwise UCX sees one machine, and uses its memory between the hosts.
            self.environment["UCX_TLS"] = "tcp,self"

    def commands(self) -> list[list[str]]:
        """What runs on hosta, and after it on hostb, with a program's command behind it."""
        if self.key in ("ssh", "gloo"):
            flags = ["--gloo"] if self.key == "gloo" else []
            return [hvdtune_command("run", "-np", "4", *flags, "-H", "hosta:2,hostb:2")]
        if self.key in ("mpi", "mpi-4", "mpi-mpich"):
            return [self._our_mpirun()]
        if self.key == "sbatch":
            output = str(self.folder / "batch.out")
            flags = ["--wait", "--output", output, "-N", "2", "--ntasks-per-node", "2"]
            return [["sbatch", *flags, self._batch_script()]]
        if self.key in SLURMS:
            # munge does not listen at its usual place here, and MPI is not begun without need.
            self.environment["HVDTUNE_SECRET"] = "of this test"
            flags = ["--mpi=pmi2"] if self.key == "srun-pmi2" else []
            return [["srun", *flags, "-N", "2", "--ntasks-per-node", "2"]]
        if self.key == "torchrun":
            return [self._torchrun(node) for node in range(2)]
        return [self._mpirun()]

    def _our_mpirun(self) -> list[str]:
        path = self.folder / "bin"
        path.mkdir()
        program = self.mpi.launcher[0]
        (path / "mpirun").write_text(f'#!/bin/sh\nexec {program} "$@"\n')
        (path / "mpirun").chmod(0o755)
        self.environment["PATH"] = f"{path}:{os.environ['PATH']}"
        flags = shlex.join(self._agent())
        return hvdtune_command(
            "run", "-np", "4", "--mpi", "-H", "hosta:2,hostb:2", f"--mpi-args={flags}"
        )

    def _agent(self) -> list[str]:
        """The words that make an mpirun reach the rig's hosts."""
        agent = str(self.rig.folder / "agent")
        if self.mpi is MPICH:
            return ["-launcher", "ssh", "-launcher-exec", agent]
        return ["--mca", "plm_ssh_agent" if self.mpi is OPEN_MPI else "plm_rsh_agent", agent]

    def _mpirun(self) -> list[str]:
        words = [self.mpi.launcher[0], *self._agent(), "-np", "4"]
        if self.mpi is MPICH:
            return [*words, "-ppn", "2", "-hosts", "hosta,hostb"]
        words += ["--allow-run-as-root", "--bind-to", "none", "--map-by", "slot"]
        if self.key == "hostfile":
            file = self.folder / "hostfile"
            file.write_text("hosta slots=2\nhostb slots=2\n")
            words += ["--hostfile", str(file)]
        else:
            words += ["-H", "hosta:2,hostb:2"]
        names = [*self.environment, "OMP_NUM_THREADS"]
        names += ["PYTHONPATH"] if "PYTHONPATH" in os.environ else []
        return [*words, *(word for name in names for word in ("-x", name))]

    def _batch_script(self) -> str:
        script = self.folder / "batch.sh"
        script.write_text(f'#!/bin/sh\nexec {shlex.join(hvdtune_command("run"))} "$@"\n')
        return str(script)

    def _torchrun(self, node: int) -> list[str]:
        words = ["--nnodes", "2", "--nproc-per-node", "2", "--node-rank", str(node)]
        words += ["--master-addr", self.rig.address("hosta"), "--master-port", "29400"]
        return [tool("torchrun"), *words, "--no-python"]

    def run(self, program: Program, *args: Any) -> RanksResult:
        """Run a program to its end."""
        pytest.importorskip("torch")
        directory = new_directory()
        command = program_command(program, args, directory)
        ranks = Ranks(directory, directory / "values")
        with ranks:
            for name, words in zip(("hosta", "hostb"), self.commands(), strict=False):
                environment = clean_environment(self.environment)
                ranks.start(self.rig.on(name, [*words, *command]), environment)
            return ranks.wait(200)


def prepare(rig: Rig, key: str, plane: str, folder: Path, **more: str) -> Job:
    if plane == "GLOO" and not hvdtune.gloo_built():
        pytest.skip("hvdtune was built without Gloo (Debian: libgloo-dev)")
    chosen = {"HOROVOD_CPU_OPERATIONS": plane} if plane else {}
    return Job(rig, key, {**rig.environment(folder / "cache"), **chosen, **more}, folder)


@cache
def of_one_host() -> str:
    [digest] = set(run_ranks(4, programs.train, STEPS).values)
    return digest


@cache
def of_sockets_hosts_first() -> str:
    [digest] = set(run_ranks(4, programs.train, STEPS, env=HOSTS_FIRST, hosts=[2, 2]).values)
    return digest


CELLS = [
    pytest.param(row.key, plane, status, id=f"{row.key}-{plane or 'own'}")
    for number, row in enumerate(table.LAUNCHERS)
    for place, (plane, status) in enumerate(row.planes.items())
    if status != table.UNTRIED and (EVERY or place == number % len(row.planes))
]
OF_SLURM = [cell for cell in CELLS if cell.values[0] in SLURMS]
OTHERS = [cell for cell in CELLS if cell not in OF_SLURM]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("key", "plane", "status"), OTHERS)
def test_a_cell(rig: Rig, tmp_path: Path, key: str, plane: str, status: str) -> None:
    check_cell(prepare(rig, key, plane, tmp_path), plane, status)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("key", "plane", "status"), OF_SLURM)
def test_a_cell_of_slurm(
    rig: Rig, slurm: Slurm, tmp_path: Path, key: str, plane: str, status: str
) -> None:
    check_cell(prepare(rig, key, plane, tmp_path, **slurm.environment), plane, status)


def check_cell(job: Job, plane: str, status: str) -> None:
    if status != table.WORKS:
        for (kind, text), _ in job.run(data_planes.fail_to_start).values:
            assert kind == "ValueError"
            assert status in text
        return
    values = job.run(programs.train_both_ways, STEPS).values
    assert len(values) == 4
    for seen in values:
        assert seen["enabled"] == (plane == "MPI", plane == "GLOO")
        assert seen["hosts"] == [0, 0, 1, 1]
        assert seen["flat"] == of_one_host()
        assert seen["hosts first"] == of_sockets_hosts_first()


def test_every_row_says_something_about_every_plane() -> None:
    keys = [row.key for row in table.LAUNCHERS]
    assert len(set(keys)) == len(keys)
    assert all(row.planes.keys() == table.PLANES.keys() for row in table.LAUNCHERS)


# ---- an elastic job on Slurm --------------------------------------------------------------------


@pytest.mark.timeout(120)
def test_an_elastic_job_whose_nodes_are_those_of_slurms_jobs(
    rig: Rig, slurm: Slurm, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.touch()
    environment = clean_environment({**rig.environment(tmp_path / "cache"), **slurm.environment})

    def slurm_does(*words: str) -> str:
        command = rig.on("hosta", words)
        return subprocess.run(command, env=environment, check=True, stdout=PIPE, text=True).stdout

    def submit(host: str, *words: str) -> list[str]:
        output = ["--output", str(tmp_path / host), "--job-name", "elastic", "--nodelist", host]
        return ["sbatch", "--parsable", *output, "--wrap", shlex.join(words)]

    plan = json.dumps({"log": str(log), "sizes": [2, 1], "fails": {}})
    flags = ["-np", "2", "--min-np", "1", "--host-discovery-script", str(HOSTS_SCRIPT)]
    holder = slurm_does(*submit("hostb", "sleep", "600")).strip()
    words = hvdtune_command("run", *flags, sys.executable, str(EPOCHS), plan)
    launcher = slurm_does(*submit("hosta", *words)).strip()
    try:
        wait_until(lambda: len(log.read_text().splitlines()) == 1, tmp_path / "hosta")
        slurm_does("scancel", holder)
        wait_until(lambda: len(log.read_text().splitlines()) == 2, tmp_path / "hosta")
        wait_until(lambda: not slurm_does("squeue", "--noheader"), tmp_path / "hosta")
    finally:
        slurm_does("scancel", holder, launcher)
    notes = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(note["size"], note["host"]) for note in notes] == [(2, "hosta"), (1, "hosta")]


def wait_until(condition: Callable[[], bool], output: Path) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(0.1)


# ---- the example --------------------------------------------------------------------------------


@cache
def digits_of_one_host() -> dict[str, Any]:
    values: Sequence[dict[str, Any]] = run_ranks(4, digits.train, 1, timeout=200).values
    assert all(np.array_equal(seen["weights"], values[0]["weights"]) for seen in values)
    return values[0]


DIGITS = [
    *((key, "", "flat") for key in ("ssh", "mpi", "gloo", "mpirun", "hostfile")),
    *(("mpi", "MPI", "flat"), ("mpich", "MPI", "flat"), ("ssh", "GLOO", "flat")),
    *(("ssh", "", "hosts first"), ("mpi", "MPI", "hosts first"), ("ssh", "GLOO", "hosts first")),
]


@pytest.mark.timeout(400)
@pytest.mark.skipif(not EVERY, reason="operations have the same bits: HVDTUNE_TEST_LONG=1")
@pytest.mark.parametrize(("key", "plane", "way"), DIGITS)
def test_digits_end_with_the_weights_of_one_host(
    rig: Rig, tmp_path: Path, key: str, plane: str, way: str
) -> None:
    pytest.importorskip("sklearn")
    more = HOSTS_FIRST if way == "hosts first" else {}
    values = prepare(rig, key, plane, tmp_path, **more).run(digits.train, 1).values
    alone = digits_of_one_host()
    assert "final test accuracy" in alone["printed"]
    assert all(np.array_equal(seen["weights"], values[0]["weights"]) for seen in values)
    if way == "flat":
        assert np.array_equal(values[0]["weights"], alone["weights"])
        assert values[0]["printed"] == alone["printed"]
    else:  # sums are taken in another order: the last bits differ, and grow with the steps
        assert np.allclose(values[0]["weights"], alone["weights"], atol=1e-3)
        assert abs(accuracy_of(values[0]) - accuracy_of(alone)) < 0.01


def accuracy_of(seen: Mapping[str, Any]) -> float:
    return float(seen["printed"].rpartition("final test accuracy ")[2].partition(";")[0])
