"""Tuning that ends before the optimiser's process has started says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.models.simulated_training import flat, short_cycle_is_best
from test_autotune_session import DirectOptimiser, SimulatedEngine, session

from hvdtune.autotune.report import log
from hvdtune.autotune.search.question import Answer


class StartingOptimiser(DirectOptimiser):
    """Its process does not get to its start before training is over."""

    started_s = None

    def poll(self) -> Answer | None:
        return None


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.csv"


NOT_STARTED = "the optimiser's process had not started by then, so "


@pytest.mark.parametrize(("steps", "phase"), [(0, "warmup"), (5, "warmup"), (38, "baseline")])
def test_that_training_ended_before_the_optimiser_had_started_is_said(
    steps: int, phase: str, path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    session(SimulatedEngine(flat, steps), path, optimiser=StartingOptimiser).run()
    said = log.read(path)[-1]["decision"]
    assert f"training ended during {phase}" in said
    assert f"{NOT_STARTED}only the current settings were measured" in said
    assert NOT_STARTED in capfd.readouterr().err
    session(SimulatedEngine(flat, steps), path).run()
    assert "had not started" not in capfd.readouterr().err


@pytest.mark.parametrize("warmup", ["0", "1", "3"])
def test_a_search_that_is_over_before_the_optimiser_has_started_says_so(
    warmup: str, path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    environ = {"HOROVOD_AUTOTUNE_WARMUP_SAMPLES": warmup}
    tuning = session(SimulatedEngine(flat, 10_000), path, environ, StartingOptimiser)
    tuning.end_search_soon("the time for searching was over")
    tuning.run()
    assert not tuning.unfinished
    last = log.read(path)[-1]
    assert last["phase"] == "final"
    assert f"{NOT_STARTED}only the current settings were measured" in last["decision"]
    assert NOT_STARTED in capfd.readouterr().err


def test_what_was_compared_without_the_optimiser_counts(path: Path) -> None:
    # The defaults are a candidate that needs no optimiser.
    engine = SimulatedEngine(short_cycle_is_best, 400, start={"cycle_time": 25.0})
    session(engine, path, optimiser=StartingOptimiser).run()
    last = log.read(path)[-1]
    assert last["decision"].startswith("adopted: ")
    assert f"{NOT_STARTED}there was no search" in last["decision"]


class SlowOptimiser(DirectOptimiser):
    """Its process takes long to start, as on a machine whose CPUs are all busy."""

    started_s = 6.25


def test_that_the_optimiser_started_slowly_is_said(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    session(SimulatedEngine(flat, 10_000), path, optimiser=SlowOptimiser).run()
    assert "optimiser 0.0 s in its own process, which took 6.2 s to start" in capfd.readouterr().err
    session(SimulatedEngine(flat, 10_000), path).run()
    assert "to start" not in capfd.readouterr().err
