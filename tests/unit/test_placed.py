"""Places of processes that somebody else has started: pure facts in, variables out."""

from __future__ import annotations

import json
import os
import sys

import pytest

import hvdtune
from hvdtune.core.libraries import network
from hvdtune.core.topology import detect
from hvdtune.launch import placed
from hvdtune.launch.errors import LaunchError
from hvdtune.launch.placed import PlacedProcess

JOB = {"HVDTUNE_JOB_ID": "a job", "HVDTUNE_SECRET": "its key"}


def process(host: str, number: int = 0, **changes: object) -> PlacedProcess:
    """A process on a machine of its own name, with an address that depends on the name."""
    address = f"10.0.0.{ord(host)}"
    whole = PlacedProcess(
        host, f"node-{host}", host, address, {"lo": "127.0.0.1", "eth0": address}, 20000 + number,
        "1.0",
    )  # fmt: skip
    return whole._replace(**changes)


def test_ranks_are_counted_host_by_host_beginning_with_the_first_process():
    found = placed.environments([process(host) for host in "bacba"], JOB)
    places = [detect(variables) for variables in found]
    assert [place.rank for place in places] == [0, 2, 4, 1, 3]
    assert [place.local_rank for place in places] == [0, 0, 0, 1, 1]
    assert [place.local_size for place in places] == [2, 2, 1, 2, 2]
    assert [place.cross_rank for place in places] == [0, 1, 2, 0, 1]
    assert [place.cross_size for place in places] == [3, 3, 3, 2, 2]
    assert [place.hostname for place in places] == [f"node-{host}" for host in "bacba"]
    assert {(place.size, place.job_id, place.launcher) for place in places} == {
        (5, "a job", "hvdtune")
    }


def test_on_several_hosts_the_variables_lead_to_rank_0():
    for variables in placed.environments([process("b", 7), process("a", 9)], JOB):
        assert network.needs_place(variables, detect(variables))
        told = network.told_place(variables, detect(variables), variables["HVDTUNE_SECRET"])
        assert told == network.MeetingPlace("10.0.0.98", 20007, "its key")
        assert "HOROVOD_GLOO_IFACE" not in variables


def test_on_one_host_nothing_leads_anywhere():
    for variables in placed.environments([process("a"), process("a")], JOB):
        assert network.given(variables) is None
        assert not network.needs_place(variables, detect(variables))


def test_interfaces_have_an_address_of_their_own():
    interfaces = {"eth0": "10.0.0.1", "ib0": "10.1.0.1"}
    processes = [process(host, interfaces=interfaces) for host in "ab"]
    for variables in placed.environments(processes, JOB, ["ib0", "eth0"]):
        assert variables[network.ADDRESS] == "10.1.0.1"
        assert variables["HOROVOD_GLOO_IFACE"] == "ib0,eth0"
    with pytest.raises(LaunchError, match="host node-b has no interface 'ib0'; it has lo, eth0"):
        placed.environments([process("a", interfaces=interfaces), process("b")], JOB, ["ib0"])


def test_an_address_that_means_another_machine_elsewhere_is_not_told():
    first = process("a", address="127.0.1.1")
    together = placed.environments([first, process("b", machine="a")], JOB)
    assert together[1][network.ADDRESS] == "127.0.1.1"
    apart = placed.environments([first, process("b")], JOB)
    assert apart[1][network.ADDRESS] == "10.0.0.97"
    lonely = first._replace(interfaces={"lo": "127.0.0.1"})
    with pytest.raises(LaunchError, match=r"node-a.* has no address .* it has 127.0.1.1, 127"):
        placed.environments([lonely, process("b")], JOB)


def test_every_process_sees_all_gpus_of_its_host():
    gpus = [("a", ["2"]), ("b", ["0"]), ("a", ["1", "2"]), ("c", [])]
    found = placed.environments([process(host, gpus=those) for host, those in gpus], JOB)
    assert [variables.get("CUDA_VISIBLE_DEVICES") for variables in found] == [
        "2,1", "0", "2,1", None,
    ]  # fmt: skip


def test_another_version_is_one_sentence():
    processes = [process("a"), process("b"), process("c", version="0.9")]
    with pytest.raises(
        LaunchError,
        match=r"^host node-c has hvdtune 0\.9, host node-a has 1\.0: install the same version",
    ):
        placed.environments(processes, JOB)


def test_facts_travel_as_json_and_processes_of_a_machine_are_on_one_host():
    facts = placed.this_process(gpus=["0"])
    again = PlacedProcess(**json.loads(json.dumps(facts._asdict())))
    assert again == facts
    assert facts.version == hvdtune.__version__
    assert facts.hostname == os.uname().nodename
    assert facts.host == placed.this_process().host
    job = placed.new_job()
    assert detect(placed.environments([facts, again], job)[1]).local_size == 2
    named = placed.this_process("a host", "its name", "10.9.8.7")
    assert named[:2] == ("a host", "its name")
    assert named.address == "10.9.8.7"


def test_jobs_are_different():
    one, other = placed.new_job(), placed.new_job()
    assert one.keys() == other.keys() == JOB.keys()
    assert not set(one.values()) & set(other.values())


def test_a_place_in_another_job_is_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", ["elsewhere"])
    monkeypatch.delenv("HVDTUNE_PREFER_HOROVOD", raising=False)
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv(network.ADDRESS, "10.0.0.1")
    monkeypatch.setenv("HOROVOD_RANK", "3")
    [variables] = placed.environments([process("a")], JOB)
    for name in variables:  # so that monkeypatch puts back what become() changes
        monkeypatch.setenv(name, "of another job")
    expected = placed.environment(os.environ, variables)
    placed.become(variables)
    assert dict(os.environ) == expected
    assert network.ADDRESS not in os.environ
    assert os.environ["KEPT"] == "1"
    assert detect().rank == 0
    alias, last = sys.path
    assert last == "elsewhere"
    assert os.listdir(alias) == ["horovod"]
    assert os.environ["PYTHONPATH"] == f"{alias}{os.pathsep}elsewhere"
