"""Tuning of real jobs, started as users start them."""

from __future__ import annotations

from pathlib import Path

import pytest
from rank_programs import tuned
from ranks import RanksResult, hvdtune_command, run_ranks, run_under

from hvdtune.autotune import log
from hvdtune.autotune.runs import SETTINGS
from hvdtune.autotune.store import Store

MIB = 2**20
ENDLESS = 10**9
FLAGS = (
    *("--autotune-warmup-samples", "1"),
    *("--autotune-steps-per-sample", "3"),
    *("--autotune-bayes-opt-max-samples", "6"),
)


def tuned_run(path: Path, *flags: str, env: dict[str, str] | None = None) -> RanksResult:
    launcher = hvdtune_command(
        *("run", "-np", "2", "--autotune", "--autotune-log-file", str(path)), *FLAGS, *flags
    )
    return run_under(launcher, tuned.train, str(path), ENDLESS, env=env)


def check_end(result: RanksResult, rows: list[dict[str, str]]) -> None:
    """The last row is what every rank has in force, and the sums were right throughout."""
    last = rows[-1]
    assert last["phase"] == "final"
    for value in result.values:
        assert value["sums"] == {3.0}
        in_force = value["in_force"]
        assert float(last["cycle_time_ms"]) == pytest.approx(in_force["cycle_time"], rel=1e-4)
        fusion = in_force["fusion_threshold"] / MIB
        assert float(last["tensor_fusion_threshold"]) == pytest.approx(fusion, rel=1e-4)
        assert float(last["chunk_size_kb"]) == pytest.approx(in_force["chunk_size"] / 1024)


def test_from_the_starting_point_to_the_settings_in_force(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    store = tmp_path / "store.json"
    flags = ("--autotune-start", "cycle_time_ms=2", "--autotune-store", str(store))
    result = tuned_run(path, *flags)
    rows = log.read(path)
    assert tuple(rows[0]) == log.COLUMNS
    first = rows[0]
    assert (first["phase"], first["cycle_time_ms"], first["tensor_fusion_threshold"]) == (
        "warmup", "2", "128",
    )  # fmt: skip
    assert len({row["cycle_time_ms"] for row in rows}) > 2, "a starting point is not fixed"
    assert [row["phase"] for row in rows[:3]] == ["warmup", "baseline", "search"]
    candidates = [
        row for row in rows if row["phase"] == "search" and row["decision"] != "incumbent"
    ]
    # Some are measured again.
    assert 2 <= len({tuple(row[name] for name in SETTINGS) for row in candidates}) <= 6
    assert all(float(row["score"]) > 0 for row in rows)
    check_end(result, rows)
    assert "hvdtune autotune: " in result[0].stderr
    assert rows[-1]["decision"] in result[0].stderr
    if "remembered" not in result[0].stderr:
        # So rough was the machine that nothing is certain.
        assert rows[-1]["accepted"] == "0"
        assert not store.exists()
        return
    [(key, profile)] = Store(store).read().items()
    assert f"remembered as {key} in {store}" in result[0].stderr
    assert profile.verdict == rows[-1]["decision"]
    # What the first run found spares the second one the search, or is shown to be no faster.
    again = tuned_run(path, *flags)
    rows = log.read(path)
    check_end(again, rows)
    phases = [row["phase"] for row in rows]
    if profile.is_change:
        assert phases[:3] == ["warmup", "baseline", "verify"]
    elif phases == ["warmup", "baseline", "final"]:
        assert "they are those remembered from" in again[0].stderr
    else:
        # The machine has become so much slower, or faster, that it may be another one.
        then, now = profile.step_time_ms, float(rows[1]["step_time_ms"])
        assert then is not None
        assert abs(now / then - 1) > 0.24
        assert "search" in phases


def test_a_fixed_setting_is_never_moved(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    result = tuned_run(path, env={"HOROVOD_CYCLE_TIME": "1.25"})
    rows = log.read(path)
    assert {row["cycle_time_ms"] for row in rows} == {"1.25"}
    assert len({row["tensor_fusion_threshold"] for row in rows}) > 2
    check_end(result, rows)


def test_training_that_ends_first(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    env = {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": str(path)}
    result = run_ranks(2, tuned.train, str(path), 25, env=env)
    rows = log.read(path)
    check_end(result, rows)
    assert "tuning was not finished: training ended during warmup" in rows[-1]["decision"]
    assert "tuning was not finished" in result[0].stderr
    assert result[1].stderr == ""


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
    assert told == [f"hvdtune autotune: {last['decision']}"]
    assert not store.exists()


def test_a_job_of_process_sets_has_no_steps_to_tune(tmp_path: Path) -> None:
    result = run_ranks(3, tuned.train_in_a_set, 50, env={"HOROVOD_AUTOTUNE": "1"})
    assert result.values == ("done",) * 3
    assert "no training step was seen: one is over when a tensor of the global" in result[0].stderr


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("")
    unwritable = tmp_path / "missing" / "log.csv"
    env = {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": str(unwritable)}
    result = run_ranks(2, tuned.train, str(path), 25, env=env)
    assert result[0].stderr.count("cannot be written (No such file or directory)") == 1
    assert [value["sums"] for value in result.values] == [{3.0}, {3.0}]
