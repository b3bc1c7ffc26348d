"""Where the ranks of several hosts meet, as environments of all kinds say it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvdtune.core.libraries import network
from hvdtune.core.topology import detect
from hvdtune.launch.errors import LaunchError
from hvdtune.launch.remote import interfaces, rendezvous

HOROVOD = {
    "HOROVOD_RANK": "2", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_HOSTNAME": "b",
}  # fmt: skip
ADDRESS = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": "4711"}
TORCHRUN = {
    "RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "first", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "run",
}  # fmt: skip
SRUN = {
    "SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0", "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "77", "SLURM_TASKS_PER_NODE": "2(x2)", "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
}  # fmt: skip
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}  # fmt: skip


def place(environ: dict[str, str], secret: str | None = "key") -> network.MeetingPlace | None:
    return network.meeting_place(environ, detect(environ), secret, 1)


def test_the_launcher_says_it() -> None:
    assert place({**HOROVOD, **ADDRESS}) == ("10.0.0.1", 4711, "key/1")


def test_each_init_has_a_secret_of_its_own() -> None:
    environ = {**HOROVOD, **ADDRESS}
    secrets = {network.meeting_place(environ, detect(environ), "key", n) for n in range(3)}
    assert len(secrets) == 3


def test_one_host_needs_none() -> None:
    environ = {**HOROVOD, **ADDRESS, "HOROVOD_SIZE": "2", "HOROVOD_RANK": "1"}
    assert place(environ, None) is None


def test_several_names_of_one_machine_need_none() -> None:
    assert place({**HOROVOD, "HVDTUNE_JOB_ID": "j"}, None) is None


def test_torchrun_and_srun_say_it() -> None:
    found = place(TORCHRUN)
    assert found is not None
    assert found.host == "first"
    assert 20000 <= found.port < 30000
    others = {**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0"}
    assert place(others) == found
    assert place({**TORCHRUN, "MASTER_PORT": "29501"}) != found
    found = place(SRUN)
    assert found is not None
    assert found.host == "gpu07"


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("a", "a"), ("a,b", "a"), ("gpu[07-09,12],cpu1", "gpu07"), ("n[3,5]-ib", "n3-ib"),
     ("rack1-n[01-20]", "rack1-n01")],
)  # fmt: skip
def test_the_first_of_slurms_nodes(nodes: str, first: str) -> None:
    assert network.first_node(nodes) == first


@pytest.mark.parametrize(
    ("environ", "secret", "words"),
    [
        (MPIRUN, "key", "mpirun does not tell where rank 0 is: set HOROVOD_GLOO_RENDEZVOUS_ADDR"),
        ({**MPIRUN, **ADDRESS}, "", "need a key in common: set HVDTUNE_SECRET"),
        (TORCHRUN, None, "need a key in common: set HVDTUNE_SECRET"),
        ({**HOROVOD, "HOROVOD_GLOO_RENDEZVOUS_ADDR": "a"}, "key", "_PORT is not: set both"),
        ({**HOROVOD, "HOROVOD_GLOO_RENDEZVOUS_PORT": "1"}, "key", "_ADDR is not: set both"),
        ({**HOROVOD, **ADDRESS, "HOROVOD_GLOO_RENDEZVOUS_PORT": "x"}, "key", "is no port"),
        ({**HOROVOD, **ADDRESS, "HOROVOD_GLOO_RENDEZVOUS_PORT": "70000"}, "key", "is no port"),
    ],
)
def test_what_is_missing_is_one_sentence(
    environ: dict[str, str], secret: str | None, words: str
) -> None:
    with pytest.raises(ValueError, match="Horovod initialization failed: ") as caught:
        place(environ, secret)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


# ---- the launcher -------------------------------------------------------------------------------

OWN = {"addresses": {"lo": "127.0.0.1", "eth0": "10.0.0.1"}, "ssh_from": "", "ssh_to": ""}
THERE = {
    "addresses": {"eth0": "10.0.0.2", "ib0": "10.1.0.2"},
    "ssh_from": "10.0.0.1", "ssh_to": "10.0.0.2",
}  # fmt: skip


def test_rank_0_is_where_ssh_goes_or_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "is_local", lambda address: address == "10.0.0.1")
    found = rendezvous.over_ssh(["here", "there"], OWN, {"there": THERE}, [])
    assert found["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "10.0.0.1"
    assert "HOROVOD_GLOO_IFACE" not in found
    found = rendezvous.over_ssh(["there", "here"], OWN, {"there": THERE}, [])
    assert found["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "10.0.0.2"
    assert 20000 <= int(found["HOROVOD_GLOO_RENDEZVOUS_PORT"]) < 30000


@pytest.mark.parametrize("came_from", ["", "198.51.100.7"])
def test_a_gateways_address_is_not_rank_0s(came_from: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor "localhost": the way to the other host tells."""
    monkeypatch.setattr(rendezvous, "_own_address_towards", lambda other: f"towards {other}")
    there = {"there": {**THERE, "ssh_from": came_from}}
    found = rendezvous.over_ssh(["localhost", "there"], OWN, there, [])
    assert found["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "towards there"


def test_interfaces_decide() -> None:
    found = rendezvous.over_ssh(["there", "here"], OWN, {"there": THERE}, ["ib0", "eth0"])
    assert found["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "10.1.0.2"
    assert found["HOROVOD_GLOO_IFACE"] == "ib0,eth0"
    with pytest.raises(LaunchError, match="on host here none of ib0 has an address that"):
        rendezvous.over_ssh(["here", "there"], OWN, {"there": THERE}, ["ib0"])


def test_an_interface_without_ipv4_is_known_by_ipv6(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kernel = tmp_path / "if_inet6"
    kernel.write_text(
        "fe800000000000000000000000000001 02 40 20 80     ib0\n"
        "fd770000000000000000000000000002 02 40 00 80     ib0\n"
        "fd770000000000000000000000000003 03 40 00 80    eth0\n"
        "fe800000000000000000000000000004 04 40 20 80    eth1\n"
    )
    monkeypatch.setattr(interfaces, "_IPV6_ADDRESSES", str(kernel))
    monkeypatch.setattr(interfaces, "present_interfaces", lambda: ["ib0", "eth0", "eth1"])
    monkeypatch.setattr(interfaces, "_address", {"eth0": "10.0.0.1"}.get)
    assert interfaces.addresses() == {"ib0": "fd77::2", "eth0": "10.0.0.1"}
    monkeypatch.setattr(interfaces, "_IPV6_ADDRESSES", str(tmp_path / "no IPv6"))
    assert interfaces.addresses() == {"eth0": "10.0.0.1"}


def test_mpirun_is_told_names_and_a_port() -> None:
    assert rendezvous.by_names(["localhost"], []) == {}
    assert rendezvous.by_names(["far1.invalid"], []) == {}
    found = rendezvous.by_names(["127.0.0.1", "127.0.0.2"], [])
    assert found == {}
    dry = rendezvous.by_names(["far1.invalid", "far2.invalid"], [], dry=True)
    assert dry["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "far1.invalid"
