"""A job between hosts over WireGuard, which is also a second network between them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rank_programs import launched
from support.hosts import wireguard
from support.hosts.hosts_rig import hosts_rig, why_not
from support.jobs.ranks import hvdtune_command, start_under, tool

REASON = why_not() or wireguard.why_not()
pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(REASON), reason=REASON)]
FLAG = ["--network-interfaces", wireguard.INTERFACE]


@pytest.mark.timeout(150)
@pytest.mark.parametrize("named", ["by a flag", "by a variable", ""])
def test_every_connection_goes_through_the_tunnel(tmp_path: Path, named: str) -> None:
    flags = ["-np", "4", "-H", "hosta:2,hostb:2", *(FLAG if named == "by a flag" else [])]
    by_variable = {"HOROVOD_GLOO_IFACE": wireguard.INTERFACE} if named == "by a variable" else {}
    with hosts_rig(2) as rig, wireguard.tunnel(rig, tmp_path):
        command = rig.on("hosta", hvdtune_command("run", *flags))
        environment = {**rig.environment(tmp_path), **by_variable}
        with start_under(command, launched.peers_of_job, env=environment) as ranks:
            values = ranks.wait(100).values
    networks = {address.rpartition(".")[0] for seen in values for address in seen["peers"]} - {
        "127.0.0"
    }
    assert [seen["sum"] for seen in values] == [6.0] * 4
    assert networks == {wireguard.NETWORK if named else "10.77.0"}


@pytest.mark.timeout(150)
@pytest.mark.parametrize("hosts", ["hosta:2,hostb:2", "hostb:2,hosta:2"])
def test_ranks_that_mpirun_starts_meet_there_too(tmp_path: Path, hosts: str) -> None:
    """Rank 0 is on the launcher's host, or on another one."""
    with hosts_rig(2) as rig, wireguard.tunnel(rig, tmp_path):
        agent = f"--mca plm_ssh_agent '{rig.client} -o StrictHostKeyChecking=no'"
        flags = ["-np", "4", "--mpi", "-H", hosts, *FLAG, f"--mpi-args={agent}"]
        command = rig.on("hosta", hvdtune_command("run", *flags))
        path = f"{Path(tool('mpirun')).parent}:{os.environ['PATH']}"
        environment = {**rig.environment(tmp_path), "PATH": path}
        with start_under(command, launched.peers_of_job, env=environment) as ranks:
            values = ranks.wait(100).values
    assert [seen["sum"] for seen in values] == [6.0] * 4
