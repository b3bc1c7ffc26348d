"""Tuning of real jobs, started as users start them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from rank_programs import tuned
from support.jobs.ranks import RanksResult, hvdtune_command, run_ranks, run_under
from support.tiers import EVERY

from hvdtune.autotune.memory.store import Store
from hvdtune.autotune.report import log
from hvdtune.autotune.report.runs import SETTINGS
from hvdtune.autotune.search.tuner import CANDIDATES

MIB = 2**20
ENDLESS = 10**9
MAX_SAMPLES = 6
FLAGS = (
    *("--autotune-warmup-samples", "1"),
    *("--autotune-steps-per-sample", "3"),
    *("--autotune-bayes-opt-max-samples", str(MAX_SAMPLES)),
)


def launcher_of(path: Path, *flags: str, ranks: int = 2) -> list[str]:
    files = ("--autotune-log-file", str(path))
    path.write_text("")  # whoever reads it may be earlier than whoever writes it
    return hvdtune_command("run", "-np", str(ranks), "--autotune", *files, *FLAGS, *flags)


def tuned_run(
    path: Path,
    *flags: str,
    env: dict[str, str] | None = None,
    sizes: tuple[int, ...] = tuned.SIZES,
) -> RanksResult:
    launcher = launcher_of(path, *flags)
    return run_under(launcher, tuned.train, str(path), ENDLESS, 0, sizes, env=env)


def check_end(result: RanksResult, rows: list[dict[str, str]]) -> None:
    """The last row is what every rank has in force, and the sums were right throughout."""
    last = rows[-1]
    assert last["phase"] == "final"
    for value in result.values:
        assert value["sums"] == {3.0}
    check_in_force(result, last)


def check_in_force(result: RanksResult, last: dict[str, str]) -> None:
    for value in result.values:
        in_force = value["in_force"]
        assert float(last["cycle_time_ms"]) == pytest.approx(in_force["cycle_time"], rel=1e-4)
        fusion = in_force["fusion_threshold"] / MIB
        assert float(last["tensor_fusion_threshold"]) == pytest.approx(fusion, rel=1e-4)
        assert float(last["chunk_size_kb"]) == pytest.approx(in_force["chunk_size"] / 1024)


BAD_START = ("--autotune-start", "fusion_threshold_mb=0,cycle_time_ms=2")


@pytest.mark.long
def test_from_the_starting_point_to_the_settings_in_force(tmp_path: Path) -> None:
    """Without fusion a step takes several times as long: that is beyond all noise (`compute`)."""
    path = tmp_path / "log.csv"
    store = tmp_path / "store.json"
    flags = (*BAD_START, "--autotune-store", str(store))
    result = tuned_run(path, *flags, sizes=tuned.MANY)
    rows = log.read(path)
    assert tuple(rows[0]) == log.COLUMNS
    first, last = rows[0], rows[-1]
    assert (first["phase"], first["cycle_time_ms"], first["tensor_fusion_threshold"]) == (
        "warmup", "2", "0",
    )  # fmt: skip
    assert [row["phase"] for row in rows[:3]] == ["warmup", "baseline", "search"]
    candidates = [
        row for row in rows if row["phase"] == "search" and row["decision"] != "incumbent"
    ]
    # Some are visited again in another round.
    most = math.ceil(CANDIDATES * MAX_SAMPLES)
    tried = {tuple(row[name] for name in SETTINGS) for row in candidates}
    assert 2 <= len(tried) <= most, last["decision"]
    assert all(float(row["score"]) > 0 for row in rows)
    check_end(result, rows)
    assert last["accepted"] == "1", last["decision"]
    assert float(last["tensor_fusion_threshold"]) > 0, "a starting point is not fixed"
    told = result[0].stderr
    assert f"hvdtune autotune: {last['decision']}" in told
    [(key, profile)] = Store(store).read().items()
    assert f"remembered as {key} in {store}" in told
    assert profile.verdict == last["decision"]
    # What the first run found spares the second one the search.
    again = tuned_run(path, *flags, sizes=tuned.MANY)
    rows = log.read(path)
    check_end(again, rows)
    assert list(dict.fromkeys(row["phase"] for row in rows)) == [
        "warmup", "baseline", "verify", "final",
    ]  # fmt: skip
    assert rows[-1]["accepted"] == "1", rows[-1]["decision"]
    assert "with the settings remembered from " in again[0].stderr


@pytest.mark.long
def test_a_fixed_setting_is_never_moved(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    # So many samples that more than one round proposes thresholds, however few survive the first.
    samples = ("--autotune-bayes-opt-max-samples", str(3 * MAX_SAMPLES))
    result = tuned_run(path, *samples, env={"HOROVOD_CYCLE_TIME": "1.25"})
    rows = log.read(path)
    assert {row["cycle_time_ms"] for row in rows} == {"1.25"}
    assert len({row["tensor_fusion_threshold"] for row in rows}) > 2
    check_end(result, rows)


@pytest.mark.long
def test_training_that_ends_first(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    env = {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": str(path)}
    result = run_ranks(2, tuned.train, str(path), 25, env=env)
    rows = log.read(path)
    check_end(result, rows)
    assert "tuning was not finished: training ended during warmup" in rows[-1]["decision"]
    assert "tuning was not finished" in result[0].stderr
    assert result[1].stderr == ""


@pytest.mark.long
def test_a_second_init_continues_the_log(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    env = {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": str(path)}
    run_ranks(2, tuned.train, str(path), 25, 1, env=env)
    phases = [row["phase"] for row in log.read(path)]
    assert phases.count("final") == 2
    assert phases[-1] == "final"


def test_a_rank_that_dies_during_a_trial(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("")
    store = tmp_path / "store.json"
    env = {
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_LOG": str(path),
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "0",
        "HVDTUNE_AUTOTUNE_STORE": str(store),
    }
    result = run_ranks(2, tuned.train_until_a_rank_dies, str(path), env=env, check=False)
    # The training learns of it as ever, and the tuner says in one sentence how far it came.
    assert "rank 1" in result.values[0]
    assert result[0].returncode == 0
    last = log.read(path)[-1]
    assert (last["phase"], last["accepted"]) == ("final", "0")
    assert "training ended during search" in last["decision"]
    told = [line for line in result[0].stderr.splitlines() if "autotune" in line.lower()]
    assert [line.partition("; cost: ")[0] for line in told] == [
        f"hvdtune autotune: {last['decision']}"
    ]
    assert not store.exists()


def test_a_setting_that_the_program_changes_while_it_is_tuned(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    wanted = {"cycle_time": 3.0, "fusion_threshold": 5 * MIB}
    result = run_under(launcher_of(path), tuned.train_and_change, str(path), wanted)
    last = log.read(path)[-1]
    assert (last["phase"], last["accepted"], last["cycle_time_ms"]) == ("final", "0", "3")
    assert last["decision"].startswith("kept the current settings: the program has changed ")
    assert "→ 3 ms" in last["decision"]
    told = [line for line in result[0].stderr.splitlines() if "autotune" in line]
    assert len(told) == 1
    assert last["decision"] in told[0]
    # What the program wants is in force on every rank, and stays.
    for in_force in result.values:
        assert {key: in_force[key] for key in wanted} == wanted


@pytest.mark.long
def test_a_job_of_process_sets_has_no_steps_to_tune(tmp_path: Path) -> None:
    result = run_ranks(3, tuned.train_in_a_set, 50, env={"HOROVOD_AUTOTUNE": "1"})
    assert result.values == ("done",) * 3
    assert "no training step was seen: a step ends when a tensor of the global" in result[0].stderr


@pytest.mark.long
def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("")
    unwritable = path / "log.csv"
    env = {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": str(unwritable)}
    result = run_ranks(2, tuned.train, str(path), 25, env=env)
    assert result[0].stderr.count("cannot be written (Not a directory)") == 1
    assert [value["sums"] for value in result.values] == [{3.0}, {3.0}]


def step_bytes(row: dict[str, str]) -> float:
    """The score is bytes of a step over its time."""
    return float(row["score"]) * 1e6 * float(row["step_time_ms"]) / 1e3


@pytest.mark.long
@pytest.mark.parametrize("sizes", [(1000,) * 12, (1000, 300, 1000, 300, 1000, 300, 1000, 300, 50)])
def test_steps_of_tensors_without_names(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    path = tmp_path / "log.csv"
    result = run_under(launcher_of(path), tuned.train_without_names, str(path), sizes)
    *rows, last = log.read(path)
    assert last["phase"] == "final"
    assert [step_bytes(row) for row in rows] == pytest.approx(
        [4 * sum(sizes)] * len(rows), rel=1e-4
    )
    assert {int(value) > 0 for value in result.values} == {True}


@pytest.mark.long
def test_beside_a_process_set(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    launcher = launcher_of(path, *BAD_START, ranks=3)
    result = run_under(launcher, tuned.train_beside_a_set, str(path))
    last = log.read(path)[-1]
    assert (last["phase"], last["accepted"]) == ("final", "1"), last["decision"]
    check_in_force(result, last)
    assert [value["sums"] for value in result.values] == [{3.0}, {3.0}, {3.0}]


@pytest.mark.long
def test_ranks_that_join(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    result = run_under(launcher_of(path, *BAD_START), tuned.train_unevenly, str(path), 5)
    last = log.read(path)[-1]
    assert (last["phase"], last["accepted"]) == ("final", "1"), last["decision"]
    check_in_force(result, last)
    first, second = result.values
    assert first["alone"] == 10 * first["rounds"]
    assert second["alone"] == 0


@pytest.mark.long
def test_nothing_is_left_of_a_tuner_that_has_finished(tmp_path: Path) -> None:
    """The job is as one that was never tuned: threads, files, processes, the way of its tensors."""
    path = tmp_path / "log.csv"
    tuned_job = run_under(launcher_of(path), tuned.what_is_left, str(path))
    other = run_under(hvdtune_command("run", "-np", "2"), tuned.what_is_left, "")
    for after, never in zip(tuned_job.values, other.values, strict=True):
        assert after["children"] == never["children"] == []
        assert after["threads"] == never["threads"]
        assert after["open files"] == never["open files"]
    # While it tunes, every tensor goes by way of the coordinator, which finds the steps.
    while_tuning, afterwards = tuned_job.values[0]["by_coordinator"]
    assert while_tuning >= tuned.BLOCKING > afterwards
    assert other.values[0]["by_coordinator"][1] < tuned.BLOCKING


@pytest.fixture
def torch_programs() -> Any:
    pytest.importorskip("torch")
    from rank_programs import tuned_torch

    return tuned_torch


@pytest.mark.long
def test_torch_with_everything(tmp_path: Path, torch_programs: Any) -> None:
    """Accumulation, two optimizers, evaluation and checkpoints: only training steps count."""
    path = tmp_path / "log.csv"
    launcher = launcher_of(path, *BAD_START)
    result = run_under(launcher, torch_programs.with_everything, str(path))
    rows = log.read(path)
    assert rows[-1]["phase"] == "final"
    check_in_force(result, rows[-1])
    assert result.values[0]["sums"] == result.values[1]["sums"]
    main, second = (8 * 8 + 8) * 4 * torch_programs.LAYERS, (8 * 8 + 8) * 4 * 2
    evaluation = 4 * 20  # scalars, which come between two steps
    for row in rows[:-1]:
        assert main - 1 < step_bytes(row) / (1 + 1e-5) < main + second + evaluation + 1


@pytest.mark.long
def test_an_elastic_reset_goes_on_with_what_was_found(tmp_path: Path, torch_programs: Any) -> None:
    path = tmp_path / "log.csv"
    launcher = launcher_of(path, *BAD_START, "--overlap", "on")
    result = run_under(launcher, torch_programs.elastically, str(path))
    rows = log.read(path)
    finals = [at for at, row in enumerate(rows) if row["phase"] == "final"]
    assert rows[finals[0]]["accepted"] == "1", rows[finals[0]]["decision"]
    assert len(finals) == 2
    second = rows[finals[0] + 1 :]
    assert second[0]["tensor_fusion_threshold"] == "0", "the new engine begins as the first one"
    # Nothing is searched before what was adopted has been compared again.
    assert [row["phase"] for row in second[:3]] == ["warmup", "baseline", "verify"]
    adopted, verified = rows[finals[0]], [row for row in second if row["phase"] == "verify"]
    assert any(all(row[name] == adopted[name] for name in SETTINGS) for row in verified)
    check_in_force(result, rows[-1])
    assert [value["rounds"] for value in result.values] == [2, 2]


@pytest.mark.long
@pytest.mark.skipif(not EVERY, reason="the optimizer is the same: HVDTUNE_TEST_LONG=1")
def test_lightning(tmp_path: Path, torch_programs: Any) -> None:
    pytest.importorskip("lightning")
    path = tmp_path / "log.csv"
    result = run_under(launcher_of(path, *BAD_START), torch_programs.lightning, str(path))
    last = log.read(path)[-1]
    assert last["phase"] == "final"
    check_in_force(result, last)
