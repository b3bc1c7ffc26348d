"""A job's status as Prometheus metrics: on a port and in a file."""

from __future__ import annotations

import os
import re
import socket
import threading
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.recordings.live_samples import sample_status, status_at_start

from hvdtune.live import job, metrics
from hvdtune.live.exporter import Exporter

DOCS = Path(__file__).parents[2] / "docs" / "metrics-export.md"


def samples(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(text.decode())
    return {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in families
        for one in family.samples
    }


def test_every_metric_has_its_value():
    gpus = [{"utilization_ratio": 0.5, "power_watts": 300.0}, {"power_watts": 100.0}]
    exporter = Exporter(lambda: sample_status(straggler=1), gpus=lambda: gpus)
    found = samples(exporter.text())
    exporter.stop()
    assert found["hvdtune_steps_total", ()] == 500
    assert found["hvdtune_step_seconds", ()] == 0.25
    assert found["hvdtune_bytes_total", ()] == 5e10
    assert found["hvdtune_exposed_ratio", ()] == 0.4
    assert found["hvdtune_cycle_time_seconds", ()] == 0.0015
    late = {labels: value for (name, labels), value in found.items() if "late" in name}
    assert late[("host", "a"), ("rank", "1")] == 0.03
    named = {
        labels: value for (name, labels), value in found.items() if name == "hvdtune_straggler"
    }
    assert named == {
        (("host", "a"), ("rank", "0")): 0,
        (("host", "a"), ("rank", "1")): 1,
        (("host", "b"), ("rank", "2")): 0,
    }
    assert found["hvdtune_gpu_power_watts", (("gpu", "1"),)] == 100
    assert ("hvdtune_gpu_utilization_ratio", (("gpu", "1"),)) not in found


def test_late_hosts_have_metrics_where_there_are_several():
    hosts = sample_status()["hosts"]
    hosts[1]["late_s"] = 0.05
    found = samples(Exporter(lambda: sample_status(hosts=hosts, straggler_host=1)).text())
    for name, late in (("hvdtune_host_late_seconds", 0.05), ("hvdtune_straggler_host", 1)):
        assert found[name, (("host", "a"),)] == 0
        assert found[name, (("host", "b"),)] == late
    alone = samples(Exporter(lambda: sample_status(hosts=[])).text())
    assert not {name for name, _ in alone if "host" in name}


def test_hosts_of_one_name_are_one_in_metrics():
    ranks = [{"host": "a", "pid": pid} for pid in (1, 2, 3)]
    hosts = sample_status()["hosts"]
    hosts[0]["late_s"] = 0.05
    found = samples(Exporter(lambda: sample_status(ranks=ranks, hosts=hosts)).text())
    assert found["hvdtune_host_late_seconds", (("host", "a"),)] == 0.05


def test_what_is_not_known_yet_has_no_sample():
    found = samples(Exporter(status_at_start).text())
    names = {name for name, _ in found}
    assert "hvdtune_steps_total" in names
    assert not names & {"hvdtune_step_seconds", "hvdtune_step_bytes", "hvdtune_exposed_ratio"}


def test_the_page_lists_exactly_the_metrics_there_are():
    rows = re.findall(r"^\| `(hvdtune_\w+)` \| (\w+) \| ([^|]*)\|", DOCS.read_text(), re.MULTILINE)
    listed = {(name, kind, labels.replace("`", "").strip()) for name, kind, labels in rows}
    known = {
        (
            one.name + ("_total" if one.kind == "counter" else ""),
            one.kind,
            ", ".join(one.labels),
        )
        for one in metrics.METRICS
    }
    assert listed == known


def test_the_file_is_replaced_as_a_whole(tmp_path):
    file = tmp_path / "job.prom"
    written = threading.Event()

    def status():
        if file.exists():
            written.set()
        return sample_status()

    exporter = Exporter(status, file=str(file), interval_s=0.01)
    assert written.wait(60)
    for _ in range(50):
        assert samples(file.read_bytes())["hvdtune_steps_total", ()] == 500
    exporter.stop()
    assert os.listdir(tmp_path) == ["job.prom"], "nothing lies beside it"


def test_the_last_state_is_written_at_the_end(tmp_path):
    file = tmp_path / "job.prom"
    exporter = Exporter(sample_status, file=str(file), interval_s=3600)
    exporter.stop()
    exporter.stop()
    assert samples(file.read_bytes())["hvdtune_steps_total", ()] == 500


def test_a_file_that_cannot_be_written_is_one_warning(tmp_path):
    said = []
    failures = threading.Semaphore(0)

    def status():
        failures.release()
        return sample_status()

    (tmp_path / "file").touch()
    file = str(tmp_path / "file" / "job.prom")
    exporter = Exporter(status, file=file, interval_s=0.01, warn=said.append)
    for _ in range(5):
        assert failures.acquire(timeout=60)
    exporter.stop()
    assert len(said) == 1
    assert "cannot write" in said[0]
    assert "Not a directory" in said[0]


def test_the_folder_of_the_file_is_made(tmp_path):
    file = tmp_path / "no" / "such" / "job.prom"
    Exporter(sample_status, file=str(file), interval_s=60, warn=pytest.fail).stop()
    assert file.read_text().startswith("# HELP")


def test_a_job_that_has_ended_leaves_its_last_reading(tmp_path):
    file = tmp_path / "job.prom"
    file.write_text("before\n")

    def ended():
        raise ValueError("not initialized")

    Exporter(ended, file=str(file), interval_s=3600).stop()
    assert file.read_text() == "before\n"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_the_port_answers_on_loopback_only_and_closes():
    port = free_port()
    exporter = Exporter(sample_status, port=port)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        assert samples(answer.read())["hvdtune_steps_total", ()] == 500
    listening = Path("/proc/net/tcp").read_text().splitlines()
    mine = [line.split()[1] for line in listening if f":{port:04X} 00000000:0000 0A" in line]
    assert mine == [f"0100007F:{port:04X}"]
    exporter.stop()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60)


def test_a_port_that_is_taken_is_a_warning():
    said = []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        Exporter(sample_status, port=port, warn=said.append).stop()
    assert len(said) == 1
    assert f"127.0.0.1:{port} (HVDTUNE_METRICS_PORT)" in said[0]


def test_a_fork_does_not_keep_the_port():
    port = free_port()
    settings = SimpleNamespace(
        metrics_file=None, metrics_interval=5, metrics_port=port, metrics_address="127.0.0.1"
    )
    said = []
    job.start(settings, sample_status, said.append)
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writes)
        os.read(reads, 1)  # until the parent has ended its test
        os._exit(0)
    try:
        job.stop()
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10)
        job.start(settings, sample_status, said.append)
        job.stop()
        assert said == []
    finally:
        os.close(writes)
        os.close(reads)
        os.waitpid(child, 0)


def test_the_oldest_prometheus_client_gives_its_server():
    """start_http_server returns it since 0.20; Exporter.stop() needs it."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    [oldest] = re.findall(r'"prometheus-client>=(\d+)\.(\d+)', text)
    assert tuple(map(int, oldest)) >= (0, 20)


def test_an_address_that_cannot_be_a_name_is_a_warning():
    said = []
    Exporter(sample_status, port=free_port(), address="node..cluster", warn=said.append).stop()
    assert len(said) == 1
    assert "cannot listen on node..cluster:" in said[0]
