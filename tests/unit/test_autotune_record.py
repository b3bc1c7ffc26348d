"""The record of measurements: the level of the incumbent, candidates, and what asking costs."""

import random
from collections.abc import Callable, Sequence

import pytest
from test_autotune_tuner import DEFAULTS, FAST, OTHER, sample

from hvdtune.autotune.search.observations import Record, Trial
from hvdtune.autotune.statistics import inference
from hvdtune.autotune.statistics.inference import Estimate

INCUMBENT = Trial("search", DEFAULTS, visit=True)


def of(values: dict[str, float]) -> Trial:
    return Trial("search", values, candidate=True, visit=True)


def alternating(visits: int) -> Record:
    """Visits of the incumbent and of one candidate in turns, with noise and a drift."""
    rng, record = random.Random(7), Record()
    for at in range(visits):
        ms = 10 + 0.01 * at + rng.gauss(0, 0.2)
        record.add(INCUMBENT if at % 2 == 0 else of(FAST), sample(ms, 0.1))
    return record


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many of the incumbent's visits each call of `inference.level` looks at."""
    found: list[int] = []
    level: Callable[..., Estimate] = inference.level

    def counted(at: float, positions: Sequence[float], *rest: Sequence[float]) -> Estimate:
        found.append(len(positions))
        return level(at, positions, *rest)

    monkeypatch.setattr(inference, "level", counted)
    return found


@pytest.mark.parametrize("position", [1, 2, 17.5, 150, 299, 301])
def test_visits_out_of_reach_do_not_change_the_level(position: float) -> None:
    record = alternating(300)
    known = [one for one in record.visits if one.is_incumbent]
    noise = record.noise().error
    whole = inference.level(
        position,
        [one.number for one in known],
        [one.log_time for one in known],
        [max(noise, one.sample.relative_error) for one in known],
    )
    near = record.level(position)
    assert near.value == pytest.approx(whole.value, rel=1e-12)
    assert near.error == pytest.approx(whole.error, rel=1e-12)


def test_a_visit_costs_as_much_late_in_a_run_as_early(asked: list[int]) -> None:
    record = alternating(40)
    record.level(20)
    record = alternating(400)
    record.level(200)
    assert asked[0] == asked[1] <= inference.LEVEL_REACH + 1


def test_a_candidate_is_not_computed_twice_until_there_is_news(asked: list[int]) -> None:
    record = alternating(20)
    candidate = record.find(FAST)
    assert candidate is not None
    before = record.observe(candidate)
    computed = len(asked)
    assert record.observe(candidate) == before
    assert len(asked) == computed
    # The incumbent was slower right after it, so the candidate looks better.
    record.add(INCUMBENT, sample(20.0, 0.1))
    assert record.observe(candidate)[0] < before[0]


def test_a_candidate_is_computed_anew_in_every_round() -> None:
    record = alternating(20)
    candidate = record.find(FAST)
    assert candidate is not None
    for _ in range(int(inference.LEVEL_REACH) + 1):
        record.add(of(OTHER), sample(10.0, 0.1))
    before = record.observe(candidate)
    # These are out of its reach, but change what is known of the noise.
    for ms in (10.0, 12.0, 10.0, 12.0) * 8:
        record.add(INCUMBENT, sample(ms, 0.1))
    assert record.observe(candidate) == before
    record.close()
    assert record.observe(candidate)[1] > before[1]


def test_the_noise_is_that_of_all_visits_of_incumbents() -> None:
    record = alternating(60)
    logs = [one.log_time for one in record.visits if one.is_incumbent]
    assert record.noise() == inference.noise_between(logs)
    assert Record().noise() == inference.noise_between([])


def test_the_level_counts_in_steps_of_the_first_incumbent() -> None:
    record = alternating(2)
    record.adopt(0.5)
    record.add(INCUMBENT, sample(10.0, 0.1))
    assert record.usual().value == pytest.approx(record.level(4).value - 0.5)
