"""The model and its proposals, on functions whose best point is known."""

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from support.models.simulated_training import MIB, full_space, scattered

from hvdtune.autotune.search import space
from hvdtune.autotune.search.optimiser import Observation, Problem, propose
from hvdtune.autotune.search.space import Space

SPACE = full_space()
DEFAULTS = space.shipped_defaults(SPACE)
Function = Callable[[tuple[float, ...]], float]


def observe(
    function: Function, points: list[tuple[float, ...]], noise: float, rng: random.Random
) -> tuple[Observation, ...]:
    start = Observation(SPACE.encode(DEFAULTS), 0.0, 0.0)
    base = function(start.point)
    return (
        start,
        *(
            Observation(point, function(point) - base + rng.gauss(0, noise), noise)
            for point in points
        ),
    )


def bowl(point: tuple[float, ...]) -> float:
    return 0.4 * ((point[0] - 0.6) ** 2 + (point[2] - 0.2) ** 2) - 0.05 * (point[4] == 0.0)


def search(function: Function, noise: float, seed: int, proposals: int) -> list[Observation]:
    rng = random.Random(seed)
    points = [SPACE.encode(values) for values in scattered(SPACE, 4, seed)]
    observations = observe(function, points, noise, rng)
    base = function(observations[0].point)
    for _ in range(proposals):
        point = propose(Problem(SPACE, observations, seed=seed)).points[0]
        y = function(point) - base + rng.gauss(0, noise)
        observations = (*observations, Observation(point, y, noise))
    return list(observations)


def test_the_same_question_has_the_same_answer() -> None:
    rng = random.Random(1)
    points = [SPACE.encode(values) for values in scattered(SPACE, 6, 1)]
    problem = Problem(SPACE, observe(bowl, points, 0.01, rng), seed=3)
    assert propose(problem) == propose(problem)


@pytest.mark.parametrize(("noise", "seed"), [(0.001, 0), (0.02, 2), (0.02, 4)])
def test_finds_the_best_of_a_bowl_and_of_a_flag(noise: float, seed: int) -> None:
    observations = search(bowl, noise, seed, 12)
    answer = propose(Problem(SPACE, tuple(observations), seed=seed))
    best = observations[int(np.argmin(answer.means))].point
    assert bowl(best) - (-0.05) < 0.002 + noise


def test_the_best_is_the_models_and_not_the_luckiest_sample() -> None:
    # Twelve samples say 0 here, a single rough one says 5 % better at the same place.
    around = [(0.5 + 0.002 * at, 0.0, 0.5, 0.5, 1.0) for at in range(12)]
    sure = tuple(Observation(point, 0.0, 0.002) for point in around)
    lucky = Observation((0.512, 0.0, 0.5, 0.5, 1.0), -0.05, 0.05)
    elsewhere = Observation((0.1, 0.0, 0.1, 0.5, 1.0), 0.05, 0.002)
    answer = propose(Problem(SPACE, (*sure, elsewhere, lucky)))
    assert answer.means[-1] > -0.01


def test_errors_of_single_samples_are_believed() -> None:
    points = [SPACE.encode(values) for values in scattered(SPACE, 10, 2)]
    start = Observation(SPACE.encode(DEFAULTS), 0.0, 0.0)
    observations = [start, *(Observation(point, 0.0, 0.001) for point in points)]
    sharp = [*observations[:-1], Observation(points[-1], -0.05, 0.001)]
    rough = [*observations[:-1], Observation(points[-1], -0.05, 0.2)]
    assert propose(Problem(SPACE, tuple(sharp))).means[-1] < -0.03
    assert propose(Problem(SPACE, tuple(rough))).means[-1] > -0.02


def test_nothing_is_expected_where_nothing_matters() -> None:
    observations = search(lambda _: 0.0, 0.0005, 4, 10)
    assert propose(Problem(SPACE, tuple(observations))).expected_gain < 0.001


def test_much_is_expected_beside_a_slope() -> None:
    observations = search(lambda point: 0.3 * point[2], 0.002, 5, 0)
    answer = propose(Problem(SPACE, observations=tuple(observations)))
    assert answer.expected_gain > 0.003
    assert answer.points[0][2] < 0.1


def test_an_awful_point_does_not_blind_the_model() -> None:
    def with_cliff(point: tuple[float, ...]) -> float:
        return 3.0 if point[1] == 1.0 else bowl(point)

    cliff = Observation((0.0, 1.0, 0.4, 0.5, 1.0), 3.0, 0.2)
    points = [SPACE.encode(values) for values in scattered(SPACE, 6, 3)]
    observations = (*observe(with_cliff, points, 0.002, random.Random(3)), cliff)
    answer = propose(Problem(SPACE, observations))
    for mean, observation in zip(answer.means[:-1], observations[:-1], strict=True):
        if observation.y < 1:
            assert mean == pytest.approx(observation.y, abs=0.01)


def test_proposals_are_settings_the_engine_can_take() -> None:
    for seed in range(5):
        rng = random.Random(seed)
        points = [SPACE.encode(values) for values in scattered(SPACE, 5, seed)]
        answer = propose(Problem(SPACE, observe(bowl, points, 0.01, rng), seed=seed))
        values = SPACE.decode(answer.points[0])
        assert SPACE.encode(values) == pytest.approx(answer.points[0])
        assert values != DEFAULTS
        assert values["fusion_threshold"] <= 256 * MIB


def test_several_proposals_are_apart_and_begin_with_the_best() -> None:
    observations = search(bowl, 0.002, 6, 3)
    one = propose(Problem(SPACE, tuple(observations)))
    four = propose(Problem(SPACE, tuple(observations), count=4))
    assert four.points[0] == one.points[0]
    assert four.expected_gain == one.expected_gain
    assert len(set(four.points)) == 4


def test_a_start_outside_the_space_can_be_modelled() -> None:
    start = SPACE.encode({"fusion_threshold": 0, "cycle_time": 100.0, "chunk_size": 0})
    points = [SPACE.encode(values) for values in scattered(SPACE, 5, 1)]
    observations = (
        Observation(start, 0.0, 0.0),
        *(Observation(point, -1.0 + bowl(point), 0.01) for point in points),
    )
    answer = propose(Problem(SPACE, observations))
    assert all(0 <= coordinate <= 1 for coordinate in answer.points[0])
    assert answer.means[0] == pytest.approx(0, abs=0.05)


def test_one_dimension_is_enough() -> None:
    line = Space((SPACE.dimensions[1],))
    observations = tuple(
        Observation((at / 5,), (at / 5 - 0.3) ** 2 - 0.09, 0.001) for at in range(6)
    )
    answer = propose(Problem(line, observations))
    assert answer.points[0][0] == pytest.approx(0.3, abs=0.1)
    assert len(answer.length_scales) == 1


def test_impossible_observations_are_refused() -> None:
    start = Observation(SPACE.encode(DEFAULTS), 0.0, 0.0)
    with pytest.raises(ValueError, match="at least two"):
        propose(Problem(SPACE, (start,)))
    with pytest.raises(ValueError, match="finite"):
        propose(Problem(SPACE, (start, Observation(start.point, math.nan, 0.1))))
