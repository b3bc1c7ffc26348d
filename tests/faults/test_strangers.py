"""Whoever connects to a running job and does not behave changes nothing about it.

The doors of a meeting, which are closed once a job runs, are test_meeting_fuzz.cc's.
"""

from __future__ import annotations

import time
import urllib.request
from pathlib import Path

import pytest
from rank_programs import checked_training
from support.jobs.ranks import Ranks, start_ranks
from support.jobs.strangers import disturb, to_the_port, to_the_socket

from hvdtune.launch.remote.rendezvous import free_port
from hvdtune.live import client

# Whoever says nothing is waited for for two seconds at the socket, where one is heard at a time;
# benchmarks/experiments/strangers.py sends more of those.
FEW = {"silent": 2}


def start(tmp_path: Path, **env: str) -> Ranks:
    return start_ranks(3, checked_training.train, str(tmp_path / "stop"), env=env)


def end(ranks: Ranks, tmp_path: Path) -> None:
    (tmp_path / "stop").touch()
    result = ranks.wait(60)
    assert {wrong for _, wrong in result.values} == {0}
    for rank in range(3):
        assert "Traceback" not in result[rank].stderr, result[rank].stderr


def test_at_the_socket_that_hvdtune_top_asks(tmp_path: Path) -> None:
    with start(tmp_path) as ranks:
        ranks.wait_for_output(0, "running")
        [endpoint] = [one for one in client.endpoints() if one.pid == ranks.pid(0)]
        disturb(to_the_socket(endpoint.name), **FEW)
        before = answer_of(endpoint)["steps"]
        while answer_of(endpoint)["steps"] == before:
            time.sleep(0.01)
        end(ranks, tmp_path)


def answer_of(endpoint: client.Endpoint) -> dict[str, int]:
    """Whoever is silent is waited for, a while: the one before may still be served."""
    deadline = time.monotonic() + 120
    while True:
        try:
            return client.status(endpoint)
        except client.JobError:
            assert time.monotonic() < deadline


@pytest.mark.long
def test_at_the_port_that_prometheus_asks(tmp_path: Path) -> None:
    port = free_port("127.0.0.1")
    with start(tmp_path, HVDTUNE_METRICS_PORT=str(port)) as ranks:
        ranks.wait_for_output(0, "running")
        disturb(to_the_port(port), **FEW)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
            assert b"hvdtune_ranks 3.0" in page.read()
        end(ranks, tmp_path)
