"""Horovod's helpers that the alias offers do what their names say."""

from __future__ import annotations

import importlib
import io
import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.jobs.launcher import wait_until_gone

import hvdtune.launch
from hvdtune.core.libraries import built

ALIAS = str(Path(hvdtune.launch.__file__).resolve().parents[1] / "_alias")


@pytest.fixture(autouse=True)
def alias(monkeypatch):
    monkeypatch.setattr(sys, "path", [ALIAS, *sys.path])


def helper(name: str):
    return importlib.import_module(f"horovod.{name}")


def test_hosts_get_their_ranks():
    hosts = helper("runner.common.util.hosts")
    given = hosts.parse_hosts("one:2, two:1")
    assert given == [hosts.HostInfo("one", 2), hosts.HostInfo.from_string("two:1")]
    slots = hosts.get_host_assignments(given, 1)
    assert [slot.to_response_string() for slot in slots] == [
        *("0,3,0,2,0,2", "1,3,1,2,0,1", "2,3,0,1,1,2"),
    ]
    assert [slot.hostname for slot in slots] == ["one", "one", "two"]
    assert len(hosts.get_host_assignments(given, 1, 2)) == 2
    assert hosts.INVALID_SLOT_INFO.to_response_string() == "-1,-1,-1,-1,-1,-1"
    with pytest.raises(ValueError, match="more processes \\(4\\)"):
        hosts.get_host_assignments(given, 4)
    with pytest.raises(ValueError, match="name:slots"):
        hosts.parse_hosts("one")


def test_a_hostfile_as_one_line(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("one slots=2\n\n# more\ntwo slots=4 max_slots=8\n")
    assert helper("runner.common.util.hosts").parse_host_files(file) == "one:2,two:4"


def test_a_timeout_counts_down(monkeypatch):
    timeout = helper("runner.common.util.timeout")
    clock = SimpleNamespace(now=5.0)
    monkeypatch.setattr(timeout.time, "monotonic", lambda: clock.now)
    span = timeout.Timeout(10, "Could not {activity}.")
    assert span.remaining() == 10
    span.check_time_out_for("start")
    clock.now = 15.5
    assert span.timed_out()
    assert span.remaining() == 0
    with pytest.raises(timeout.TimeoutException, match=r"^Could not start\. Timeout after 10 sec"):
        span.check_time_out_for("start")


def test_digests():
    secret = helper("runner.common.util.secret")
    key, other = secret.make_secret_key(), secret.make_secret_key()
    digest = secret.compute_digest(key, b"message")
    assert len(digest) == secret.DIGEST_LENGTH
    assert secret.check_digest(digest, key, b"message")
    assert not secret.check_digest(digest, key, b"another")
    assert not secret.check_digest(digest, other, b"message")


def test_objects_as_text():
    codec = helper("runner.common.util.codec")
    text = codec.dumps_base64({"double": lambda number: 2 * number})
    assert text.isascii()
    assert codec.loads_base64(text)["double"](4) == 8
    assert codec.loads_base64(codec.dumps_base64([1], to_ascii=False)) == [1]


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, (0, 1)),
        ({"HOROVOD_RANK": "3", "HOROVOD_SIZE": "4", "PMI_RANK": "1", "PMI_SIZE": "2"}, (3, 4)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2)),
        ({"PMI_RANK": "5", "PMI_SIZE": "8"}, (5, 8)),
        ({"PMI_RANK": "5"}, None),
    ],
)
def test_rank_and_size_by_the_environment(monkeypatch, variables, found):
    env = helper("runner.common.util.env")
    for name in [name for name in os.environ if name.endswith(("_RANK", "_SIZE"))]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if found is None:
        with pytest.raises(RuntimeError, match="PMI_RANK is set"):
            env.get_env_rank_and_size()
    else:
        assert env.get_env_rank_and_size() == found


def test_which_variables_travel():
    env = helper("runner.common.util.env")
    assert env.is_exportable("HOROVOD_TIMELINE")
    assert not env.is_exportable("CUDA_VISIBLE_DEVICES")


def test_a_host_has_one_hash():
    host_hash = helper("runner.common.util.host_hash").host_hash
    assert host_hash() == host_hash()
    assert host_hash("salt") != host_hash()


def test_commands_of_the_shell():
    shell = helper("runner.common.util.safe_shell_exec")
    out, err = io.StringIO(), io.StringIO()
    command = 'echo "$WORD"; echo bad >&2; printf end; exit 3'
    status = shell.execute(command, env={"WORD": "good"}, stdout=out, stderr=err, index=7)
    assert status == 3
    assert out.getvalue() == "[7]<stdout>:good\n[7]<stdout>:end"
    assert err.getvalue() == "[7]<stderr>:bad\n"
    assert shell.execute("kill -9 $$", stdout=out, stderr=err) == 137
    tiny = helper("runner.common.util.tiny_shell_exec")
    assert tiny.execute("echo one; echo two >&2; false")[1] == 1
    assert sorted(tiny.execute("echo one; echo two >&2")[0].split()) == ["one", "two"]


@pytest.mark.parametrize("trap", ["", "trap '' TERM; "])
def test_a_command_ends_with_all_its_processes_when_an_event_is_set(monkeypatch, trap):
    shell = helper("runner.common.util.safe_shell_exec")
    monkeypatch.setattr(shell, "GRACEFUL_TERMINATION_TIME_S", 0.2)
    event, out = threading.Event(), io.StringIO()
    ended: list[int] = []
    command = f"{trap}sleep 1000 & echo $!; wait; sleep 1000"
    thread = threading.Thread(
        target=lambda: ended.append(shell.execute(command, stdout=out, events=[event]))
    )
    thread.start()
    while not out.getvalue().endswith("\n"):
        time.sleep(0.01)
    event.set()
    thread.join()
    wait_until_gone([int(out.getvalue())])
    assert ended[0] in (128 + 15, 128 + 9)


def test_threads(capsys):
    threads = helper("runner.util.threads")
    seen: list[int] = []
    threads.in_thread(seen.append, (1,)).join()
    event, stop = threading.Event(), threading.Event()
    waiting = threads.on_event(event, seen.append, (2,))
    stopped = threads.on_event(threading.Event(), seen.append, (3,), stop, 0.01)
    event.set()
    stop.set()
    waiting.join()
    stopped.join()
    assert seen == [1, 2]
    many = threads.execute_function_multithreaded(lambda a, b: a * b, [[n, n] for n in range(20)])
    assert many == {n: n * n for n in range(20)}
    with pytest.raises(ValueError, match="tuple"):
        threads.in_thread(seen.append, [1])
    threads.in_thread(lambda: 1 / 0, silent=True).join()
    assert capsys.readouterr().err == ""
    threads.in_thread(lambda: 1 / 0).join()
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_this_hosts_names():
    network = helper("runner.util.network")
    assert "lo" in network.get_local_host_intfs()
    assert "127.0.0.1" in network.get_local_host_addresses()
    assert network.filter_local_addresses(["localhost", "127.0.0.1"]) == []


def test_the_operation_that_average_and_op_mean():
    chosen = helper("common.util").get_average_backwards_compatibility_fun(
        SimpleNamespace(Average=0, Sum=1)
    )
    assert (chosen(None, None), chosen(1, None), chosen(0, None)) == (0, 1, 0)
    with pytest.warns(DeprecationWarning, match="use op"):
        assert chosen(None, False) == 1
    with pytest.warns(DeprecationWarning, match="use op"):
        assert chosen(None, True) == 0
    with pytest.raises(ValueError, match="exclude"):
        chosen(0, True)


def test_the_rest_of_common_util():
    util = helper("common.util")
    assert util.get_ext_suffix().endswith(".so")
    util.check_num_rank_power_of_2(8)
    with pytest.raises(ValueError, match="6 ranks"):
        util.check_num_rank_power_of_2(6)
    util.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", __file__, "mpi_lib_v2")
    with pytest.raises(ImportError, match="not part of this version"):
        util.check_extension("horovod.nope", "HOROVOD_WITH_NOPE", __file__, "mpi_lib")


def test_basics():
    basics = helper("common.basics").HorovodBasics(__file__, "mpi_lib_v2")
    assert basics.gloo_built() is built.gloo_built()
    assert not basics.is_initialized()
    for ask in (basics.rank, basics._get_process_set_ids_and_ranks):
        with pytest.raises(ValueError, match="init"):
            ask()
