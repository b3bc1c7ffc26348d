"""Where the ranks of several hosts meet, as environments of all kinds say it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvdtune.core import job
from hvdtune.core.libraries import data_plane, network
from hvdtune.core.meeting import addresses
from hvdtune.core.topology import detect
from hvdtune.launch.errors import LaunchError
from hvdtune.launch.remote import interfaces, rendezvous
from hvdtune.launch.remote.interfaces import FLAG, Interfaces
from hvdtune.settings import knobs

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
    topology = detect(environ)
    if not network.needs_place(environ, topology):
        return None
    return network.told_place(environ, topology, secret)


def test_the_launcher_says_it() -> None:
    assert place({**HOROVOD, **ADDRESS}) == ("10.0.0.1", 4711, "key", ())


def test_one_host_needs_none() -> None:
    environ = {**HOROVOD, **ADDRESS, "HOROVOD_SIZE": "2", "HOROVOD_RANK": "1"}
    assert not network.needs_place(environ, detect(environ))


def test_several_names_of_one_machine_need_none() -> None:
    environ = {**HOROVOD, "HVDTUNE_JOB_ID": "j"}
    assert not network.needs_place(environ, detect(environ))


@pytest.mark.parametrize("given", [{}, ADDRESS], ids=["one machine", "several"])
@pytest.mark.parametrize("local_size", ["1", "2", "3"])
def test_the_local_size_of_an_elastic_job_tells_nothing(given, local_size) -> None:
    environ = {**HOROVOD, **given, "HVDTUNE_JOB_ID": "j", "HOROVOD_ELASTIC": "1"}
    environ |= {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_SIZE": local_size}
    assert network.needs_place(environ, detect(environ)) == bool(given)


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


def test_azure_says_it() -> None:
    found = place({**MPIRUN, "PMIX_NAMESPACE": "n", "AZ_BATCH_MASTER_NODE": "10.0.0.4:6000"})
    assert found is not None
    assert found.host == "10.0.0.4"
    assert found.port != 6000


@pytest.mark.parametrize("environ", [TORCHRUN, SRUN], ids=["torchrun", "srun"])
def test_a_launchers_address_may_not_be_on_the_interfaces_that_the_user_names(
    environ: dict[str, str],
) -> None:
    chosen = {**environ, "HOROVOD_GLOO_IFACE": "ib0"}
    usual = place(environ)
    assert usual is not None
    assert place(chosen) is None
    assert network.launchers_place(chosen, detect(chosen), "key") == usual, "the last resort"
    assert network.launchers_place(chosen, detect(chosen), None) is None
    assert place({**chosen, **ADDRESS}) == ("10.0.0.1", 4711, "key", ())
    text = str(network.absence(chosen, detect(chosen), None, "PMIx: the reason"))
    assert ": set HVDTUNE_SECRET to the same random text, for all processes" in text


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("a", "a"), ("a,b", "a"), ("gpu[07-09,12],cpu1", "gpu07"), ("n[3,5]-ib", "n3-ib"),
     ("rack1-n[01-20]", "rack1-n01")],
)  # fmt: skip
def test_the_first_of_slurms_nodes(nodes: str, first: str) -> None:
    assert network.first_node(nodes) == first


@pytest.mark.parametrize("environ", [MPIRUN, {**MPIRUN, **ADDRESS}, TORCHRUN, SRUN])
def test_without_a_key_nothing_is_told(environ: dict[str, str]) -> None:
    assert place(environ, None) is None


@pytest.mark.parametrize(
    ("environ", "secret", "sets"),
    [
        (MPIRUN, "key", "set HOROVOD_GLOO_RENDEZVOUS_ADDR to the address of its host, "
         "HOROVOD_GLOO_RENDEZVOUS_PORT to a free port there, for all processes"),
        (MPIRUN, None, "and HVDTUNE_SECRET to the same random text, for all processes"),
        ({**MPIRUN, **ADDRESS}, None, "set HVDTUNE_SECRET to the same random text, for all"),
    ],
)  # fmt: skip
def test_what_to_set_is_what_is_missing(
    environ: dict[str, str], secret: str | None, sets: str
) -> None:
    text = str(network.absence(environ, detect(environ), secret, "PMIx: the reason"))
    assert text.startswith("Horovod initialization failed: the job has 4 processes, 2 of them on")
    assert "(PMIx: the reason)" in text
    assert sets in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({**HOROVOD, "HOROVOD_GLOO_RENDEZVOUS_ADDR": "a"}, "_PORT is not: set both"),
        ({**HOROVOD, "HOROVOD_GLOO_RENDEZVOUS_PORT": "1"}, "_ADDR is not: set both"),
        ({**HOROVOD, **ADDRESS, "HOROVOD_GLOO_RENDEZVOUS_PORT": "x"}, "is no port"),
        ({**HOROVOD, **ADDRESS, "HOROVOD_GLOO_RENDEZVOUS_PORT": "70000"}, "is no port"),
    ],
)
def test_an_address_that_is_none_is_one_sentence(environ: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match="Horovod initialization failed: ") as caught:
        place(environ)
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
    found = rendezvous.over_ssh(["here", "there"], OWN, {"there": THERE}, Interfaces())
    assert found["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "10.0.0.1"
    assert "HOROVOD_GLOO_IFACE" not in found
    found = rendezvous.over_ssh(["there", "here"], OWN, {"there": THERE}, Interfaces())
    assert found["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "10.0.0.2"
    assert 20000 <= int(found["HOROVOD_GLOO_RENDEZVOUS_PORT"]) < 30000


@pytest.mark.parametrize("came_from", ["", "198.51.100.7"])
def test_a_gateways_address_is_not_rank_0s(came_from: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor "localhost": the way to the other host tells."""
    monkeypatch.setattr(rendezvous, "own_address_towards", lambda other: f"towards {other}")
    there = {"there": {**THERE, "ssh_from": came_from}}
    found = rendezvous.over_ssh(["localhost", "there"], OWN, there, Interfaces())
    assert found["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "towards there"


def test_interfaces_decide() -> None:
    named = Interfaces(["ib0", "eth0"])
    found = rendezvous.over_ssh(["there", "here"], OWN, {"there": THERE}, named)
    assert found["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "10.1.0.2"
    assert found["HOROVOD_GLOO_IFACE"] == found["NCCL_SOCKET_IFNAME"] == "ib0,eth0"
    with pytest.raises(LaunchError, match="on host here none of ib0 has an address that"):
        rendezvous.over_ssh(["here", "there"], OWN, {"there": THERE}, Interfaces(["ib0"]))


def test_interfaces_of_the_variable_decide_on_the_address_alone() -> None:
    """The variable reaches the ranks by itself, and NCCL has one of its own."""
    found, named = {"there": THERE}, Interfaces(["ib0"], network.INTERFACES)
    told = rendezvous.over_ssh(["there", "here"], OWN, found, named)
    assert told.pop("HOROVOD_GLOO_RENDEZVOUS_ADDR") == "10.1.0.2"
    assert [*told] == ["HOROVOD_GLOO_RENDEZVOUS_PORT"]
    with pytest.raises(LaunchError, match=r"^HOROVOD_GLOO_IFACE: on host here none of ib0 has"):
        rendezvous.over_ssh(["here", "there"], OWN, found, named)


@pytest.mark.parametrize("text", ["ib0,eth0", " ib0, eth0 ", ",ib0,,eth0,ib0,"])
def test_launcher_and_ranks_read_the_variable_alike(text: str) -> None:
    named = ["ib0", "eth0"]
    assert interfaces.named_interfaces(None, text) == (named, network.INTERFACES)
    assert interfaces.named_interfaces([text, "lo"], "eth7") == ([*named, "lo"], FLAG)
    topology, settings = detect(HOROVOD), knobs.from_environ({"HOROVOD_GLOO_IFACE": text})
    assert job._network_options(topology, settings, None)["interfaces"] == named
    assert data_plane.options(topology, settings)["gloo_interface"] == "ib0"


def test_no_interface_is_none() -> None:
    assert network.interface_names(" , ") == []
    assert place({**TORCHRUN, "HOROVOD_GLOO_IFACE": " , "}) == place(TORCHRUN)
    settings = knobs.from_environ({"HOROVOD_GLOO_IFACE": " , "})
    assert data_plane.options(detect(HOROVOD), settings)["gloo_interface"] == ""


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
    monkeypatch.setattr(addresses, "_IPV6_ADDRESSES", str(kernel))
    monkeypatch.setattr(interfaces, "present_interfaces", lambda: ["ib0", "eth0", "eth1"])
    monkeypatch.setattr(addresses, "ipv4_address", {"eth0": "10.0.0.1"}.get)
    assert interfaces.addresses() == {"ib0": "fd77::2", "eth0": "10.0.0.1"}
    monkeypatch.setattr(addresses, "_IPV6_ADDRESSES", str(tmp_path / "no IPv6"))
    assert interfaces.addresses() == {"eth0": "10.0.0.1"}


def test_mpirun_is_told_names_and_a_port() -> None:
    assert rendezvous.by_names(["localhost"], Interfaces()) == {}
    assert rendezvous.by_names(["far1.invalid"], Interfaces()) == {}
    found = rendezvous.by_names(["127.0.0.1", "127.0.0.2"], Interfaces())
    assert found == {}
    dry = rendezvous.by_names(["far1.invalid", "far2.invalid"], Interfaces(), dry=True)
    assert dry["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "far1.invalid"


@pytest.mark.parametrize("setting", [FLAG, network.INTERFACES])
def test_under_mpirun_interfaces_decide_as_well(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another host's address there is known to that host alone: rank 0 tells the others."""
    monkeypatch.setattr(rendezvous, "addresses", lambda: {"eth0": "10.0.0.1", "ib0": "10.1.0.1"})
    named = {"HOROVOD_GLOO_IFACE": "ib0", "NCCL_SOCKET_IFNAME": "ib0"}
    told = named if setting == FLAG else {}
    where = {"HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"}
    for dry in (True, False):
        hosts = ["localhost", "far.invalid"]
        found = rendezvous.by_names(hosts, Interfaces(["ib0"], setting), dry=dry)
        assert found.keys() == {*where, *told}
        assert found == {**found, **told}
        assert dry or found["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "10.1.0.1"
        back = rendezvous.by_names(hosts[::-1], Interfaces(["ib0"], setting), dry=dry)
        assert back == told
    with pytest.raises(LaunchError, match=f"^{setting}: on host localhost none of ib1 has"):
        rendezvous.by_names(["localhost", "far.invalid"], Interfaces(["ib1"], setting))
