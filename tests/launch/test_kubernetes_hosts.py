"""The launcher of a printed MPIJob of several workers, on hosts that stand for its pods.

What the operator does is done here by hand: the hostfile at its path, keys that let the launcher's
host into the workers', and sshd there. hosta is the launcher's pod.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess

import pytest
import yaml
from rank_programs import launched
from support.hosts.hosts_rig import hosts_rig, why_not
from support.jobs.ranks import hvdtune_command, start_under

from hvdtune.cli.main import main

REASON = why_not()
pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(REASON), reason=REASON)]
MOUNTED = "/etc/mpi"


@pytest.fixture(scope="module")
def rig():
    with hosts_rig(3) as running:
        yield running


@pytest.fixture
def hostfile(rig, tmp_path):
    """As the operator's ConfigMap has it; hosta alone sees it."""
    (tmp_path / "hostfile").write_text("hostb slots=2\nhostc slots=2\n")
    made = not os.path.exists(MOUNTED)
    if made:
        os.mkdir(MOUNTED)
    try:
        subprocess.run(rig.on("hosta", ["mount", "--bind", str(tmp_path), MOUNTED]), check=True)
        yield
    finally:
        subprocess.run(rig.on("hosta", ["umount", MOUNTED]), check=False)
        if made:
            with contextlib.suppress(OSError):
                os.rmdir(MOUNTED)


@pytest.mark.usefixtures("hostfile")
def test_the_launcher_of_two_workers(rig, tmp_path, capsys):
    line = "--name d --image i --workers 2 --slots 2 -e HOROVOD_FUSION_THRESHOLD=4711 true"
    assert main(["k8s", "mpijob", *shlex.split(line)]) == 0
    replicas = yaml.safe_load(capsys.readouterr().out)["spec"]["mpiReplicaSpecs"]
    [launcher] = replicas["Launcher"]["template"]["spec"]["containers"]
    assert launcher["command"] == ["hvdtune", "run"]
    assert launcher["args"][-1] == "true"
    command = rig.on("hosta", [*hvdtune_command("run"), *launcher["args"][:-1]])
    given = {entry["name"]: entry["value"] for entry in launcher["env"]}
    environment = {**rig.environment(tmp_path / "cache"), **given}
    with start_under(command, launched.told, *given, env=environment) as ranks:
        values = ranks.wait().values
    assert [value["host"] for value in values] == ["hostb", "hostb", "hostc", "hostc"]
    assert [value["rank"] for value in values] == [0, 1, 2, 3]
    assert all(value["sum"] == 6.0 for value in values)
    assert all(value["variables"] == given for value in values)
