"""How rank 0's address and the job's key reach the other ranks, by each means with a stand-in."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.hosts.key_value_server import key_value_server

from hvdtune.core.meeting import (
    addresses,
    key_value,
    means,
    mpi,
    munge,
    place,
    places,
    pmi,
    pmix,
    torch_store,
)
from hvdtune.core.meeting.seeker import Failed, Seeker, TooLate
from hvdtune.core.topology import Topology, detect
from hvdtune.settings import knobs

TEXT = "hvdtune1,20123,0123456789abcdef,10.0.0.1"
MPIRUN = {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
TORCHRUN = {
    "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "first", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "run",
    "HVDTUNE_SECRET": "key",
}  # fmt: skip


def seeker(
    rank: int, size: int = 2, seconds: float = 5.0, number: int = 0, **environ: str
) -> Seeker:
    topology = Topology(rank, size, 0, 1, rank, size, f"host{rank}", "job", "openmpi")
    return Seeker(environ, topology, rank, size, 0, number, time.monotonic() + seconds)


def together(exchange: Callable[[Seeker, str], str], seekers: list[Seeker]) -> list[str]:
    """What every rank gets, from ranks that are threads."""
    with ThreadPoolExecutor(len(seekers)) as pool:
        return list(pool.map(exchange, seekers, [TEXT if s.tells else "" for s in seekers]))


# ---- the text -----------------------------------------------------------------------------------


def test_the_text_says_everything() -> None:
    told = place.Place(("10.0.0.1", "fd77::1"), 20123, "secret")
    assert place.read(told.text()) == told
    assert not set(told.text()) & set(" =;\n")


def test_the_text_is_short_and_new_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    many = {f"eth{n}": f"fd77:1234:5678:9abc:def0:1234:5678:{n:x}" for n in range(40)}
    monkeypatch.setattr(addresses, "reachable", lambda: many)
    first, second = place.of_this_process(), place.of_this_process()
    assert len(first.text()) < 900
    assert first.secret != second.secret


@pytest.mark.parametrize("text", ["", "hvdtune2,1,s,a", "hvdtune1,x,s,a", "hvdtune1,1,hidden"])
def test_another_text_is_not_quoted(text: str) -> None:
    with pytest.raises(ValueError, match="does not understand") as caught:
        place.read(text)
    assert "hidden" not in str(caught.value)


def test_the_port_can_be_had() -> None:
    with socket.socket() as probe:
        probe.bind(("", place.free_port()))


def test_an_address_that_this_host_has_too_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "addresses_of", lambda names: {"docker0": "172.17.0.1"})
    told = place.Place(("172.17.0.1", "10.0.0.1"), 1, "s")
    assert place.way_to(told, time.monotonic()) == "10.0.0.1"
    assert place.way_to(told._replace(addresses=("172.17.0.1",)), 0.0) == "172.17.0.1"


def test_addresses_of_own_making_are_told_only_if_there_are_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = {"usb0": "169.254.3.1", "eth0": "10.0.0.5"}
    monkeypatch.setattr(addresses, "addresses_of", lambda names: both)
    assert addresses.reachable() == {"eth0": "10.0.0.5"}
    del both["eth0"]
    assert addresses.reachable() == {"usb0": "169.254.3.1"}


def test_of_several_addresses_the_one_that_answers_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(addresses, "addresses_of", lambda names: {})
    port = place.free_port()
    told = place.Place(("127.0.0.3", "127.0.0.2"), port, "s")
    with socket.socket() as late:

        def listen() -> None:
            time.sleep(0.1)
            late.bind(("127.0.0.2", port))
            late.listen()

        thread = threading.Thread(target=listen)
        thread.start()
        assert place.way_to(told, time.monotonic() + 5) == "127.0.0.2"
        thread.join()
    with pytest.raises(ValueError, match=r"127\.0\.0\.3: Connection refused; 127\.0\.0\.2: Conn"):
        place.way_to(told, time.monotonic())


# ---- PMI ----------------------------------------------------------------------------------------


class Mpirun(threading.Thread):
    """Speaks PMI-1 as Hydra does, on one connection for each rank."""

    def __init__(self, size: int) -> None:
        super().__init__(daemon=True)
        pairs = [socket.socketpair() for _ in range(size)]
        self.ranks = [inner for inner, _ in pairs]
        self.ends = [outer.makefile("rw") for _, outer in pairs]
        self.texts: dict[str, str] = {}
        self.commands: list[list[str]] = [[] for _ in range(size)]
        self.barrier = threading.Barrier(size)

    def run(self) -> None:
        threads = [threading.Thread(target=self._serve, args=(n,)) for n in range(len(self.ends))]
        for thread in threads:
            thread.start()

    def _serve(self, rank: int) -> None:
        for line in self.ends[rank]:
            words = dict(word.split("=", 1) for word in line.split())
            self.commands[rank].append(words["cmd"])
            self.ends[rank].write(self._answer(words) + "\n")
            self.ends[rank].flush()

    def _answer(self, words: Mapping[str, str]) -> str:
        command = words["cmd"]
        if command == "init":
            return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"
        if command == "get_my_kvsname":
            return "cmd=my_kvsname kvsname=kvs_1"
        if command == "put":
            self.texts[words["key"]] = words["value"]
            return "cmd=put_result rc=0 msg=success"
        if command == "barrier_in":
            self.barrier.wait()
            return "cmd=barrier_out"
        if command == "finalize":
            return "cmd=finalize_ack"
        if words["key"] in self.texts:
            return f"cmd=get_result rc=0 msg=success value={self.texts[words['key']]}"
        return "cmd=get_result rc=-1 msg=key_not_found value=unknown"

    def seekers(self, number: int = 0, seconds: float = 5.0) -> list[Seeker]:
        return [
            seeker(
                rank,
                len(self.ranks),
                seconds,
                number,
                PMI_FD=str(end.fileno()),
                PMI_RANK=str(rank),
            )
            for rank, end in enumerate(self.ranks)
        ]


@pytest.fixture
def quiet_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be signed off from when Python ends is this test's own."""
    monkeypatch.setattr(pmi.atexit, "register", lambda *_: None)
    monkeypatch.setattr(pmi, "_opened", None)


@pytest.mark.usefixtures("quiet_exit")
def test_pmi_brings_the_text_twice() -> None:
    mpirun = Mpirun(3)
    mpirun.start()
    for number in range(2):
        seekers = mpirun.seekers(number)
        assert [pmi.absence(one) for one in seekers] == [""] * 3
        assert together(pmi.exchange, seekers) == [TEXT] * 3
    assert all("finalize" not in commands for commands in mpirun.commands)


@pytest.mark.usefixtures("quiet_exit")
def test_pmi_does_not_wait_for_ever() -> None:
    mpirun = Mpirun(2)
    mpirun.start()
    with pytest.raises(TooLate, match="barrier_in"):
        pmi.exchange(mpirun.seekers(seconds=0.2)[0], TEXT)
    other, end = socket.socketpair()
    end.close()
    with pytest.raises(Failed, match="get_my_kvsname: Broken pipe"):
        pmi.exchange(seeker(0, PMI_FD=str(other.fileno()), PMI_RANK="0"), TEXT)


@pytest.mark.usefixtures("quiet_exit")
def test_pmi_is_left_at_the_end_unless_mpi_or_a_failure_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mpirun = Mpirun(1)
    mpirun.start()
    pmi.exchange(mpirun.seekers()[0], TEXT)
    monkeypatch.setattr(mpi, "was_begun", lambda: True)
    pmi._leave(os.getpid())
    monkeypatch.setattr(mpi, "was_begun", lambda: False)
    pmi._leave(os.getpid() + 1)
    monkeypatch.setattr(sys, "last_type", RuntimeError, raising=False)
    pmi._leave(os.getpid())
    assert "finalize" not in mpirun.commands[0]
    monkeypatch.delattr(sys, "last_type")
    pmi._leave(os.getpid())
    assert mpirun.commands[0][-1] == "finalize"


def test_slurms_pmi_is_left_to_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    inner, _ = socket.socketpair()
    own = seeker(0, PMI_FD=str(inner.fileno()), PMI_RANK="0", SLURM_STEP_ID="0")
    monkeypatch.setattr(mpi, "absence", lambda seeker: "")
    assert "MPI_Init must do that" in pmi.absence(own)
    monkeypatch.setattr(mpi, "absence", lambda seeker: "there is none")
    assert pmi.absence(own) == ""


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({}, "no PMI_FD"),
        ({"PMI_FD": "x"}, "no PMI_FD"),
        ({"PMI_FD": "0", "PMI_RANK": "1"}, "PMI_RANK=1 is not this process's rank, 0"),
        ({"PMI_FD": "99999", "PMI_RANK": "0"}, "is closed"),
    ],
)
def test_why_there_is_no_pmi(environ: dict[str, str], reason: str) -> None:
    assert reason in pmi.absence(seeker(0, **environ))


# ---- PMIx ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({}, "no PMIx server"),
        ({"PMIX_RANK": "0"}, "no PMIx server"),
        ({"PMIX_RANK": "1", "PMIX_SERVER_URI2": "u"}, "is not this process's rank"),
        ({"PMIX_RANK": "0", "PMIX_SERVER_URI2": "u"}, ""),
    ],
)
def test_why_there_is_no_pmix(environ: dict[str, str], reason: str) -> None:
    found = pmix.absence(seeker(0, **environ))
    assert reason in found
    assert bool(reason) == bool(found)


def test_libpmix_beside_mpirun_comes_first(tmp_path: Path) -> None:
    for name in ("bin/mpirun", "lib/openmpi/libpmix.so.2"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch(0o755)
    found = [*pmix.libraries({"PATH": str(tmp_path / "bin")})]
    assert found[0] == str(tmp_path / "lib/openmpi/libpmix.so.2")
    assert found[-1] == "libpmix.so.2"


@pytest.mark.parametrize("version", ["4.2.2", "5.0.1", ""])
def test_pmix_that_does_not_begin_is_one_reason(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pmix, "libraries", lambda environ: iter(["/no/libpmix.so.2"]))
    with pytest.raises(Failed, match=r"/no/libpmix\.so\.2: .*cannot open"):
        pmix.exchange(seeker(0, PMIX_VERSION=version, **os.environ), "hidden")


class FakeClient:
    """In place of the calls of PMIx: tells after a while."""

    seconds = 0.0

    def __init__(self, path: str) -> None:
        self.hvdtune_pmix_begin = lambda library, reason, size: True
        self.hvdtune_pmix_end = lambda: None

    def hvdtune_pmix_answer(
        self, root: object, key: bytes, text: bytes, answer: Any, size: object
    ) -> None:
        time.sleep(self.seconds)
        answer.value = b"told %s:%s" % (key, text)


def test_pmix_in_this_process_begins_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pmix, "_session", None)
    monkeypatch.setattr(pmix.atexit, "register", lambda *_: None)
    monkeypatch.setattr(pmix.ctypes, "CDLL", FakeClient)
    assert pmix.exchange(seeker(0, number=3), "a") == "hvdtune.3:a"
    session = pmix._session
    assert pmix.exchange(seeker(0, number=4), "b") == "hvdtune.4:b"
    assert pmix._session is session
    monkeypatch.setattr(FakeClient, "seconds", 1.0)
    with pytest.raises(TooLate):
        pmix.exchange(seeker(0, seconds=0.05), "c")


@pytest.mark.parametrize("failed", [False, True])
def test_the_child_signs_off_unless_the_rank_has_failed(
    failed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, signed_off = tmp_path / "program", tmp_path / "signed off"
    program.write_text(
        f"#!/bin/sh\nread -r line\necho told $line\nread -r end\n: >'{signed_off}'\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(pmix, "compiled", lambda name: str(program))
    child = pmix._Child("library", os.environ)
    monkeypatch.setattr(pmix, "_session", child)
    assert child.ask("0 key text", 20.0) == "told 0 key text"
    monkeypatch.setattr(sys, "last_type", ValueError if failed else None, raising=False)
    pmix._leave(os.getpid())
    assert child._process.returncode == (-signal.SIGKILL if failed else 0)
    assert signed_off.exists() is not failed


def test_pmix_needs_what_the_build_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pmix, "compiled", lambda name: "")
    environ = {"PMIX_RANK": "0", "PMIX_SERVER_URI41": "x"}
    assert "was built without _pmix.so and pmix_program" in pmix.absence(seeker(0, **environ))


# ---- a key-value server -------------------------------------------------------------------------


def of_server(rank: int, port: int, seconds: float = 5.0) -> Seeker:
    return seeker(
        rank,
        seconds=seconds,
        HOROVOD_GLOO_RENDEZVOUS_ADDR="127.0.0.1",
        HOROVOD_GLOO_RENDEZVOUS_PORT=str(port),
    )


def test_a_key_value_server_brings_the_text() -> None:
    with key_value_server() as server:
        seekers = [of_server(rank, server.server_address[1]) for rank in (1, 0)]
        assert together(key_value.exchange, seekers) == [TEXT] * 2
        assert len(server.texts) == 1
        key_value.forget(seekers[1])
        with pytest.raises(TooLate, match="rank 0 has not told"):
            key_value.exchange(of_server(1, server.server_address[1], 0.1), "")


def test_a_key_value_server_is_not_waited_for_for_ever() -> None:
    with key_value_server() as server, pytest.raises(TooLate, match="rank 0 has not told"):
        key_value.exchange(of_server(1, server.server_address[1], 0.1), "")
    with pytest.raises(TooLate, match="Connection refused"):
        key_value.exchange(of_server(1, place.free_port(), 0.1), "")


def test_rank_0s_own_address_is_no_server() -> None:
    with pytest.raises(Failed, match="nobody listens"):
        key_value.exchange(of_server(0, place.free_port()), TEXT)


def test_something_else_is_no_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def speak() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"SSH-2.0-x\r\n\r\n")

        thread = threading.Thread(target=speak)
        thread.start()
        with pytest.raises(Failed, match="no HTTP server"):
            key_value.exchange(of_server(1, other.getsockname()[1]), "")
        thread.join()


# ---- munge --------------------------------------------------------------------------------------

MUNGE = """#!/bin/sh
echo "$1:$(cat)"
"""
UNMUNGE = """#!/bin/sh
read -r credential
case $credential in *:probe) MADE_BY=$(id -u) ;; esac
printf 'UID: %s\\n\\n%s\\n' "$MADE_BY" "${credential#*:}"
"""


@pytest.fixture
def munge_environment(tmp_path: Path) -> dict[str, str]:
    """Programs that do as munge's, without its secrecy."""
    for name, script in (("munge", MUNGE), ("unmunge", UNMUNGE)):
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    slurm = {"SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "127.0.0.1"}
    return {"PATH": path, **slurm, "MADE_BY": str(os.getuid())}


def in_a_step(one: Seeker) -> Seeker:
    job = f"job-{os.getpid()}-{time.monotonic_ns()}"
    return one._replace(topology=one.topology._replace(launcher="slurm", job_id=job))


def test_munge_brings_the_text(munge_environment: dict[str, str]) -> None:
    first = in_a_step(seeker(0, 3, seconds=2.0, **munge_environment))
    others = [first._replace(rank=rank) for rank in (1, 2)]
    assert munge.absence(first) == ""
    assert [one.strip() for one in together(munge.exchange, [*others, first])] == [TEXT] * 3


def test_munge_believes_nobody_else(munge_environment: dict[str, str]) -> None:
    first = in_a_step(seeker(0, seconds=1.0, **munge_environment))
    other = first._replace(rank=1, environ={**munge_environment, "MADE_BY": "12345"})
    with pytest.raises(Failed, match="user 12345 listens in rank 0's place"):
        together(munge.exchange, [first, other])
    with pytest.raises(Failed, match="another job's credential") as caught:
        munge._read(first, "x:0123 hidden")
    assert "hidden" not in str(caught.value)


def test_munge_does_not_wait_for_ever(munge_environment: dict[str, str]) -> None:
    with pytest.raises(TooLate, match=r"127\.0\.0\.1:\d+: Connection refused"):
        munge.exchange(in_a_step(seeker(1, seconds=0.1, **munge_environment)), "")


def test_why_there_is_no_munge(munge_environment: dict[str, str], tmp_path: Path) -> None:
    assert "no srun" in munge.absence(seeker(0, **munge_environment))
    hydra = {**munge_environment, "MPI_LOCALRANKID": "0"}
    assert "no srun" in munge.absence(in_a_step(seeker(0, **hydra)))
    nowhere = {**munge_environment, "PATH": str(tmp_path / "empty")}
    assert munge.absence(in_a_step(seeker(0, **nowhere))) == "munge is not on PATH"
    (tmp_path / "munge").write_text("#!/bin/sh\necho 'munge: Error: no munged' >&2; exit 1\n")
    with pytest.raises(Failed, match=r"^no munged$"):
        munge.exchange(in_a_step(seeker(0, **munge_environment)), TEXT)


# ---- torchrun -----------------------------------------------------------------------------------


def test_torchruns_store_brings_the_text() -> None:
    distributed = pytest.importorskip("torch.distributed")
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environ = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    assert torch_store.absence(seeker(0, **environ)) == ""
    seekers = [seeker(rank, **environ) for rank in (1, 0)]
    assert together(torch_store.exchange, seekers) == [TEXT] * 2
    torch_store.forget(seekers[1])
    with pytest.raises(TooLate, match="the store at"):
        torch_store.exchange(seeker(1, seconds=0.0, **environ), "")


def test_no_torchrun_no_store() -> None:
    assert "no torchrun" in torch_store.absence(seeker(0, MASTER_ADDR="a", MASTER_PORT="1"))


# ---- the order ----------------------------------------------------------------------------------


def one(name: str, reason: str, outcome: Any) -> means.Means:
    def exchange(seeker: Seeker, text: str) -> str:
        if isinstance(outcome, Exception):
            raise outcome
        return str(outcome)

    return means.Means(name, lambda seeker: reason, exchange)


def test_the_first_that_works_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    table = (one("A", "is absent", ""), one("B", "", Failed("broke")), one("C", "", "text"))
    monkeypatch.setattr(means, "MEANS", table)
    assert means.exchange(seeker(0), "") == ("C", "text")
    assert means.first_there(seeker(0)) == ("B", ["A: is absent"])
    monkeypatch.setattr(means, "MEANS", table[:2])
    with pytest.raises(Failed, match="A: is absent; B: broke"):
        means.exchange(seeker(0), "")
    monkeypatch.setattr(means, "MEANS", (one("D", "", TooLate("waits")), table[2]))
    with pytest.raises(TooLate, match="D: waits"):
        means.exchange(seeker(0), "")


# ---- the meeting place --------------------------------------------------------------------------


def of_mpirun(rank: int, **more: str) -> dict[str, str]:
    own = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2", **MPIRUN}
    return {**own, "PMIX_NAMESPACE": "job", **more}


def find(environ: dict[str, str], share: places.Share | None = None) -> Any:
    topology = detect(environ)
    settings = knobs.from_environ(environ)
    return places.find(environ, topology, settings, topology, share=share)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Rank 0's texts in a job whose launcher brings them."""
    texts: list[str] = []

    def exchange(seeker: Seeker, text: str) -> tuple[str, str]:
        texts.append(text)
        return "PMIx", text or TEXT

    monkeypatch.setattr(means, "exchange", exchange)
    monkeypatch.setattr(places, "_told", {})
    return texts


def test_rank_0_tells_what_it_has_and_remembers_it(told: list[str]) -> None:
    found = find(of_mpirun(0))
    assert found == find(of_mpirun(0))
    assert len(told) == 1
    text = place.read(told[0])
    assert (found.host, found.port, found.secret) == (text.addresses[0], text.port, text.secret)
    assert len({found.of_generation(number).secret for number in range(3)}) == 3


def test_the_others_take_it(told: list[str]) -> None:
    assert find(of_mpirun(1)) == ("10.0.0.1", 20123, "0123456789abcdef", ())


def test_a_neighbour_of_rank_0_listens_at_all_that_rank_0_has(
    told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot know which of these networks connects the hosts."""
    here = {"lo2": "10.9.0.1", "eth0": "10.0.0.1", "eth1": "10.1.0.1"}
    monkeypatch.setattr(addresses, "reachable", lambda: here)
    text = place.Place(("10.0.0.1", "10.1.0.1"), 20001, "s").text()
    monkeypatch.setattr(means, "exchange", lambda seeker, own: ("PMI", text))
    assert find(of_mpirun(1)) == ("10.0.0.1", 20001, "s", ("10.0.0.1", "10.1.0.1"))


def test_what_told_them_is_forgotten_once_all_have_met(
    told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[str] = []
    monkeypatch.setattr(means, "forget", lambda seeker, name: forgotten.append(name))
    for rank in (0, 1):
        find(of_mpirun(rank))
        assert forgotten == []
        places.met(detect(of_mpirun(rank)))
        places.met(detect(of_mpirun(rank)))
        assert forgotten == (["PMIx"] if rank == 0 else [])
        forgotten.clear()
        places._told.clear()


def test_what_the_user_sets_wins(told: list[str]) -> None:
    address = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "a", "HOROVOD_GLOO_RENDEZVOUS_PORT": "7"}
    assert find(of_mpirun(1, HVDTUNE_SECRET="key", **address)) == ("a", 7, "key", ())
    assert told == []
    assert find(of_mpirun(1, HVDTUNE_SECRET="key")) == ("10.0.0.1", 20123, "key", ())
    places._told.clear()
    assert find(of_mpirun(1, **address)) == ("a", 7, "0123456789abcdef", ())


def test_rank_0_tells_the_addresses_of_the_interfaces_that_are_named(
    told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "ipv4_address", {"ib0": "10.1.0.1", "eth0": "10.0.0.1"}.get)
    find(of_mpirun(0, HOROVOD_GLOO_IFACE="ib0, eth0"))
    assert place.read(told[0]).addresses == ("10.1.0.1", "10.0.0.1")


def nothing_works(seeker: Seeker, text: str) -> tuple[str, str]:
    raise Failed("nothing works")


def test_of_named_interfaces_the_launchers_address_is_the_last_resort(
    told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 listens only there: perhaps the address belongs to another interface."""
    usual = find(TORCHRUN)
    assert usual.host == "first"
    chosen = {**TORCHRUN, "HOROVOD_GLOO_IFACE": "eth0"}
    assert told == []
    assert find(chosen) == ("10.0.0.1", 20123, "key", ())
    monkeypatch.setattr(means, "exchange", nothing_works)
    for rank in "01":
        places._told.clear()
        assert find({**chosen, "RANK": rank}) == usual
    places._told.clear()
    with pytest.raises(ValueError, match=r"\(nothing works\): set HVDTUNE_SECRET to the same"):
        find({**chosen, "HVDTUNE_SECRET": ""})
    monkeypatch.setattr(means, "MEANS", (one("PMIx", "is absent", ""),))
    assert places.explain(chosen) == (
        True,
        "rank 0's address is the launcher's, and the key is in the environment (PMIx: is absent)",
    )
    assert places.explain({**chosen, "HVDTUNE_SECRET": ""}) == (False, "PMIx: is absent")


def test_a_communicator_tells_its_processes(told: list[str]) -> None:
    assert find(of_mpirun(1), lambda text: TEXT) == ("10.0.0.1", 20123, "0123456789abcdef", ())
    assert told == []


def test_one_host_asks_nobody(told: list[str]) -> None:
    assert find(of_mpirun(1, OMPI_COMM_WORLD_LOCAL_SIZE="2")) is None
    assert told == []


def test_if_nothing_works_one_sentence_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(*_: Any) -> Any:
        raise ValueError("no libmpi was found")

    # MPI must not begin in the tests' own process: it leaves its shared memory there.
    monkeypatch.setattr(mpi.mpi_library, "choose", choose)
    monkeypatch.setattr(places, "_told", {})
    with pytest.raises(ValueError, match="Horovod initialization failed: ") as caught:
        find(of_mpirun(0))
    text = str(caught.value)
    for words in ("PMIx: ", "PMI: ", "MPI: ", "torchrun's store: ", "a key-value server: "):
        assert words in text
    assert "set HOROVOD_GLOO_RENDEZVOUS_ADDR" in text
    assert "HVDTUNE_SECRET" in text
    assert "\n" not in text


def test_an_mpi_that_cannot_be_loaded_is_a_reason_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = tmp_path / "libmpi.so.40"
    library.write_bytes(b"not a library")
    monkeypatch.setattr(mpi.mpi_library, "choose", lambda *_: SimpleNamespace(path=str(library)))
    monkeypatch.setattr(places, "_told", {})
    with pytest.raises(ValueError, match=f"MPI: {library} cannot be loaded: ") as caught:
        find(of_mpirun(0))
    assert "set HOROVOD_GLOO_RENDEZVOUS_ADDR" in str(caught.value)


def test_who_is_late_is_another_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_told", {})
    monkeypatch.setattr(means, "MEANS", (one("PMIx", "", TooLate("not all came to it")),))
    with pytest.raises(ValueError, match="not all processes of the job came within 30 s"):
        find(of_mpirun(0))
