"""Steps become samples: robust means, honest errors, only steps that count."""

import math
import random
import statistics

import pytest
from support.models.simulated_training import SimulatedStep

from hvdtune.autotune.statistics.score import Window, summarise, trimmed_mean

MS = 1_000_000


def steps(count: int, ms: float, epoch: int = 0, size: int = 1000) -> list[SimulatedStep]:
    return [SimulatedStep(int(ms * MS), size, epoch) for _ in range(count)]


def filled(window: Window, *groups: list[SimulatedStep]) -> Window:
    for group in groups:
        for step in group:
            window.add(step)
    return window


def test_units_of_time_and_score() -> None:
    sample = summarise([10 * MS] * 10, [5_000_000] * 10)
    assert sample.step_time_ms == pytest.approx(10)
    # 5 MB in 10 ms are 500 MB/s, or bytes per microsecond.
    assert sample.score == pytest.approx(500)
    assert (sample.steps, sample.outliers) == (10, 0)


def test_equal_times_have_an_error_of_zero_but_are_not_believed() -> None:
    sample = summarise([10 * MS] * 10, [1] * 10)
    assert sample.stderr_ms == 0
    assert sample.relative_error > 0


def test_one_step_says_nothing_about_its_error() -> None:
    assert summarise([10 * MS], [1]).relative_error == pytest.approx(1)


def test_a_single_long_step_changes_nothing() -> None:
    rng = random.Random(3)
    times = [10 * MS * math.exp(rng.gauss(0, 0.02)) for _ in range(20)]
    clean = summarise(times, [1] * 20)
    spoilt = summarise([*times, 500 * MS], [1] * 21)
    assert spoilt.outliers == 1
    assert spoilt.step_time_ms == pytest.approx(clean.step_time_ms)
    assert spoilt.stderr_ms == pytest.approx(clean.stderr_ms)


def test_long_steps_that_keep_coming_count() -> None:
    sample = summarise([10 * MS] * 7 + [30 * MS] * 3, [1] * 10)
    assert sample.step_time_ms > 12
    assert sample.relative_error > 0.05


def test_the_error_is_the_scatter_of_repeated_samples() -> None:
    rng = random.Random(4)
    samples = [
        summarise([10 * MS * math.exp(rng.gauss(0, 0.05)) for _ in range(10)], [1] * 10)
        for _ in range(400)
    ]
    scatter = statistics.stdev(sample.step_time_ms for sample in samples)
    stated = statistics.fmean(sample.stderr_ms for sample in samples)
    assert stated == pytest.approx(scatter, rel=0.15)


def test_the_trimmed_mean_by_hand() -> None:
    mean, error = trimmed_mean([1, 2, 3, 4, 5, 6, 7, 8, 9, 100])
    winsorised = [2, 2, 3, 4, 5, 6, 7, 8, 9, 9]
    assert mean == pytest.approx(5.5)
    assert error == pytest.approx(statistics.stdev(winsorised) / (0.8 * math.sqrt(10)))


@pytest.mark.parametrize("bad", [0, -5, math.nan, math.inf])
def test_impossible_durations_are_ignored(bad: float) -> None:
    assert summarise([bad, 10 * MS, 10 * MS], [1, 1, 1]).steps == 2
    with pytest.raises(ValueError, match="at least one step"):
        summarise([bad], [1])


def test_a_window_waits_for_its_epoch_and_lets_steps_settle() -> None:
    window = Window(epoch=3, steps=4, settle=2, min_ns=0)
    filled(window, steps(5, 99, epoch=2), steps(2, 50, epoch=3), steps(3, 10, epoch=3))
    assert not window.complete
    filled(window, steps(1, 10, epoch=3))
    assert window.complete
    assert window.sample().step_time_ms == pytest.approx(10)
    # Without the first, which began under the settings before.
    assert window.seen_ns == [50 * MS] + [10 * MS] * 4


def test_a_window_lasts_a_while_when_steps_are_short() -> None:
    window = filled(Window(0, steps=10, settle=0, min_ns=50 * MS), steps(40, 1))
    assert not window.complete
    assert filled(window, steps(10, 1)).complete
    assert window.sample().steps == 50


def test_how_long_a_window_still_takes() -> None:
    window = Window(1, steps=4, settle=2, min_ns=50 * MS)
    assert window.missing_ns(10 * MS) == 70 * MS  # two that settle, and 50 ms
    assert window.missing_ns(20 * MS) == 120 * MS  # six
    filled(window, steps(5, 99, epoch=0), steps(3, 10, epoch=1))
    assert window.missing_ns(10 * MS) == 40 * MS
    assert window.missing_ns(20 * MS) == 60 * MS
    filled(window, steps(3, 20, epoch=1))
    assert window.complete
    assert window.missing_ns(10 * MS) <= 0


def test_other_work_is_left_out() -> None:
    window = Window(0, steps=4, settle=0, typical_bytes=1000, min_ns=0)
    filled(window, steps(3, 10), steps(5, 99, size=8), steps(1, 10, size=1100))
    assert window.complete
    assert window.sample().step_time_ms == pytest.approx(10)


def test_work_that_has_changed_for_good_is_measured() -> None:
    window = Window(0, steps=4, settle=0, typical_bytes=1000, min_ns=0)
    filled(window, steps(2, 10), steps(20, 30, size=5000))
    assert window.complete
    assert window.sample().step_time_ms == pytest.approx(30)
    assert window.sample().bytes_per_step == pytest.approx(5000)


def test_an_abandoned_window_may_use_what_was_to_settle() -> None:
    window = filled(Window(1, steps=4, settle=2), steps(1, 70, epoch=1), steps(1, 90, epoch=1))
    with pytest.raises(ValueError, match="at least one step"):
        window.sample()
    sample = window.sample(abandoned=True)
    assert sample.abandoned
    assert sample.step_time_ms == pytest.approx(90)
