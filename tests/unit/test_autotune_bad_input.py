"""Steps that are no steps, ends that come early, others that meddle: one sentence each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from support.models.simulated_training import SimulatedStep, flat, short_cycle_is_best
from test_autotune_session import SimulatedEngine, is_in_phase, session

from hvdtune.autotune.report import log
from hvdtune.settings import knobs

LESS = {"HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "6"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.csv"


def last(path: Path) -> dict[str, str]:
    return log.read(path)[-1]


def test_steps_without_any_variance(path: Path) -> None:
    class Exact(SimulatedEngine):
        def read_steps(self, timeout_s: float) -> list[SimulatedStep]:
            return [SimulatedStep(20_000_000, epoch=step.epoch) for step in super().read_steps(0)]

    engine = Exact(flat)
    session(engine, path, LESS).run()
    assert last(path)["decision"].startswith("no significant gain (")
    assert last(path)["step_time_stderr_ms"] == "0"


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 0, -20_000_000])
def test_times_that_are_no_times_are_left_out(path: Path, wrong: float) -> None:
    class Odd(SimulatedEngine):
        def read_steps(self, timeout_s: float) -> list[SimulatedStep]:
            steps = super().read_steps(timeout_s)
            return [*steps, SimulatedStep(wrong, epoch=steps[0].epoch)]  # type: ignore[arg-type]

    engine = Odd(short_cycle_is_best)
    session(engine, path, LESS).run()
    rows = log.read(path)
    assert rows[-1]["accepted"] == "1"
    assert all(40 < float(row["step_time_ms"]) < 100 for row in rows)
    assert all(0 <= float(row["seconds"]) < 1e6 for row in rows)


@pytest.mark.parametrize("steps", [0, 1])
def test_a_run_with_hardly_a_step(
    path: Path, steps: int, capfd: pytest.CaptureFixture[str]
) -> None:
    session(SimulatedEngine(flat, steps), path).run()
    row = last(path)
    assert (row["phase"], row["accepted"], row["steps"]) == ("final", "0", str(steps))
    assert "training ended during warmup after 0 samples" in row["decision"]
    assert ("no training step was seen" in row["decision"]) == (steps == 0)
    assert row["decision"] in capfd.readouterr().err


def test_a_setting_that_the_program_changes_stays_as_the_program_wants(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    class Meddling(SimulatedEngine):
        def read_steps(self, timeout_s: float) -> list[SimulatedStep]:
            if self.left == 900:  # in the middle of the search
                self.meddle({"cycle_time": 3.0})
            return super().read_steps(timeout_s)

    engine = Meddling(short_cycle_is_best, 1000)
    session(engine, path).run()
    assert engine.values["cycle_time"] == 3.0
    assert engine.left > 800
    decision = last(path)["decision"]
    assert decision.startswith(
        "kept the current settings: the program has changed settings itself (HOROVOD_"
    )
    assert "→ 3 ms" in decision
    assert last(path)["cycle_time_ms"] == "3"
    told = capfd.readouterr().err
    assert f"{decision}; cost: " in told
    assert told.count("→ 3 ms") == 1


def test_what_was_being_tried_does_not_stay_when_the_program_changes_something_else(
    path: Path,
) -> None:
    class Meddling(SimulatedEngine):
        def read_steps(self, timeout_s: float) -> list[SimulatedStep]:
            if not self.wanted and self.values["fusion_threshold"] != start["fusion_threshold"]:
                self.meddle({"cycle_time": 3.0})
                # Again while tuning gives way; a setting may also be what the tuner was trying.
                self.later = {"chunk_size": self.values["chunk_size"]}
            return super().read_steps(timeout_s)

        def apply(self, values: Mapping[str, float]) -> int:
            if self.wanted and self.later:
                later, self.later = self.later, {}
                self.meddle(later)
                return self.epoch - 1
            return super().apply(values)

    engine = Meddling(flat)
    start = engine.current()
    session(engine, path, LESS).run()
    assert engine.values == {**start, **engine.wanted}
    assert set(engine.wanted) == {"cycle_time", "chunk_size"}
    row = last(path)
    assert (row["phase"], row["epoch"]) == ("final", str(engine.epoch))
    assert float(row["tensor_fusion_threshold"]) * 2**20 == start["fusion_threshold"]


def test_what_was_confirmed_gives_way_to_the_program_too(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    class Meddling(SimulatedEngine):
        def read_steps(self, timeout_s: float) -> list[SimulatedStep]:
            if self.left == 600:  # the defaults have been confirmed by then
                self.meddle({"cycle_time": 3.0})
            return super().read_steps(timeout_s)

    engine = Meddling(short_cycle_is_best, 1000, start={"cycle_time": 25.0})
    session(engine, path).run()
    row = last(path)
    assert (row["accepted"], row["cycle_time_ms"], row["steps"]) == ("0", "3", "0")
    assert row["decision"].startswith("kept the current settings: the program has changed")
    assert row["epoch"] == str(engine.epoch)
    assert "confirm" in {earlier["phase"] for earlier in log.read(path)}
    assert "adopted" not in capfd.readouterr().err


class Overtaken(SimulatedEngine):
    """The program changes settings just when the tuner's `turn`-th change is on its way."""

    turn = 0

    def apply(self, values: Mapping[str, float]) -> int:
        self.turn -= 1
        if self.turn != 0:
            return super().apply(values)
        before = self.epoch
        self.meddle({"cycle_time": 3.0})
        return before


def test_a_change_at_the_same_time_as_the_tuners_is_not_overwritten(path: Path) -> None:
    counting = Overtaken(flat)
    session(counting, path, LESS).run()
    assert "no significant gain" in last(path)["decision"]
    # The first, one in the middle, and the last, which ends the tuning.
    for turn in (1, -counting.turn // 2, -counting.turn):
        engine = Overtaken(flat)
        engine.turn = turn
        session(engine, path, LESS).run()
        assert engine.values["cycle_time"] == 3.0
        row = last(path)
        assert (row["phase"], row["accepted"], row["cycle_time_ms"]) == ("final", "0", "3")
        assert row["decision"].startswith("kept the current settings: the program has changed")


def test_a_change_before_the_first_step_is_not_overwritten_either(path: Path) -> None:
    class ChangedEarly(SimulatedEngine):
        """The program has changed settings when the session has read them, before any step."""

        refusals = 0

        def apply(self, values: Mapping[str, float]) -> int:
            self.refusals += 1
            assert self.refusals < 100
            return self.epoch

    engine = ChangedEarly(flat)
    tuning = session(engine, path, LESS)
    engine.meddle({"cycle_time": 3.0})
    engine._pending = (1, engine.values)
    tuning.run()
    assert engine.refusals == 1
    row = last(path)
    assert (row["phase"], row["accepted"], row["cycle_time_ms"]) == ("final", "0", "3")
    assert row["decision"].startswith("kept the current settings: the program has changed")


def test_an_engine_that_has_changed_settings_before_is_not_meddling(path: Path) -> None:
    engine = SimulatedEngine(flat)
    engine.epoch = 7
    engine._pending = (7, engine.values)
    session(engine, path, LESS).run()
    assert "no significant gain" in last(path)["decision"]


def test_an_engine_that_dies_while_a_trial_is_put_into_force(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    class Dying(SimulatedEngine):
        def apply(self, values: Mapping[str, float]) -> int:
            raise RuntimeError("rank 1 has died")

    engine = Dying(flat)
    session(engine, path).run()
    told = capfd.readouterr().err
    assert "tuning ended: RuntimeError: rank 1 has died" in told
    assert last(path)["phase"] == "final"


@pytest.mark.parametrize(
    ("name", "text", "accepted"),
    [
        ("HOROVOD_AUTOTUNE", "maybe", "1"),
        ("HOROVOD_AUTOTUNE_WARMUP_SAMPLES", "-1", "0 or more"),
        ("HOROVOD_AUTOTUNE_WARMUP_SAMPLES", "2.5", "whole number"),
        ("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "0", "1 or more"),
        ("HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", "0", "1 or more"),
        ("HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", "1.5", "from 0 to 1"),
        ("HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", "nan", "from 0 to 1"),
        ("HVDTUNE_AUTOTUNE_SEED", "-1", "0 or more"),
        ("HVDTUNE_AUTOTUNE_EXPECTED_STEPS", "-5", "0 or more"),
    ],
)
def test_a_setting_out_of_its_range_is_one_sentence(name: str, text: str, accepted: str) -> None:
    with pytest.raises(knobs.KnobError) as caught:
        knobs.from_environ({name: text})
    told = str(caught.value)
    assert name in told
    assert text in told
    assert accepted in told
    assert "\n" not in told.strip()


def test_a_rank_that_is_lost_during_a_comparison(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    class Losing(SimulatedEngine):
        def read_steps(self, timeout_s: float) -> list[SimulatedStep]:
            if is_in_phase(tuning, "confirm"):
                raise self.EngineStopped
            return super().read_steps(timeout_s)

    tuning = session(Losing(short_cycle_is_best), path)
    tuning.run()
    row = last(path)
    assert (row["phase"], row["accepted"]) == ("final", "0")
    assert "training ended during confirm" in row["decision"]
    assert row["decision"] in capfd.readouterr().err
