"""What starts a search after tuning, what does not, and what comes of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from support.models.simulated_training import SimulatedStep, flat, short_cycle_is_best
from test_autotune_session import SimulatedEngine, session

from hvdtune.autotune.report import log
from hvdtune.autotune.session import session as session_module
from hvdtune.autotune.statistics.watch import Change, Watch

WATCH = {"HVDTUNE_AUTOTUNE_WATCH": "1", "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "6"}


def watch(
    level: Callable[[int], float],
    steps: int,
    noise: float = 0.02,
    seed: int = 1,
    size: Callable[[int], int] = lambda at: 1000,
) -> tuple[int, Change] | None:
    """The step at which a change is reported, and the change."""
    rng = random.Random(seed)
    watching = Watch()
    for at in range(steps):
        duration = int(1e7 * level(at) * rng.lognormvariate(0, noise))
        change = watching.add(SimulatedStep(duration, size(at)))
        if change is not None:
            return at, change
    return None


@pytest.mark.parametrize(("factor", "sign"), [(1.3, "(+"), (1.1, "(+"), (0.8, "(-")])
def test_a_lasting_change_is_found_soon(factor: float, sign: str) -> None:
    found = watch(lambda at: factor if at >= 1000 else 1.0, 2000)
    assert found is not None
    at, change = found
    assert 1000 < at < 1200
    assert change.after_ms / change.before_ms == pytest.approx(factor, rel=0.03)
    assert sign in change.words()


@pytest.mark.parametrize("noise", [0.01, 0.04, 0.08])
@pytest.mark.parametrize("seed", range(5))
def test_noise_slow_steps_and_slight_drift_are_no_change(noise: float, seed: int) -> None:
    def level(at: int) -> float:
        checkpoint = 20.0 if at % 100 == 0 else 1.0
        pause = 3.0 if 1000 <= at < 1010 else 1.0
        return checkpoint * pause * (1 + 0.02 * at / 5000)

    assert watch(level, 5000, noise, seed) is None


def test_an_evaluation_is_left_out_and_other_training_is_a_change() -> None:
    def evaluates(at: int) -> int:
        return 10 if at % 300 < 40 and at > 200 else 1000

    assert watch(lambda at: 1.0, 3000, size=evaluates) is None
    found = watch(lambda at: 1.0, 3000, size=lambda at: 1000 if at < 500 else 9000)
    assert found is not None
    assert found[1].work
    assert "differ from before" in found[1].words()


def test_times_that_are_none_are_ignored() -> None:
    watching = Watch()
    for duration in (float("nan"), 0, -5, float("inf")):
        for _ in range(300):
            assert watching.add(SimulatedStep(duration)) is None  # type: ignore[arg-type]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "WATCH_PAUSE_S", 0.0)


def changing(
    later: Callable[[Mapping[str, float]], float], when: int, steps: int
) -> SimulatedEngine:
    """An engine that follows another landscape from a step on."""

    def landscape(values: Mapping[str, float]) -> float:
        return (later if engine._steps.count > when else flat)(values)

    engine = SimulatedEngine(landscape, steps)
    return engine


@pytest.mark.usefixtures("impatient")
def test_a_change_starts_a_bounded_search(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    engine = changing(lambda values: 1.2 * short_cycle_is_best(values) ** 3, 1500, 4000)
    path = tmp_path / "log.csv"
    session(engine, path, WATCH).run()
    told = capfd.readouterr().err.splitlines()
    assert "no significant gain" in told[0]
    assert "the step time has changed from " in told[1]
    assert told[1].endswith("searching again")
    assert "adopted: " in told[2]
    finals = [row for row in log.read(path) if row["phase"] == "final"]
    assert [row["accepted"] for row in finals] == ["0", "1"]
    assert engine.values["cycle_time"] < 0.7


@pytest.mark.usefixtures("impatient")
def test_where_nothing_helps_all_stays_and_it_ends(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def getting_slower(values: Mapping[str, float]) -> float:
        return 1.0 + 0.3 * (engine._steps.count // 1200)

    engine = SimulatedEngine(getting_slower, 12_000)
    before = dict(engine.values)
    session(engine, tmp_path / "log.csv", WATCH).run()
    told = capfd.readouterr().err
    assert told.count("searching again") == session_module.WATCH_SEARCHES
    assert "adopted" not in told
    assert engine.values == before


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("ending", [False, True])
def test_an_exception_while_watching_is_not_a_second_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], ending: bool
) -> None:
    class Failing(SimulatedEngine):
        def read_steps(self, timeout_s: float) -> list[SimulatedStep]:
            if self.left < 100:
                if ending:
                    watching.stop_soon()
                raise RuntimeError("no")
            return super().read_steps(timeout_s)

    path = tmp_path / "log.csv"
    watching = session(Failing(flat, 3000), path, WATCH)
    watching.run()
    assert [row["phase"] for row in log.read(path)].count("final") == 1
    told = capfd.readouterr().err
    assert told.count("hvdtune autotune: ") == 1
    assert ("watching ended: RuntimeError: no" in told) == (not ending)


@pytest.mark.usefixtures("impatient")
def test_without_the_flag_nothing_is_read_any_more(tmp_path: Path) -> None:
    engine = changing(short_cycle_is_best, 1500, 6000)
    session(engine, tmp_path / "log.csv", {**WATCH, "HVDTUNE_AUTOTUNE_WATCH": "0"}).run()
    assert engine.left > 4000


@pytest.mark.usefixtures("impatient")
def test_what_was_adopted_is_not_lost_in_a_second_search(tmp_path: Path) -> None:
    class Losing(SimulatedEngine):
        def read_steps(self, timeout_s: float) -> list[SimulatedStep]:
            if tuning._searches == 2 and tuning._tuner.history:
                raise self.EngineStopped
            return super().read_steps(timeout_s)

    def landscape(values: Mapping[str, float]) -> float:
        return (1.5 if engine._steps.count > 3000 else 1.0) * short_cycle_is_best(values) ** 3

    engine = Losing(landscape, 8000)
    path = tmp_path / "log.csv"
    tuning = session(engine, path, WATCH)
    tuning.run()
    finals = [row for row in log.read(path) if row["phase"] == "final"]
    assert [row["accepted"] for row in finals] == ["1", "0"]
    assert tuning.result is not None
    assert tuning.result.values["cycle_time"] == engine.values["cycle_time"] < 1.0
