"""The statistics: quantiles, drift, noise, paired comparisons."""

import math
import random
import statistics

import numpy as np
import pytest
from scipy.stats import t as student
from scipy.stats import trim_mean
from scipy.stats.mstats import winsorize

from hvdtune.autotune.statistics import inference
from hvdtune.autotune.statistics.inference import Estimate


@pytest.mark.parametrize("freedom", [1, 2, 3, 3.7, 5, 11, 24.7, 100])
@pytest.mark.parametrize("probability", [0.75, 0.95, 0.99, 1 - 0.01 / 3])
def test_quantiles_are_scipys(freedom: float, probability: float) -> None:
    expected = student.ppf(probability, freedom)
    assert inference.student_quantile(probability, freedom) == pytest.approx(expected, rel=1e-3)


def test_quantiles_need_a_sensible_question() -> None:
    with pytest.raises(ValueError, match=r"between 0\.5 and 1"):
        inference.student_quantile(0.4, 5)
    with pytest.raises(ValueError, match="at least one degree of freedom"):
        inference.student_quantile(0.9, 0)


def test_linear_drift_cancels_between_neighbours() -> None:
    positions = [4, 6, 8, 10]
    level = inference.level(7, positions, [0.1 * at for at in positions], [0.01] * 4)
    assert level.value == pytest.approx(0.7)
    assert level.error < 0.01


def test_rough_measurements_count_less() -> None:
    level = inference.level(5, [4, 6], [1.0, 2.0], [0.01, 0.1])
    assert level.value == pytest.approx(1.0, abs=0.02)


def test_a_level_far_from_everything_is_the_nearest() -> None:
    assert inference.level(1000, [1, 2], [5.0, 6.0], [0.1, 0.2]) == Estimate(6.0, 0.2)


def test_noise_is_found_under_drift() -> None:
    rng = random.Random(5)
    logs = [0.002 * at + rng.gauss(0, 0.02) for at in range(500)]
    logs[100] += 5  # a disturbed measurement
    assert inference.noise_between(logs).error == pytest.approx(0.02, rel=0.15)
    assert inference.noise_between([1.0]).freedom == 0


def test_pairs_that_agree_by_chance_are_not_believed() -> None:
    known = Estimate(0, 0.02, 14)
    estimate = inference.paired([-0.01, -0.01, -0.01, -0.0101], known)
    assert estimate.value == pytest.approx(-0.010025)
    assert estimate.error > 0.01
    assert estimate.freedom == 17


def test_pairs_that_scatter_speak_for_themselves() -> None:
    pairs = [-0.3, 0.3, -0.2, 0.25]
    estimate = inference.paired(pairs, Estimate(0, 0.01, 14))
    mean = sum(pairs) / 4
    own = math.sqrt(sum((pair - mean) ** 2 for pair in pairs) / 3 / 4)
    assert estimate == Estimate(pytest.approx(mean), pytest.approx(own), 3)


def heavy_tailed(rng: random.Random) -> float:
    """Mostly alike, one in six far off: as on a machine that others use."""
    return rng.gauss(0, 0.02 if rng.random() < 5 / 6 else 0.3)


def test_a_trimmed_mean_is_yuens() -> None:
    values = [0.1, 3.0, -0.2, 0.4, 0.2, -0.1, 0.3, -5.0, 0.0, 0.1]
    found = inference.trimmed(values)
    assert found.value == pytest.approx(trim_mean(values, inference.TRIM))
    wins = winsorize(np.array(values), (inference.TRIM, inference.TRIM))
    expected = np.std(wins, ddof=1) * math.sqrt(9 / (6 * 5))
    assert (found.error, found.freedom) == (pytest.approx(expected), 5)
    with pytest.raises(ValueError, match="at least two values"):
        inference.trimmed([1.0])


def test_pairs_that_are_disturbed_here_and_there_still_tell_a_gain() -> None:
    """As rarely wrong as promised, and several times as sure as a plain mean."""
    rng = random.Random(9)
    wrong, margins, plain = 0, [], []
    for _ in range(1000):
        noise = inference.noise_between([heavy_tailed(rng) for _ in range(30)])
        pairs = [heavy_tailed(rng) - heavy_tailed(rng) for _ in range(30)]
        estimate = inference.paired(pairs, noise)
        wrong += -estimate.value > estimate.margin(0.99)
        margins.append(estimate.margin(0.99))
        own = Estimate(0.0, statistics.stdev(pairs) / math.sqrt(30), 29)
        plain.append(own.margin(0.99))
    assert wrong <= 18
    assert statistics.median(margins) < statistics.median(plain) / 2


def test_a_gain_that_is_not_there_is_found_as_rarely_as_promised() -> None:
    rng = random.Random(6)
    false = 0
    for _ in range(2000):
        noise = inference.noise_between([rng.gauss(0, 0.02) for _ in range(12)])
        pairs = [rng.gauss(0, 0.02) - rng.gauss(0, 0.02) for _ in range(8)]
        estimate = inference.paired(pairs, noise)
        false += -estimate.value > estimate.margin(0.99)
    assert false <= 2000 * 0.015


def test_one_pair_is_no_comparison() -> None:
    with pytest.raises(ValueError, match="at least two pairs"):
        inference.paired([0.1], Estimate(0, 0.1, 5))


def test_the_expected_excess_of_a_normal_number() -> None:
    rng = random.Random(3)
    for mean, deviation in ((0.0, 1.0), (-0.5, 0.3), (0.2, 0.1)):
        found = statistics.fmean(max(0.0, rng.gauss(mean, deviation)) for _ in range(40_000))
        assert inference.expected_excess(mean, deviation) == pytest.approx(found, abs=0.01)
    assert inference.expected_excess(0.3, 0.0) == 0.3
    assert inference.expected_excess(-0.3, 0.0) == 0.0
