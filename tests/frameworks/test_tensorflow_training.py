"""hvdtune.tensorflow above its operations: tape, optimizers, variables, objects, elastic states.

TensorFlow takes seconds to load in every rank, so a job runs many checks.
"""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("keras")

from rank_programs import tensorflow_sessions, tensorflow_tape, tensorflow_training
from support.jobs.ranks import run_checks_on, run_ranks
from support.tiers import long_too

from hvdtune.timeline import api

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow's ranks look for no GPU, and say only what is wrong."""
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")


@pytest.mark.parametrize("ranks", long_too(3, long=[1, 2, 4]))
def test_tape(ranks: int) -> None:
    run_checks_on(ranks, tensorflow_tape.run, timeout=300)


@pytest.mark.parametrize("ranks", long_too(2, long=[1, 4]))
def test_sessions(ranks: int, tmp_path: Path) -> None:
    done = run_ranks(ranks, tensorflow_sessions.run, str(tmp_path), timeout=300).values
    names = [check.__name__ for check in tensorflow_sessions.CHECKS]
    assert done == (names,) * ranks


@pytest.mark.parametrize("ranks", long_too(3, long=[1, 2]))
def test_variables_objects_and_states(ranks: int) -> None:
    run_checks_on(ranks, tensorflow_training.run, timeout=300)


@pytest.mark.parametrize(
    "how", long_too("function", long=["function", "eager", "in groups", "sparse"])
)
def test_ranks_train_like_one_process(how: str) -> None:
    (alone,) = run_ranks(1, tensorflow_training.train, how).values
    for ranks in (2, 4):
        for weights in run_ranks(ranks, tensorflow_training.train, how).values:
            for one, other in zip(weights, alone, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-13)


def test_a_report_says_that_graphs_do_not_show_when_they_wait(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    run_ranks(2, tensorflow_training.train, "function", env={"HOROVOD_TIMELINE": str(path)})
    job = api.read(path)
    named = [one.identity.framework for one in job.recording.ranks.values()]
    assert all(one.startswith("tensorflow ") for one in named), named
    assert len(job.analysis.found_steps)
    assert not job.analysis.overlap.shows_waits
    assert "waits not recorded" in job.findings()["kind"].tolist()


def test_a_dead_rank_is_an_error_that_training_recovers_from() -> None:
    """It cannot here, for the rank is not started again; the loop has tried to."""
    result = run_ranks(3, tensorflow_training.one_dies, 1, check=False)
    assert [rank.returncode for rank in result.ranks] == [0, -signal.SIGKILL, 0], result.describe()
    for rank in (0, 2):
        assert result.values[rank].startswith("UnknownError of mine, then ")
        assert "initialization failed" in result.values[rank]
        assert "rank 1" in result[rank].stderr, "why training starts over is logged"
