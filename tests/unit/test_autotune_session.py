"""The session between an engine that is not there and the log."""

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.models.simulated_training import (
    LANDSCAPES,
    Landscape,
    SimulatedStep,
    SimulatedSteps,
    answer,
    flat,
    own_chunk_is_best,
    short_cycle_is_best,
)

from hvdtune.autotune.memory.recall import Found
from hvdtune.autotune.messages import Messenger
from hvdtune.autotune.report import log, words
from hvdtune.autotune.search.question import Answer, Request
from hvdtune.autotune.search.space import Space
from hvdtune.autotune.session.client import ServiceError
from hvdtune.autotune.session.session import Session
from hvdtune.autotune.statistics.harm import harm_limit_steps
from hvdtune.settings import knobs

TUNED = {"HOROVOD_AUTOTUNE": "1"}


class Stopped(Exception):
    pass


class SimulatedEngine:
    """Makes a step whenever steps are read; a change shows one step late, as in the real one."""

    EngineStopped = Stopped

    def __init__(
        self,
        landscape: Landscape,
        steps: int = 100_000,
        start: dict[str, float] | None = None,
        noise: float = 0.02,
    ) -> None:
        defaults = {key: knobs.KNOBS[key].default for key in ("fusion_threshold", "cycle_time")}
        self.values = {**defaults, "chunk_size": 0, **(start or {})}
        self.epoch = 0
        self.applied: list[dict[str, float]] = []
        self.wanted: dict[str, float] = {}  # by the program
        self.left = steps
        self._pending = (0, self.values)
        self._is_meddled = False  # since the last `apply`
        self._steps = SimulatedSteps(landscape, noise=noise)

    def read_steps(self, timeout_s: float) -> list[SimulatedStep]:
        if self.left == 0:
            raise Stopped
        self.left -= 1
        epoch, values = self._pending
        self._pending = (self.epoch, self.values)
        return [self._steps.step(values, epoch)]

    def apply(self, values: Mapping[str, float]) -> int:
        if self._is_meddled:
            self._is_meddled = False
            return self.epoch - 1
        return self._change(values)

    def _change(self, values: Mapping[str, float]) -> int:
        self.epoch += 1
        self.values = dict(values)
        self.applied.append(self.values)
        return self.epoch

    def meddle(self, values: Mapping[str, float]) -> None:
        """The program changes settings itself."""
        self.wanted.update(values)
        self._change({**self.values, **values})
        self._is_meddled = True

    def asked(self) -> dict[str, float]:
        return dict(self.wanted)

    def current(self) -> dict[str, float]:
        return dict(self.values)

    def peek(self) -> dict[str, float]:
        return dict(self.values)


class DirectOptimiser:
    """Answers from this process, a few polls late."""

    computing_ms = 1.0
    started_s: float | None = 1.0

    def __init__(self, space: Space) -> None:
        self.space = space
        self.closed = False
        self._request: Request | None = None
        self._polls = 0

    def ask(self, request: Request) -> None:
        self._request, self._polls = request, 0

    def poll(self) -> Answer | None:
        self._polls += 1
        if self._request is None or self._polls < 30:
            return None
        request, self._request = self._request, None
        return answer(request)

    def close(self) -> None:
        self.closed = True


class BrokenOptimiser(DirectOptimiser):
    def poll(self) -> Answer | None:
        if self._request is not None:
            raise ServiceError("the optimiser ended with exit status 1")
        return None


def session(
    engine: SimulatedEngine,
    path: Path,
    environ: Mapping[str, str] | None = None,
    optimiser: type[DirectOptimiser] = DirectOptimiser,
    size: int = 2,
) -> Session:
    settings = knobs.from_environ({"HOROVOD_AUTOTUNE": "1", **(environ or {})})
    messenger = Messenger(settings.log_level, hide_time=True)
    writer = log.LogWriter(str(path), messenger.warn)
    return Session(engine, settings, size, messenger, writer, optimiser)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.csv"


def test_a_gain_is_adopted_applied_logged_and_told(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    engine = SimulatedEngine(short_cycle_is_best)
    session(engine, path).run()
    rows = log.read(path)
    assert rows[0]["phase"] == "warmup"
    assert (rows[0]["cycle_time_ms"], rows[0]["tensor_fusion_threshold"]) == ("1", "128")
    assert {row["phase"] for row in rows} == set(log.PHASES) - {"verify"}
    last = rows[-1]
    assert (last["phase"], last["accepted"]) == ("final", "1")
    assert float(last["cycle_time_ms"]) == pytest.approx(engine.values["cycle_time"], rel=1e-4)
    assert engine.values["cycle_time"] < 0.4
    assert last["decision"].startswith("adopted: ")
    assert float(last["score"]) > float(rows[0]["score"])
    output = capfd.readouterr()
    assert output.out == ""
    assert output.err.startswith("hvdtune autotune: adopted: ")
    assert f"HOROVOD_CYCLE_TIME={engine.values['cycle_time']}" in output.err
    assert "optimiser 0.0 s in its own process" in output.err


@pytest.mark.parametrize("name", LANDSCAPES)
def test_what_the_log_says_is_what_is_in_force(name: str, path: Path) -> None:
    engine = SimulatedEngine(LANDSCAPES[name])
    session(engine, path, {"HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "8"}).run()
    last = log.read(path)[-1]
    assert last["phase"] == "final"
    assert float(last["cycle_time_ms"]) == pytest.approx(engine.values["cycle_time"], rel=1e-4)
    megabytes = engine.values["fusion_threshold"] / 2**20
    assert float(last["tensor_fusion_threshold"]) == pytest.approx(megabytes, rel=1e-4)
    assert float(last["chunk_size_kb"]) == pytest.approx(engine.values["chunk_size"] / 1024)
    assert engine.left > 0


class LateEngine(SimulatedEngine):
    """One in which batches go by NCCL from the second step on."""

    def read_steps(self, timeout_s: float) -> list[SimulatedStep]:
        if self.left < 100_000:
            self.values = {"num_nccl_streams": 1, **self.values}
        return super().read_steps(timeout_s)


def test_what_can_act_only_by_and_by_is_searched_too(path: Path) -> None:
    engine = LateEngine(lambda values: 1.0 if values.get("num_nccl_streams", 1) == 1 else 0.8)
    session(engine, path).run()
    rows = log.read(path)
    assert [row["sample"] for row in rows] == [str(1 + at) for at in range(len(rows))]
    assert len({row["num_nccl_streams"] for row in rows}) > 1
    assert rows[-1]["accepted"] == "1"
    assert engine.values["num_nccl_streams"] > 1


def test_what_can_act_by_and_by_and_is_fixed_stays(path: Path) -> None:
    engine = LateEngine(lambda values: 1.0 if values.get("num_nccl_streams", 1) == 1 else 0.8)
    session(engine, path, {"HOROVOD_NUM_NCCL_STREAMS": "1"}).run()
    assert {row["num_nccl_streams"] for row in log.read(path)} == {"1"}


def test_a_change_of_the_program_before_that_is_given_way_to(path: Path) -> None:
    class Meddling(LateEngine):
        def read_steps(self, timeout_s: float) -> list[SimulatedStep]:
            if self.left == 99_990:
                self.meddle({"cycle_time": 7.0})
            return super().read_steps(timeout_s)

    engine = Meddling(flat)
    session(engine, path).run()
    assert engine.values["cycle_time"] == 7.0
    assert "the program has changed settings itself" in log.read(path)[-1]["decision"]


def test_no_gain_leaves_everything_as_it_was(path: Path) -> None:
    engine = SimulatedEngine(flat, start={"cycle_time": 3.0})
    session(engine, path).run()
    assert engine.values == {"fusion_threshold": 2**27, "cycle_time": 3.0, "chunk_size": 0}
    last = log.read(path)[-1]
    assert (last["accepted"], last["cycle_time_ms"]) == ("0", "3")
    assert "no significant gain" in last["decision"]


def test_a_fixed_setting_is_never_moved(path: Path) -> None:
    engine = SimulatedEngine(short_cycle_is_best, start={"cycle_time": 2.5})
    session(engine, path, {"HOROVOD_CYCLE_TIME": "2.5"}).run()
    assert {row["cycle_time_ms"] for row in log.read(path)} == {"2.5"}
    assert len({values["fusion_threshold"] for values in engine.applied}) > 3
    assert {values["cycle_time"] for values in engine.applied} == {2.5}


def test_nothing_to_tune_is_said_at_once(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fixed = {
        "HOROVOD_CYCLE_TIME": "1", "HOROVOD_FUSION_THRESHOLD": "0", "HVDTUNE_CHUNK_SIZE": "0",
    }  # fmt: skip
    engine = SimulatedEngine(flat, steps=0)
    session(engine, path, fixed).run()
    assert log.read(path)[-1]["decision"] == (
        "kept the current settings: every tunable setting is fixed"
    )
    assert engine.applied == []
    assert "every tunable setting is fixed" in capfd.readouterr().err


def test_one_rank_has_nothing_to_tune(path: Path) -> None:
    session(SimulatedEngine(flat, steps=0), path, size=1).run()
    assert "there is one rank" in log.read(path)[-1]["decision"]


@pytest.mark.parametrize(("steps", "phase"), [(5, "warmup"), (38, "baseline"), (60, "search")])
def test_training_that_ends_early(
    steps: int, phase: str, path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    engine = SimulatedEngine(short_cycle_is_best, steps)
    session(engine, path).run()
    last = log.read(path)[-1]
    assert (last["phase"], last["accepted"]) == ("final", "0")
    assert f"tuning was not finished: training ended during {phase}" in last["decision"]
    cycle = words.value_words("cycle_time", engine.values["cycle_time"])
    assert "these settings were in force: HOROVOD_FUSION_THRESHOLD " in last["decision"]
    assert f"HOROVOD_CYCLE_TIME {cycle}, " in last["decision"]
    assert float(last["cycle_time_ms"]) == pytest.approx(engine.values["cycle_time"], rel=1e-4)
    told = capfd.readouterr().err
    assert told.count("\n") == 1
    assert f"{last['decision']}; cost: {steps} steps, " in told


def test_being_stopped_ends_soon(path: Path) -> None:
    endless = session(SimulatedEngine(flat, steps=-1), path)
    thread = threading.Thread(target=endless.run)
    thread.start()
    endless.stop_soon()
    thread.join(60)
    assert not thread.is_alive()
    assert "training ended during " in log.read(path)[-1]["decision"]


def test_what_was_confirmed_is_kept_when_training_ends(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # The defaults are faster by far than this start, so they are confirmed before the search goes
    # on, which takes some 1000 steps.
    engine = SimulatedEngine(short_cycle_is_best, 400, start={"cycle_time": 25.0})
    tuning = session(engine, path)
    tuning.run()
    last = log.read(path)[-1]
    assert (last["phase"], last["accepted"], last["cycle_time_ms"]) == ("final", "1", "1")
    assert last["decision"].startswith("adopted: ")
    assert "tuning was not finished: training ended during search" in last["decision"]
    told = capfd.readouterr().err
    # What has changed stands with the verdict, not with where tuning had come to.
    assert "confidence: HOROVOD_CYCLE_TIME 25 ms → 1 ms; tuning was not finished: " in told
    assert "; cost: 400 steps, " in told
    assert "to pin it: " in told
    assert tuning.unfinished


def test_a_broken_optimiser_ends_tuning_and_keeps_the_settings(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    engine = SimulatedEngine(short_cycle_is_best)
    tuning = session(engine, path, optimiser=BrokenOptimiser)
    tuning.run()
    assert tuning.unfinished  # `hvdtune tune` ends with 1
    assert engine.values["cycle_time"] == 1.0
    last = log.read(path)[-1]
    assert last["decision"] == ("kept the current settings: the optimiser ended with exit status 1")
    error = capfd.readouterr().err
    assert error.count("tuning ended: the optimiser ended with exit status 1") == 1


def is_in_phase(tuning: Session, phase: str) -> bool:
    return tuning._tuner.trial is not None and tuning._tuner.trial.phase == phase


def test_an_optimiser_that_dies_when_the_search_is_over_costs_no_comparison(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    class Dying(DirectOptimiser):
        def poll(self) -> Answer | None:
            if is_in_phase(tuning, "confirm"):
                raise ServiceError("the optimiser was ended by SIGKILL")
            return super().poll()

    def found(values: Mapping[str, float]) -> float:
        return 0.97 if values != first and is_in_phase(tuning, "search") else 1.0

    engine = SimulatedEngine(found)
    first = engine.current()
    tuning = session(engine, path, {}, Dying)
    tuning.run()
    last = log.read(path)[-1]
    assert last["decision"].startswith("no significant gain (")
    assert "pairs at 99 % confidence" in last["decision"]
    assert not tuning.unfinished
    told = capfd.readouterr().err
    assert told.count("the optimiser was ended by SIGKILL; no further candidates are measured") == 1
    assert "tuning ended" not in told
    assert engine.values == first


def test_settings_that_had_to_be_verified_without_an_optimiser_are_so(path: Path) -> None:
    """And where they are refuted there is no search, as nobody can propose anything."""

    class Dying(DirectOptimiser):
        def poll(self) -> Answer | None:
            if is_in_phase(tuning, "verify"):
                raise ServiceError("the optimiser was ended by SIGKILL")
            return super().poll()

    for landscape, adopted in ((short_cycle_is_best, "1"), (flat, "0")):
        engine = SimulatedEngine(landscape, noise=1e-5)
        tuning = session(engine, path, {}, Dying)
        tuning._before = Found({**engine.current(), "cycle_time": 0.2}, "an earlier run", None)
        tuning.run()
        rows = log.read(path)
        assert {row["phase"] for row in rows} == {"warmup", "baseline", "verify", "final"}
        assert rows[-1]["accepted"] == adopted
        assert not tuning.unfinished


@pytest.mark.parametrize("at", [0, 3_000])
def test_an_optimiser_that_gets_no_cpu_does_not_keep_the_comparison_from_its_end(
    path: Path, capfd: pytest.CaptureFixture[str], at: int
) -> None:
    class SilentOptimiser(DirectOptimiser):
        def poll(self) -> Answer | None:
            if is_in_phase(tuning, "confirm"):
                raise ServiceError("the optimiser did not answer within 120 s")
            return None

    class Hurried(SimulatedEngine):
        def read_steps(self, timeout_s: float) -> list[SimulatedStep]:
            if self.left == 10_000 - at:  # before the first step, or while it is waited for
                tuning.end_search_soon("the time for searching was over")
            return super().read_steps(timeout_s)

    engine = Hurried(short_cycle_is_best, 10_000, start={"cycle_time": 2.0})
    tuning = session(engine, path, {}, SilentOptimiser)
    tuning.run()
    rows = log.read(path)
    assert rows[-1]["phase"] == "final"
    assert not tuning.unfinished
    told = capfd.readouterr().err
    assert "did not answer" not in told  # nobody asks it any more
    assert "optimiser 0.0 s in its own process" in told
    if at:
        assert rows[-1]["accepted"] == "1"
        assert float(rows[-1]["cycle_time_ms"]) < 2.0
        assert engine.left < 10_000 - at
    else:
        assert "the time for searching was over" in rows[-1]["decision"]


def test_an_engine_that_refuses_does_not_disturb(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    class Refusing(SimulatedEngine):
        def apply(self, values: Mapping[str, float]) -> int:
            raise RuntimeError("no")

    optimisers: list[DirectOptimiser] = []

    def remember(space: Space) -> DirectOptimiser:
        optimisers.append(DirectOptimiser(space))
        return optimisers[-1]

    tuning = session(Refusing(flat), path)
    tuning._start_optimiser = remember
    tuning.run()
    assert "tuning ended: RuntimeError: no" in capfd.readouterr().err
    assert optimisers[0].closed


def test_the_folder_of_the_log_is_made(tmp_path: Path) -> None:
    session(SimulatedEngine(flat), tmp_path / "missing" / "too" / "log.csv").run()
    assert (tmp_path / "missing" / "too" / "log.csv").read_text().count("\n") > 1


@pytest.mark.parametrize("place", ["/dev/null/log.csv", ".", "/dev/full"])
def test_an_unwritable_log_does_not_disturb(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], place: str
) -> None:
    engine = SimulatedEngine(short_cycle_is_best)
    session(engine, tmp_path / place).run()
    assert engine.values["cycle_time"] < 0.4
    assert capfd.readouterr().err.count("cannot be written") == 1


def test_messages_at_level_info(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    session(SimulatedEngine(flat), path, {"HOROVOD_LOG_LEVEL": "info"}).run()
    lines = capfd.readouterr().out.splitlines()
    texts = [line.split("]: ", 1)[1] for line in lines]
    assert lines[0].startswith("[I session.py:")
    assert texts[0].startswith("Autotuner: Tunable params [hierarchical_allreduce,")
    assert texts[1:4] == [f"Autotuner: Warming up ({left} remaining)" for left in (2, 1, 0)]
    assert texts[4].startswith("Autotuner: [0, 0, 0, 1, 1 ms, 128 mb] ")
    assert texts[-1].startswith("Autotuner: Best params [0, 0, 0, 1, 1 ms, 128 mb] ")


def test_the_time_of_a_message_has_horovods_form(capfd: pytest.CaptureFixture[str]) -> None:
    Messenger("WARNING", hide_time=False).warn("text")
    Messenger("ERROR", hide_time=False).warn("not shown")
    output = capfd.readouterr()
    assert output.out == ""
    line = output.err
    assert line[0] == "["
    assert line[20] == "."
    assert line[27:].startswith(": W test_autotune_session.py:")
    assert line.endswith("] [0]: text\n")


def test_one_limit_of_harm_for_all_searches_of_a_run(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    engine = SimulatedEngine(default_is_bad_to_leave)
    tuning = session(engine, path, {"HVDTUNE_AUTOTUNE_HARM_LIMIT": "40"})
    tuning.run()
    assert 0 < tuning.harm_steps < 60
    # The next one in this process may only spend what is left.
    spent = Session(
        SimulatedEngine(default_is_bad_to_leave), knobs.from_environ(TUNED), 2,
        Messenger("WARNING", hide_time=True), None, DirectOptimiser, harm_steps=199.0,
    )  # fmt: skip
    spent.run()
    assert "have used up what they may cost in a run" in capfd.readouterr().err
    assert spent.harm_steps == 199.0


def default_is_bad_to_leave(values: Mapping[str, float]) -> float:
    return 1.0 if values["cycle_time"] == 1.0 else 1.5


def test_steps_that_settle_count_as_harm(path: Path) -> None:
    """A change whose first two steps take long, and nothing else, costs what they take."""

    class Unsettled(SimulatedEngine):
        since = 10

        def read_steps(self, timeout_s: float) -> list[SimulatedStep]:
            [step] = super().read_steps(timeout_s)
            self.since = self.since + 1 if step.epoch == self.seen else 1
            self.seen = step.epoch
            factor = 3 if self.is_of_candidate(step.epoch) and self.since <= 2 else 1
            return [SimulatedStep(factor * step.duration_ns, epoch=step.epoch)]

        seen = 0

        def is_of_candidate(self, epoch: int) -> bool:
            return epoch > 0 and self.applied[epoch - 1] != first

    engine = Unsettled(flat)
    first = engine.current()
    tuning = session(engine, path, {"HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "4"})
    tuning.run()
    changes = sum(engine.is_of_candidate(epoch + 1) for epoch in range(len(engine.applied)))
    # Two steps, each of which took two steps' time more.
    assert changes > 4
    assert tuning.harm_steps == pytest.approx(4 * changes, rel=0.3)


@pytest.mark.parametrize(
    ("environ", "limit"),
    [
        ({}, 200),
        ({"HVDTUNE_AUTOTUNE_HARM_LIMIT": "50"}, 50),
        ({"HVDTUNE_AUTOTUNE_EXPECTED_STEPS": "5000"}, 50),
        ({"HVDTUNE_AUTOTUNE_EXPECTED_STEPS": "5000", "HVDTUNE_AUTOTUNE_HARM_LIMIT": "2%"}, 100),
        ({"HVDTUNE_AUTOTUNE_EXPECTED_STEPS": "5000", "HVDTUNE_AUTOTUNE_HARM_LIMIT": "30"}, 30),
    ],
)
def test_the_limit_of_harm_in_steps_or_as_a_share(environ: dict[str, str], limit: float) -> None:
    assert harm_limit_steps(knobs.from_environ({**TUNED, **environ})) == pytest.approx(limit)


def test_a_share_of_an_unknown_number_of_steps_is_refused() -> None:
    settings = knobs.from_environ({**TUNED, "HVDTUNE_AUTOTUNE_HARM_LIMIT": "1%"})
    with pytest.raises(knobs.KnobError, match="give HVDTUNE_AUTOTUNE_EXPECTED_STEPS"):
        knobs.check_together(settings.as_dict())
    for wrong in ("0%", "101%", "-1%", "nan%", "1_0%", "x", "0"):
        with pytest.raises(knobs.KnobError, match="a share of the run such as 1%"):
            knobs.from_environ({"HVDTUNE_AUTOTUNE_HARM_LIMIT": wrong})


def test_a_new_start_in_this_process_verifies_what_was_adopted(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first = session(SimulatedEngine(short_cycle_is_best), path)
    first.run()
    found = first.result
    assert found is not None
    again = Session(
        SimulatedEngine(short_cycle_is_best), knobs.from_environ(TUNED), 2,
        Messenger("WARNING", hide_time=True), log.LogWriter(str(path), print), DirectOptimiser,
        before=found, harm_steps=first.harm_steps,
    )  # fmt: skip
    again.run()
    assert {row["phase"] for row in log.read(path)} == {"warmup", "baseline", "verify", "final"}
    assert "with the settings remembered from an earlier start in this process" in (
        capfd.readouterr().err
    )
    # What an unfinished one leaves is what it began with.
    stopped = session(SimulatedEngine(flat, 20), path)
    stopped.run()
    assert stopped.result is None


def test_what_was_in_force_on_another_rank_includes_settings_that_are_fixed(path: Path) -> None:
    engine = SimulatedEngine(own_chunk_is_best)
    in_force = Found({**engine.current(), "chunk_size": 256 << 10}, "the job's last generation")
    Session(
        engine, knobs.from_environ({**TUNED, "HOROVOD_CYCLE_TIME": "1"}), 2,
        Messenger("WARNING", hide_time=True), log.LogWriter(str(path), print), DirectOptimiser,
        before=in_force,
    ).run()  # fmt: skip
    assert "verify" in {row["phase"] for row in log.read(path)}


@pytest.mark.parametrize("signalled", [KeyboardInterrupt, SystemExit])
def test_what_was_confirmed_is_kept_when_tuning_is_interrupted(
    path: Path, capfd: pytest.CaptureFixture[str], signalled: type[BaseException]
) -> None:
    class Interrupted(SimulatedEngine):
        def read_steps(self, timeout_s: float) -> list[SimulatedStep]:
            if self.left == 600:  # the defaults have been confirmed by then
                raise signalled
            return super().read_steps(timeout_s)

    tuning = session(Interrupted(short_cycle_is_best, 1000, start={"cycle_time": 25.0}), path)
    with pytest.raises(signalled):
        tuning.run()
    last = log.read(path)[-1]
    assert (last["phase"], last["accepted"], last["cycle_time_ms"]) == ("final", "1", "1")
    assert "tuning was not finished: it was interrupted during " in last["decision"]
    assert "to pin it: " in capfd.readouterr().err
