"""Sessions that remember: what a later run makes of what an earlier one found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.models.simulated_training import Landscape, flat, short_cycle_is_best
from test_autotune_session import DirectOptimiser, SimulatedEngine

from hvdtune.autotune.memory import identity
from hvdtune.autotune.memory.recall import Memory, engine_settings, open_memory
from hvdtune.autotune.memory.store import Profile, Store
from hvdtune.autotune.messages import Messenger
from hvdtune.autotune.report import log
from hvdtune.autotune.session import session
from hvdtune.autotune.session.session import Session
from hvdtune.settings import knobs

LESS = {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "8"}


def slow_cycle_is_best(values: Mapping[str, float]) -> float:
    return 1 + 0.3 / max(values["cycle_time"], 0.1)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store.json")


@pytest.fixture
def tune(
    store: Store, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[SimulatedEngine, list[dict[str, str]], str]]:
    """Run a session with this store on a landscape: the engine, the log's rows, stderr."""

    def run(
        landscape: Landscape,
        ranks: int = 2,
        start: dict[str, float] | None = None,
        environ: Mapping[str, str] | None = None,
        steps: int = 100_000,
        fixed: Mapping[str, float] | None = None,
        restart: Mapping[str, float] | None = None,
    ) -> tuple[SimulatedEngine, list[dict[str, str]], str]:
        engine = SimulatedEngine(landscape, steps, start)
        settings = knobs.from_environ({**LESS, **(environ or {})})
        messenger = Messenger("WARNING", hide_time=True)
        describe = partial(
            identity.describe, size=ranks, local_size=ranks, cpus=2, version="0.1",
            fixed=fixed or {}, engine=engine_settings(settings), processor="P",
        )  # fmt: skip
        when = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
        standing = {"cache_capacity": 1024, **(restart or {})}
        memory = Memory(
            store, describe, "train.py", messenger.warn, lambda: when, standing=standing
        )
        path = tmp_path / "log.csv"
        writer = log.LogWriter(str(path), messenger.warn)
        Session(engine, settings, ranks, messenger, writer, DirectOptimiser, memory).run()
        return engine, log.read(path), capfd.readouterr().err

    return run


def only(store: Store) -> Profile:
    [profile] = store.read().values()
    return profile


def test_a_later_run_verifies_and_does_not_search(store, tune) -> None:
    engine, rows, told = tune(short_cycle_is_best)
    profile = only(store)
    assert profile.is_change
    assert profile.values == engine.values
    assert (profile.program, profile.when) == ("train.py", "2026-01-31T12:00:00Z")
    assert f"; remembered as {next(iter(store.read()))} in {store.path}; to pin it: " in told
    again, later, told = tune(short_cycle_is_best)
    assert [row["phase"] for row in later[:5]] == ["warmup"] * 3 + ["baseline", "verify"]
    assert {row["phase"] for row in later} == {"warmup", "baseline", "verify", "final"}
    assert again.values == engine.values
    assert later[-1]["accepted"] == "1"
    assert "with the settings remembered from 2026-01-31 12:00 UTC, train.py: HOROVOD_" in told
    # Behind the baseline.
    searched, verified = (sum(int(row["steps"]) for row in of[4:-1]) for of in (rows, later))
    assert verified < searched


def test_that_nothing_was_faster_is_remembered_too(store, tune) -> None:
    tune(flat)
    assert not only(store).is_change
    engine, rows, told = tune(flat)
    assert [row["phase"] for row in rows] == ["warmup"] * 3 + ["baseline", "final"]
    assert "kept the current settings: they are those remembered from 2026-01-31" in told
    assert engine.applied == []


def test_what_was_lost_in_noise_is_looked_for_again(store, tune, monkeypatch) -> None:
    monkeypatch.setattr(session, "CLEAR_MARGIN", 1e-6)
    _, rows, told = tune(flat)
    assert "no significant gain" in rows[-1]["decision"]
    assert "remembered as" not in told
    assert "; not remembered, because its margin is above 0.0001 %" in told
    assert store.read() == {}


def test_what_is_no_longer_true_is_searched_anew_and_replaced(store, tune) -> None:
    tune(short_cycle_is_best)
    first = only(store)
    engine, rows, _ = tune(slow_cycle_is_best)
    assert "search" in {row["phase"] for row in rows}
    assert only(store) != first
    assert only(store).values == engine.values
    assert engine.values["cycle_time"] >= 1.0


def test_another_kind_of_job_does_not_use_it(store, tune) -> None:
    tune(flat)
    _, rows, _ = tune(flat, ranks=4)
    assert "search" in {row["phase"] for row in rows}
    assert len(store.read()) == 2


@pytest.mark.parametrize(
    "variable",
    [
        ("HVDTUNE_OVERLAP", "off"),
        ("HVDTUNE_REDUCTION_THREADS", "1"),
        ("HVDTUNE_SPIN_US", "0"),
        ("HVDTUNE_WRITING", "cached"),
    ],
)
def test_what_decides_how_the_engine_works_is_another_kind_of_job(store, tune, variable) -> None:
    tune(flat)
    _, rows, _ = tune(flat, environ=dict([variable]))
    assert "search" in {row["phase"] for row in rows}
    assert len(store.read()) == 2


@pytest.mark.parametrize(("factor", "searches"), [(1.2, False), (0.85, False), (1.4, True)])
def test_that_nothing_was_faster_holds_for_steps_as_long_as_then(
    store, tune, factor: float, searches: bool
) -> None:
    tune(flat)
    _, rows, _ = tune(lambda values: factor)
    assert ("search" in {row["phase"] for row in rows}) == searches


def test_what_was_confirmed_is_remembered_though_training_ended_first(store, tune) -> None:
    _, rows, told = tune(short_cycle_is_best, start={"cycle_time": 25.0}, steps=400)
    assert "tuning was not finished" in rows[-1]["decision"]
    assert only(store).values["cycle_time"] == 1.0
    assert only(store).start["cycle_time"] == 25.0
    assert f"remembered as {next(iter(store.read()))}" in told


def test_a_corrupt_store_is_a_warning(store, tune) -> None:
    store.path.write_text("{")
    engine, rows, told = tune(short_cycle_is_best)
    assert told.count("is not an autotune store: ") == 1
    assert "nothing is remembered from earlier runs" in told
    assert f"moved to {store.path}.corrupt" in told
    assert rows[-1]["accepted"] == "1"
    assert only(store).values == engine.values


def test_an_unwritable_store_is_a_warning(store, tune) -> None:
    store.path.mkdir()
    engine, rows, told = tune(short_cycle_is_best)
    assert "cannot be read (Is a directory)" in told
    assert "the outcome is not remembered" in told
    assert rows[-1]["accepted"] == "1"
    assert engine.values["cycle_time"] < 0.5


@pytest.fixture
def larger_cache(store: Store, tune: Callable[..., object]) -> Profile:
    """What `hvdtune tune` leaves that has found nothing but a larger cache."""
    tune(flat)
    before = only(store)
    found = replace(
        before,
        values={**before.values, "cache_capacity": 4096},
        start={**before.start, "cache_capacity": 1024},
    )
    store.put(found)
    return found


def test_what_a_running_job_cannot_change_is_told_and_kept(store, tune, larger_cache) -> None:
    _, rows, told = tune(flat)
    assert [row["phase"] for row in rows] == ["warmup"] * 3 + ["baseline", "final"]
    assert "hvdtune tune has found HOROVOD_CACHE_CAPACITY 1024 entries → 4096 entries" in told
    assert "for which the job must be started with HOROVOD_CACHE_CAPACITY=4096" in told
    assert only(store) == larger_cache
    # A search that replaces the rest of the profile leaves it.
    engine, rows, _ = tune(lambda values: 2 * short_cycle_is_best(values))
    assert "search" in {row["phase"] for row in rows}
    assert only(store).values == {**engine.values, "cache_capacity": 4096}
    assert only(store).start["cache_capacity"] == 1024


def test_who_starts_with_what_was_found_uses_the_rest_of_it(store, tune, larger_cache) -> None:
    cache = {"cache_capacity": 4096}
    _, rows, told = tune(flat, fixed=cache, restart=cache)
    assert [row["phase"] for row in rows] == ["warmup"] * 3 + ["baseline", "final"]
    assert "they are those remembered from" in told
    assert "hvdtune tune has found" not in told
    # Another cache is another kind of job.
    other = {"cache_capacity": 512}
    _, rows, _ = tune(flat, fixed=other, restart=other)
    assert "search" in {row["phase"] for row in rows}
    assert larger_cache in store.read().values()


@pytest.mark.parametrize(
    ("plane", "uses_nccl", "backend"),
    [
        ("", False, "shared memory"),
        ("MPI", False, "MPI"),
        ("gloo", False, "Gloo"),
        ("MPI", True, "NCCL"),
    ],
)
def test_what_carries_the_tensors_tells_jobs_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plane: str, uses_nccl: bool, backend: str
) -> None:
    described = []
    monkeypatch.setattr(
        identity, "describe", lambda work, **facts: described.append(facts) or {"fixed": {}}
    )
    environ = {"HVDTUNE_AUTOTUNE_STORE": str(tmp_path / "store.json")}
    if plane:
        environ["HOROVOD_CPU_OPERATIONS"] = plane
    messenger = Messenger("WARNING", hide_time=True)
    memory = open_memory(knobs.from_environ(environ), messenger, "train.py", 2, 2, 2)
    assert memory is not None
    memory.add(SimpleNamespace(tensors=1, bytes=4))
    memory.recall({}, uses_nccl)
    assert [one["backend"] for one in described] == [backend]
