"""A job between hosts over WireGuard."""

from __future__ import annotations

from pathlib import Path

import pytest
from rank_programs import launched
from support.hosts import wireguard
from support.hosts.hosts_rig import hosts_rig, why_not
from support.jobs.ranks import hvdtune_command, start_under

REASON = why_not() or wireguard.why_not()
pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(REASON), reason=REASON)]


@pytest.mark.timeout(150)
@pytest.mark.parametrize("encrypted", [True, False])
def test_every_connection_goes_through_the_tunnel(tmp_path: Path, encrypted: bool) -> None:
    flags = ["-np", "4", "-H", "hosta:2,hostb:2"]
    flags += ["--network-interfaces", wireguard.INTERFACE] if encrypted else []
    with hosts_rig(2) as rig, wireguard.tunnel(rig, tmp_path):
        command = rig.on("hosta", hvdtune_command("run", *flags))
        environment = rig.environment(tmp_path)
        with start_under(command, launched.peers_of_job, env=environment) as ranks:
            values = ranks.wait(100).values
    networks = {address.rpartition(".")[0] for seen in values for address in seen["peers"]} - {
        "127.0.0"
    }
    assert [seen["sum"] for seen in values] == [6.0] * 4
    assert networks == {wireguard.NETWORK if encrypted else "10.77.0"}
