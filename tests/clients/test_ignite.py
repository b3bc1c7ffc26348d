"""PyTorch Ignite's backend "horovod" on hvdtune: in a job, and where Ignite starts the job."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from support.jobs.client_runs import run_client
from support.jobs.ranks import hvdtune_command
from support.tiers import EVERY

pytest.importorskip("torch")
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

TRAINING = str(Path(__file__).with_name("ignite_training.py"))
JOB = hvdtune_command("run", "-np", "2", sys.executable, TRAINING)
# Ways to join a job, which the same ranks go one after the other. Then ways to have Ignite start
# one, by `horovod.run`.
JOINING = ("joined", "initialized", "context")
STARTING = ("spawn", "parallel") if EVERY else ()


@pytest.fixture(scope="module")
def ignite(client_packages):
    return client_packages("pytorch-ignite")


@pytest.fixture(scope="module")
def alone(ignite, tmp_path_factory):
    """What one process finds that sees all batches whole."""
    [[found]] = run_client(
        tmp_path_factory.mktemp("alone"), ignite, [sys.executable, TRAINING, "serial"]
    )
    return found


@pytest.fixture(scope="module")
def joined(ignite, tmp_path_factory):
    """What the ranks of one job find, by the ways in which they join it."""
    found = run_client(tmp_path_factory.mktemp("joined"), ignite, [*JOB, *JOINING])
    return dict(zip(JOINING, found, strict=True))


@pytest.fixture(scope="module", params=[*JOINING, *STARTING])
def ranks(request, ignite, tmp_path_factory):
    """What each of 2 ranks finds, in each way to start them."""
    if request.param in JOINING:
        found = request.getfixturevalue("joined")[request.param]
    else:
        command = [sys.executable, "-m", "hvdtune", TRAINING, request.param]
        [found] = run_client(tmp_path_factory.mktemp(request.param), ignite, command)
    assert [one["rank"] for one in found] == [one["local_rank"] for one in found] == [0, 1]
    return found


def test_the_backend_is_ours(ranks):
    for one in ranks:
        assert (one["backend"], one["model"]) == ("horovod", "horovod-dist")
        assert one["device"] == "cpu"
    assert [one["told"] for one in ranks] == ["by rank 0", None]


def test_a_data_loader_deals_out_every_sample(ranks):
    assert [one["rows"] for one in ranks] == [64, 64]


def test_collectives(ranks):
    for rank, one in enumerate(ranks):
        assert one["collectives"] == {
            "sum": [3.0, 30.0],
            "number": 3,
            "average": [1.5, 15.0],
            "min": [1.0, 10.0],
            "max": [2.0, 20.0],
            "product": [2.0, 200.0],
            "gathered": [1.0, 10.0, 2.0, 20.0],
            "numbers": [0, 1],
            "words": ["x", "xx"],
            "objects": [[0, {"rank": 0}], [1, {"rank": 1}]],
            "broadcast": [2.0, 20.0],
            "text": "from 0",
            "safe": [1.0, 10.0],
            # Ignite gives who is not in a group their own tensor back.
            "group": [rank + 1.0, 10.0 * (rank + 1)],
        }


def test_training_is_that_of_one_process(ranks, alone):
    first, second = ranks
    assert first["weights"] == second["weights"]
    assert first["batches"] == second["batches"] == alone["batches"]
    for ours, single in zip(first["weights"], alone["weights"], strict=True):
        assert np.asarray(ours) == pytest.approx(np.asarray(single), abs=1e-5)


def test_metrics_are_those_of_one_process(ranks, alone):
    first, second = ranks
    assert first["metrics"] == second["metrics"]
    assert len(first["metrics"]) == 3
    for ours, single in zip(first["metrics"], alone["metrics"], strict=True):
        assert ours["accuracy"] == single["accuracy"]
        assert ours["loss"] == pytest.approx(single["loss"], abs=1e-5)
    assert first["metrics"][-1]["accuracy"] > 0.8
