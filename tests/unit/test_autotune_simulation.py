"""The harness that judges the tuners: its surfaces, its job, its peers, its figures."""

import json
import math
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


def test_a_surface_is_what_was_measured_and_linear_between(surface: surfaces.Surface) -> None:
    assert surface(surfaces.DEFAULTS) == pytest.approx(0.0, abs=0.01)
    assert surface(at(cycle_time=0.1)) == pytest.approx(0.2, abs=0.01)
    assert surface(at(cycle_time=math.sqrt(0.1))) == pytest.approx(0.1, abs=0.01)
    assert surface(at(fusion_threshold=16 * MIB)) == pytest.approx(0.05, abs=0.01)
    assert surface(at(fusion_threshold=256 * MIB)) == surface(at(fusion_threshold=128 * MIB))
    assert surface(at(one_shot_limit=1024)) == surface(surfaces.DEFAULTS)
    # "The engine chooses" is no size: nothing lies between it and the sizes.
    assert surface(at(chunk_size=4096)) == surface(at(chunk_size=65536))


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


def test_what_trials_cost_is_counted(surface: surfaces.Surface) -> None:
    run = job.Job(surface, surfaces.DEFAULTS, 0.02, 7)
    for values in (surfaces.DEFAULTS, at(fusion_threshold=0)):
        run.step(values)
    expected = (math.exp(surface(at(fusion_threshold=0)) - surface(surfaces.DEFAULTS)) - 1) / 2
    assert run.slowdown == pytest.approx(expected)


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
    runs = [simulate.run(method, surface, "the defaults", 0.01, 3) for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0].steps <= 1500
    assert runs[0].regret > -1e-9
    if method == "hvdtune":
        assert runs[0].change < -0.03
        assert runs[0].verdict.startswith("adopted")


def test_figures_of_runs() -> None:
    runs = [
        simulate.Run("hvdtune", "made", "the defaults", 0.01, seed, change, regret, 0.01, steps, "")
        for seed, (change, regret, steps) in enumerate([(0.0, 0.0, 400), (0.02, 0.04, 600)])
    ]
    figures = simulate.figures_of(runs)
    assert figures["worse"] == 0.5
    assert figures["regret_median"] == pytest.approx(0.02)
    assert (figures["steps"], figures["steps_most"]) == (500, 600)
    assert simulate.summary(runs)[0]["method"] == "hvdtune"
