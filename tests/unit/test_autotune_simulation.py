"""The harness that judges the tuners: its surfaces, its job, its peers, its figures."""

import argparse
import json
import math
import random
import sys
from pathlib import Path

import numpy as np
import pytest

HARNESS = Path(__file__).resolve().parents[2] / "benchmarks" / "autotune"
sys.path.insert(0, str(HARNESS))

import horovod_procedure  # noqa: E402
import job  # noqa: E402
import methods  # noqa: E402
import simulate  # noqa: E402
import surfaces  # noqa: E402

sys.path.remove(str(HARNESS))

MIB = 2**20
AXES = {
    "fusion_threshold": [0, 2 * MIB, 128 * MIB],
    "cycle_time": [0.1, 1, 25],
    "chunk_size": [0, 65536, 1048576],
}


def shape_of(threshold: int, cycle: int, chunk: int) -> float:
    return (0.5, 0.1, 0.0)[threshold] + (0.2, 0.0, -0.1)[cycle] + (0.0, 0.1, -0.05)[chunk]


TRUTH = np.array([[[shape_of(t, y, c) for c in range(3)] for y in range(3)] for t in range(3)])


def stored(folder: Path, rounds: list[np.ndarray], name: str = "made-np2") -> Path:
    path = folder / f"{name}.json"
    logs = [round_.ravel().tolist() for round_ in rounds]
    path.write_text(json.dumps({"ranks": 2, "axes": AXES, "reference_ms": [10.0], "rounds": logs}))
    return path


@pytest.fixture
def surface(tmp_path: Path) -> surfaces.Surface:
    return surfaces.load(stored(tmp_path, [TRUTH] * 3))


def at(**values: float) -> dict[str, float]:
    return {**surfaces.DEFAULTS, **values}


def test_a_surface_is_what_was_measured_and_smooth_between(surface: surfaces.Surface) -> None:
    assert surface(surfaces.DEFAULTS) == pytest.approx(0.0, abs=0.01)
    assert surface(at(cycle_time=0.1)) == pytest.approx(0.2, abs=0.01)
    assert surface(at(cycle_time=math.sqrt(0.1))) == pytest.approx(0.09, abs=0.02)
    assert surface(at(fusion_threshold=16 * MIB)) == pytest.approx(0.04, abs=0.02)
    beyond, last = (surface(at(fusion_threshold=size * MIB)) for size in (256, 128))
    assert beyond == pytest.approx(last)
    assert surface(at(one_shot_limit=1024)) == surface(surfaces.DEFAULTS)
    # "The engine chooses" is no size: nothing lies between it and the sizes.
    assert surface(at(chunk_size=4096)) == pytest.approx(surface(at(chunk_size=65536)))


def test_between_grid_points_nothing_is_better_than_they_are(surface: surfaces.Surface) -> None:
    rng = random.Random(3)
    points = [
        at(
            fusion_threshold=rng.choice([0, math.exp(rng.uniform(11, 20))]),
            cycle_time=math.exp(rng.uniform(-2.3, 3.2)),
            chunk_size=rng.choice([0, math.exp(rng.uniform(11, 14))]),
        )
        for _ in range(500)
    ]
    assert min(surface(values) for values in points) >= surface.best() - 1e-9


def test_a_round_on_a_busy_machine_counts_for_little() -> None:
    rng = np.random.default_rng(5)
    quiet = TRUTH + 0.005 * rng.standard_normal(TRUTH.shape)
    busy = [TRUTH + 0.3 * rng.standard_normal(TRUTH.shape) for _ in range(2)]
    found = surfaces.smooth(np.array([busy[0], quiet, busy[1]]))
    assert np.abs(found - TRUTH).max() < 0.03
    assert np.abs(np.median([busy[0], quiet, busy[1]], axis=0) - TRUTH).max() > 0.1


def test_the_best_point_is_one_a_tuner_may_choose(surface: surfaces.Surface) -> None:
    assert surface.best(5.0) == pytest.approx(-0.05, abs=0.01)
    assert surface.best() == pytest.approx(-0.15, abs=0.01)


def test_noise_is_not_taken_for_gains(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    noisy = [0.05 * rng.standard_t(2, TRUTH.shape) for _ in range(3)]
    flat = surfaces.load(stored(tmp_path, noisy))
    assert min(round_.min() for round_ in noisy) < -0.1
    assert flat.best() - flat(surfaces.DEFAULTS) > -0.05


def test_surfaces_without_a_whole_round_are_left_out(tmp_path: Path) -> None:
    stored(tmp_path, [TRUTH])
    stored(tmp_path, [], "begun-np4")
    assert [one.name for one in surfaces.load_all(folder=tmp_path)] == ["made-np2"]
    with pytest.raises(ValueError, match="'nothing'"):
        surfaces.load_all("nothing", tmp_path)


def test_the_measured_surfaces_can_be_read() -> None:
    found = surfaces.load_all()
    assert len(found) >= 12
    assert {one.ranks for one in found} == {2, 4, 8}
    for one in found:
        assert np.isfinite(one.log_ratio).all()
        assert one.best() <= one(surfaces.DEFAULTS)


def test_a_job_has_noise_drift_and_outliers_and_can_be_repeated(surface: surfaces.Surface) -> None:
    runs = [job.Job(surface, surfaces.DEFAULTS, 0.02, 7) for _ in range(2)]
    times = [[run.step(surfaces.DEFAULTS).duration_ns for _ in range(3000)] for run in runs]
    assert times[0] == times[1]
    logs = np.log(np.array(times[0]) / 50e6)
    long = logs > math.log(2)
    assert 10 < long.sum() < 60
    assert 0.02 < logs[~long].std() < 0.03  # noise and drift together
    assert abs(logs[~long].mean()) < 0.01
    assert runs[0].steps == 3000
    assert runs[0].slowdown == pytest.approx(0.0)


def test_drift_and_outliers_can_be_left_out(surface: surfaces.Surface) -> None:
    def logs(drift: float, outliers: float) -> np.ndarray:
        run = job.Job(surface, surfaces.DEFAULTS, 0.01, 7, drift, outliers)
        times = [run.step(surfaces.DEFAULTS).duration_ns for _ in range(3000)]
        return np.log(np.array(times) / 50e6)

    calm = logs(0.0, 0.0)
    assert np.abs(calm).max() < 0.06
    drifting = logs(0.02, 0.0)
    half = 750  # steps: half a period
    halves = [drifting[at : at + half].mean() for at in range(3000 - half)]
    assert max(halves) - min(halves) > 0.02
    assert drifting.max() < 0.08
    assert (logs(0.0, 0.01) > math.log(3)).sum() > 10


def test_step_times_of_real_jobs_are_replayed(surface: surfaces.Surface) -> None:
    wander = job.Wander(20.0, (0.1, -0.2, 0.05))
    run = job.Job(surface, surfaces.DEFAULTS, 0.5, 7, wander=wander)
    times = [run.step(surfaces.DEFAULTS).duration_ns / 1e6 for _ in range(6)]
    level = math.exp(surface(surfaces.DEFAULTS))
    assert times[:3] == times[3:]
    assert sorted(times[:3]) == pytest.approx(
        [20 * level * math.exp(one) for one in sorted(wander.series)], rel=1e-6
    )
    for stored in job.Wander.load_all().values():
        assert len(stored.series) > 500
        assert abs(float(np.median(stored.series))) < 0.3


def test_what_trials_cost_is_counted(surface: surfaces.Surface) -> None:
    run = job.Job(surface, surfaces.DEFAULTS, 0.02, 7)
    for values in (surfaces.DEFAULTS, at(fusion_threshold=0)):
        run.step(values)
    expected = (math.exp(surface(at(fusion_threshold=0)) - surface(surfaces.DEFAULTS)) - 1) / 2
    assert run.slowdown == pytest.approx(expected)


@pytest.mark.long
def test_horovods_procedure_has_its_points_its_box_and_its_budget() -> None:
    seen: list[dict[str, float]] = []

    def scores(values: dict[str, float], steps: int) -> float:
        assert steps == 50
        seen.append(dict(values))
        return -abs(values["cycle_time"] - 5.0)

    kept = horovod_procedure.tune(scores, 3)
    assert 50 * len(seen) == 4350
    assert seen[:4] == [{"fusion_threshold": 4 * MIB, "cycle_time": 5.0}] * 4
    assert seen[4]["cycle_time"] == 50.0
    assert all(0 <= one["fusion_threshold"] <= 64 * MIB for one in seen)
    assert all(1 <= one["cycle_time"] <= 100 for one in seen)
    assert kept["cycle_time"] == 5.0


@pytest.mark.parametrize("method", ["hvdtune", "random", "scikit-optimize"])
def test_every_method_tunes_and_can_be_repeated(
    method: str, surface: surfaces.Surface, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(methods, "SAMPLES", 12)
    task = simulate.Task(method, surface.name, "the defaults", simulate.USUAL, 0.01, 3)
    runs = [simulate.run(task, surface) for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0].steps <= 1500
    assert runs[0].regret > -1e-9
    if method == "hvdtune":
        assert runs[0].change < -0.03
        assert runs[0].verdict.startswith("adopted")


def arguments(**changed: object) -> argparse.Namespace:
    usual = {"methods": ["hvdtune", "Horovod"], "noise": (0.01, 0.08), "seeds": 3, "few_seeds": 1}
    return argparse.Namespace(**{**usual, "first_seed": 1000, **changed})


def test_the_runs_to_be_done(surface: surfaces.Surface) -> None:
    tasks = simulate.tasks_of(arguments(), [surface])
    # The defaults, three bad starts, three other disturbances; a peer from the defaults. With the
    # step times of real jobs two starts, and the peer from the defaults.
    usual, wandered = 3 * 2 + 3 * 2 + 3 * 2 + 3 * 2, (2 + 1) * len(simulate.WANDERS)
    assert len(tasks) == len(set(tasks)) == usual + wandered
    assert {task.seed for task in tasks} == {1000, 1001, 1002}
    assert {task.start for task in tasks if task.method == "Horovod"} == {"the defaults"}


def test_runs_are_kept_and_gone_on_from(surface: surfaces.Surface, tmp_path: Path) -> None:
    tasks = simulate.tasks_of(arguments(methods=["random"], noise=(0.02,)), [surface])
    path = tmp_path / "runs.jsonl"
    first = simulate.Done(path, {surface.name: "these"})
    simulate.simulate(tasks[:2], [surface], 2, math.inf, first)
    again = simulate.Done(path, {surface.name: "these"})
    assert again.runs == first.runs
    assert set(again.runs) == set(tasks[:2])
    assert again.runs[tasks[1]] == simulate.run(tasks[1], surface)
    assert simulate.Done(path, {surface.name: "others"}).runs == {}


def test_a_simulation_ends_when_its_time_is_over(surface: surfaces.Surface) -> None:
    tasks = simulate.tasks_of(arguments(methods=["random"], seeds=50), [surface])
    done = simulate.Done(None, {})
    simulate.simulate(tasks, [surface], 1, 0.0, done)
    assert 0 < len(done.runs) < len(tasks)


def test_what_runs_were_made_with_is_known_by_surfaces_and_code(
    surface: surfaces.Surface, tmp_path: Path
) -> None:
    other = surfaces.load(stored(tmp_path, [TRUTH + 0.1] * 3))
    assert simulate.fingerprint(surface) == simulate.fingerprint(surface)
    assert simulate.fingerprint(surface) != simulate.fingerprint(other)


def test_the_page_has_the_remark_and_a_file_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, figures = tmp_path / "made.md", tmp_path / "made.json"
    command = ["simulate.py", "--only", "tiny-np4-compute5", "--methods", "random", "--seeds", "1"]
    command += ["--noise", "0.02", "--output", str(page)]

    def written(*options: str) -> str:
        monkeypatch.setattr(sys, "argv", [*command, *options])
        assert simulate.main() == 0
        return page.read_text()

    text = "These are older than the tuner."
    plain = written()
    assert not figures.exists()
    assert written("--remark", text, "--json", str(figures)) == plain.replace(
        "py`.\n", f"py`.\n\n{text}\n", 1
    )
    [usual, *_] = json.loads(figures.read_text())
    assert (usual["method"], usual["surface"]) == ("random", "tiny-np4-compute5")
    assert f"| random | 2% | {usual['runs']} |" in plain


def test_figures_of_runs() -> None:
    runs = [
        simulate.Run(
            "hvdtune",
            "made",
            "the defaults",
            simulate.USUAL,
            0.01,
            seed,
            change,
            regret,
            0.01,
            steps,
            "",
        )
        for seed, (change, regret, steps) in enumerate([(0.0, 0.0, 400), (0.02, 0.04, 600)])
    ]
    figures = simulate.figures_of(runs)
    assert figures["worse"] == 0.5
    assert figures["regret_median"] == pytest.approx(0.02)
    assert (figures["steps"], figures["steps_95"]) == (500, 590)
    assert simulate.summary(runs)[0]["method"] == "hvdtune"
