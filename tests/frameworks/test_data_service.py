"""TensorFlow's data service over ranks: every element is read, and once where it shall be once."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf
from rank_programs import data_service
from support.jobs.ranks import clean_environment, hvdtune_command, run_ranks

from hvdtune.compute_service.errors import TimeoutException
from hvdtune.compute_service.service import ComputeService
from hvdtune.tensorflow.data import compute_service
from hvdtune.tensorflow.data.compute_service import (
    TfDataServiceConfig,
    send_to_data_service,
    tf_data_service,
)

pytestmark = pytest.mark.timeout(280)
WHOLE = [number * 10 for number in range(data_service.NUMBERS)]
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}


def config(**changed):
    values = {
        "dispatchers": 2,
        "workers_per_dispatcher": 3,
        "dispatcher_side": "compute",
        "addresses": {"eth0": [("10.0.0.1", 12345)], "lo": [("127.0.0.1", 12346)]},
        "key": bytes(range(32)),
        "timeout": 5,
    }
    return TfDataServiceConfig(**{**values, **changed})


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each of two ranks has read, in all ways; one start of ranks."""
    folder = str(tmp_path_factory.mktemp("data-service"))
    return run_ranks(2, data_service.all_ways, folder, env=QUIET, timeout=250).values


def numbers(batches):
    return [number for batch in batches for number in batch]


@pytest.mark.parametrize("way", ["each", "own", "own_shared", "training_own"])
def test_each_rank_reads_the_whole_dataset(found, way):
    for rank in found:
        assert sorted(numbers(rank[way])) == WHOLE


@pytest.mark.parametrize("way", ["shared", "training"])
def test_the_ranks_share_a_dataset(found, way):
    everything = numbers(found[0][way]) + numbers(found[1][way])
    assert sorted(everything) == WHOLE


def test_the_ranks_take_turns(found):
    for ours, others in zip(*(rank["turns"] for rank in found), strict=True):
        assert len({*ours, *others}) == 2 * data_service.BATCH
    everything = numbers(found[0]["turns"] + found[1]["turns"])
    assert len(everything) == 2 * 5 * data_service.BATCH
    assert max(Counter(everything).values()) <= 2  # once for each worker


def test_a_job_that_cannot_run_the_service_ends_on_every_rank(found):
    for rank in found:
        number, side, file = rank["refusals"]
        assert number == (
            "ValueError: Number of processes (2) must be a multiple of number of dispatchers (3)."
        )
        assert side == "ValueError: dispatcher_side is 'left', must be 'compute' or 'training'"
        assert file.startswith("OSError: rank 0 could not start the compute service: ")
        assert "no/such" in file


def test_the_command(tmp_path):
    """A job of its own runs the service; this process reads, and ends it."""
    configfile = tmp_path / "service.json"
    module = "hvdtune.tensorflow.data.compute_worker"
    job = hvdtune_command("run", "-np", "2")
    command = [*job, sys.executable, "-m", module, str(configfile), "--timeout", "50"]
    with subprocess.Popen(
        command,
        env=clean_environment({**QUIET, "HOROVOD_GLOO_IFACE": ", lo"}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            deadline = time.monotonic() + 100
            while not configfile.exists() and process.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert process.poll() is None, process.stdout.read()
            read = TfDataServiceConfig.read(str(configfile))
            assert (read.dispatchers, read.workers_per_dispatcher, read.timeout) == (1, 2, 50)
            assert list(read.addresses) == ["lo"]
            sent = data_service.dataset().send_to_data_service(read, 0, 1)
            assert sorted(numbers(data_service.read(sent))) == WHOLE
            read.compute_client().shutdown()
            shown, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, shown
    with pytest.raises(ConnectionError, match="answers at none of its addresses"):
        read.compute_client()


def test_the_configuration_is_kept_in_a_file(tmp_path):
    file = tmp_path / "service.json"
    for one in (config(), config(dispatcher_side="training", timeout=7)):
        one.write(str(file))
        assert TfDataServiceConfig.read(str(file), wait_for_file_creation=True) == one
        assert TfDataServiceConfig.from_dict(one.to_dict()) == one
    assert [path.name for path in tmp_path.iterdir()] == ["service.json"]
    assert file.stat().st_mode & 0o777 == 0o600
    content = json.loads(file.read_text())
    assert content["key"] == bytes(range(32)).hex()
    assert content["addresses"]["eth0"] == [["10.0.0.1", 12345]]


def test_a_file_is_waited_for(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(compute_service, "_REMINDER", 0.0)
    file = str(tmp_path / "service.json")
    timer = threading.Timer(0.5, config().write, [file])
    timer.start()
    assert TfDataServiceConfig.read(file, wait_for_file_creation=True) == config()
    timer.join()
    assert [record.getMessage() for record in caplog.records] == [
        f"still waiting for {file}, which the compute job writes"
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "Expecting property name"),
        ("[]", "list indices"),
        ("{}", "there is no 'dispatchers'"),
        (json.dumps({**config().to_dict(), "addresses": 1}), "'int' object"),
        (json.dumps({**config().to_dict(), "dispatchers": 0}), "dispatchers is 0"),
        (
            json.dumps({**config().to_dict(), "dispatcher_side": "left"}),
            "dispatcher_side is 'left'",
        ),
        (json.dumps({**config().to_dict(), "key": "x"}), "hexadecimal"),
    ],
)
def test_a_file_that_is_no_configuration(tmp_path, text, fault):
    file = tmp_path / "service.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=f"{file} is not a configuration .*: .*{fault}"):
        TfDataServiceConfig.read(str(file))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        TfDataServiceConfig.read(str(tmp_path / "service.json"))


def test_datasets_have_the_method():
    assert tf.data.Dataset.send_to_data_service is send_to_data_service


def test_sending_where_that_is_not_possible():
    dataset = tf.data.Dataset.range(1)
    with pytest.raises(RuntimeError, match="use the context manager tf_data_service instead"):
        dataset.send_to_data_service(config(dispatcher_side="training"), 0)
    with pytest.raises(ValueError, match="round_robin needs size"):
        dataset.send_to_data_service(config(), 0, reuse_dataset=True, round_robin=True)


def test_who_does_not_register_in_time():
    """Nor does the dispatcher that ran meanwhile keep its port."""
    key = bytes(32)
    service = ComputeService(1, 1, key)
    try:
        ours = config(
            dispatchers=1, dispatcher_side="training", addresses=service.addresses(), key=key,
            timeout=1,
        )  # fmt: skip
        with (
            pytest.raises(TimeoutException, match="waiting for workers for dispatcher 0"),
            tf_data_service(ours, 0),
        ):
            pytest.fail("there is no worker")
        address = ours.compute_client().wait_for_dispatcher_registration(0, 1)
        host, _, port = address.removeprefix("grpc://").rpartition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), 5)
    finally:
        service.shutdown()
