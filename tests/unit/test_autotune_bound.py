"""What noise alone costs: tuners that know more than one can, on a measured surface."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

HARNESS = Path(__file__).resolve().parents[2] / "benchmarks" / "autotune"
sys.path.insert(0, str(HARNESS))

import bound  # noqa: E402
import surfaces  # noqa: E402

sys.path.remove(str(HARNESS))


@pytest.fixture(scope="module")
def surface() -> surfaces.Surface:
    [found] = surfaces.load_all("tiny-np4-compute5")
    return found


def gain(surface: surfaces.Surface) -> float:
    return math.expm1(surface(surfaces.DEFAULTS) - surface.best())


def test_a_gain_as_large_as_the_margin_is_shown_half_the_time(surface: surfaces.Surface) -> None:
    log_gain = surface(surfaces.DEFAULTS) - surface.best()
    noise = 0.08 * log_gain / bound.margin(0.08, 32)
    regrets = bound.proving(surface, noise, 32)
    assert sorted(set(regrets)) == pytest.approx([0.0, gain(surface)])
    assert np.mean(regrets > 0) == pytest.approx(0.5, abs=0.03)


def test_without_noise_only_what_is_not_drawn_is_missed(surface: surfaces.Surface) -> None:
    assert bound.proving(surface, 1e-6, 32).max() == 0.0
    assert bound.finding(surface, 1e-6, lucky=True).max() == 0.0
    drawn = bound.finding(surface, 1e-6, lucky=False)
    assert 0.0 < np.median(drawn) < gain(surface)


def test_the_less_is_known_the_more_is_missed(surface: surfaces.Surface) -> None:
    means = [
        found.mean()
        for found in (
            bound.proving(surface, 0.08, 66),
            bound.finding(surface, 0.08, lucky=True),
            bound.finding(surface, 0.08, lucky=False),
            bound.finding(surface, 0.3, lucky=False),
        )
    ]
    assert means == sorted(means)


STEPS = bound.SEARCH_STEPS


def test_halving_wastes_no_steps_on_what_is_clearly_bad(surface: surfaces.Surface) -> None:
    """It ends nearer to the best the more settings it can look at, and the longer."""
    means = [bound.halving(surface, 0.08, count, STEPS).mean() for count in (16, 8, 4, 2)]
    assert means == sorted(means)
    [best] = bound.best_halving([surface], 0.08, STEPS)
    assert best.mean() == means[0]
    [by_turns] = bound.best_halving([surface], 0.08, STEPS / 2)
    assert by_turns.mean() > best.mean()


def test_halving_without_noise_ends_with_the_best_that_was_drawn(
    surface: surfaces.Surface,
) -> None:
    regrets = bound.halving(surface, 1e-6, 512, 1e6)
    assert np.quantile(regrets, 0.95) < 0.005


def test_a_look_is_never_shorter_than_what_settles() -> None:
    assert bound.look_steps(16, 720) == pytest.approx(720 / 4 / 16 - bound.SETTLE)
    assert bound.look_steps(16, 720, left=2) == pytest.approx(720 / 4 / 2 - bound.SETTLE)
    assert bound.look_steps(64, 720) < bound.LEAST


def test_nothing_is_shown_in_so_much_noise_that_nothing_can_be(surface: surfaces.Surface) -> None:
    regrets = bound.proving(surface, 100.0, 2)
    # By chance, one in a hundred.
    assert np.mean(regrets == 0.0) == pytest.approx(1 - bound.CONFIDENCE, abs=0.006)
