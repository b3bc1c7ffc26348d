"""Paired comparisons: what is adopted, when it ends, and how often it errs."""

import math
import random

import pytest

from hvdtune.autotune.statistics import inference
from hvdtune.autotune.statistics.comparison import (
    CHECK_PAIRS,
    CLEAR,
    LOOKS,
    REPEATS,
    SURE_PAIRS,
    WIDE,
    Comparison,
    Finding,
    as_shares,
)
from hvdtune.autotune.statistics.inference import Estimate
from hvdtune.autotune.statistics.score import Sample


def sample(ms: float, error: float = 0.002) -> Sample:
    return Sample(10, ms, ms * error, 1e6, 1e3 / ms)


def comparison(noise: float = 0.002, most_pairs: int = LOOKS[-1]) -> Comparison:
    return Comparison(Estimate(0.0, noise, 8.0), noise, 0.99, 0.002, most_pairs)


def simulated(truth: float, noise: float, seed: int) -> Finding:
    rng = random.Random(seed)
    compared = comparison(noise)
    while True:
        candidate, incumbent = (10 * math.exp(rng.gauss(at, noise)) for at in (truth, 0.0))
        finding = compared.add(sample(candidate, noise), sample(incumbent, noise))
        if finding is not None:
            return finding


def test_a_clear_gain_is_found_at_the_first_look() -> None:
    compared = comparison()
    findings = [compared.add(sample(9.0 + 0.01 * at), sample(10.0)) for at in range(LOOKS[0])]
    assert findings[:-1] == [None] * (LOOKS[0] - 1)
    assert findings[-1] is not None
    assert findings[-1].faster
    assert findings[-1].gain == pytest.approx(-math.log(0.9025), abs=1e-3)
    assert 0 < findings[-1].margin < 0.02
    assert findings[-1].pairs == LOOKS[0]


def test_a_clear_loss_ends_at_the_first_look() -> None:
    compared = comparison()
    findings = [compared.add(sample(10.5 + 0.01 * at), sample(10.0)) for at in range(LOOKS[0])]
    assert findings[-1] is not None
    assert not findings[-1].faster


def test_candidate_and_incumbent_take_turns_in_going_first() -> None:
    compared = comparison()
    orders = []
    for _ in range(3):
        orders.append(compared.candidate_first)
        compared.add(sample(9.0), sample(10.0))
    assert orders == [True, False, True]


def test_it_says_which_pairs_lead_to_the_next_look() -> None:
    compared = comparison(0.02, most_pairs=LOOKS[1] + 1)
    told, last = [], []
    for at in range(LOOKS[1]):
        told.append(compared.words())
        last.append(compared.is_last)
        # Too rough to be significant before the last look, too good to be given up.
        compared.add(sample(9.7 if at % 2 else 10.2), sample(10.0))
    between = LOOKS[1] - LOOKS[0]
    first, second = ("pairs 1 to 6 of at most 18", "pairs 7 to 18 of at most 18")
    assert told == [first] * LOOKS[0] + [second] * between
    assert [at + 1 for at, is_last in enumerate(last) if is_last] == list(LOOKS[:2])


def test_a_rough_pair_is_measured_again_but_not_for_ever() -> None:
    compared = comparison()
    for _ in range(REPEATS):
        assert compared.add(sample(30.0, 0.3), sample(10.0)) is None
    assert compared.differences == []
    compared.add(sample(30.0, 0.3), sample(10.0))
    assert len(compared.differences) == 1


@pytest.mark.parametrize("most", [3, 10, 100])
def test_it_ends_within_the_pairs_that_are_left(most: int) -> None:
    compared = comparison(0.02, most)
    assert compared.looks[-1] <= most
    finding = None
    pairs = 0
    while finding is None:
        # Too good to be given up, too rough to be significant.
        pairs += 1
        finding = compared.add(sample(9.7 if pairs % 2 else 10.2, 0.02), sample(10.0, 0.02))
    assert pairs == finding.pairs <= compared.looks[-1]


def test_it_ends_between_looks_only_without_a_gain() -> None:
    """A gain that shows after the first look waits for the next one; one that vanishes does not."""
    compared, rough = comparison(noise=0.05), (1.08, 0.93)
    for at in range(LOOKS[1] - 1):
        ours = (9.6 if at < LOOKS[0] else 8.0) * rough[at % 2]
        assert compared.add(sample(ours, 0.05), sample(10.0, 0.05)) is None
    found = compared.add(sample(8.0 * rough[1], 0.05), sample(10.0, 0.05))
    assert found is not None
    assert found.faster

    compared, found = comparison(noise=0.05), None
    while found is None:
        pairs = len(compared.differences)
        ours = 9.6 if pairs < LOOKS[0] else 10.3
        found = compared.add(sample(ours * rough[pairs % 2], 0.05), sample(10.0, 0.05))
    assert not found.faster
    assert LOOKS[0] < found.pairs < LOOKS[1]
    assert found.pairs % CHECK_PAIRS == 0
    assert found.gain < found.margin


def test_chances_of_error_add_up_to_what_the_confidence_leaves() -> None:
    compared = comparison()
    spent = [compared._chance(look) for look in LOOKS]
    assert sum(spent) == pytest.approx(0.01)
    assert spent == sorted(spent)


def test_no_gain_is_adopted_as_rarely_as_the_confidence_says() -> None:
    runs = 400
    wrong = sum(simulated(0.0, 0.02, seed).faster for seed in range(runs))
    # At 99 % four are expected; twelve would be a chance of one in a thousand.
    assert wrong < 12
    assert sum(simulated(0.005, 0.02, seed).faster for seed in range(runs)) <= 2


def test_a_gain_worth_having_is_found_in_noise() -> None:
    found = [simulated(-0.03, 0.025, seed) for seed in range(100)]
    assert sum(finding.faster for finding in found) > 80
    assert all(finding.pairs <= LOOKS[-1] for finding in found)


def test_disturbed_pairs_do_not_hide_a_gain() -> None:
    """One in six takes half as long again; the incumbents were quiet, or looked so."""
    rng = random.Random(4)
    found = 0
    for _ in range(50):
        compared, finding = comparison(0.01), None
        while finding is None:
            ours, theirs = (
                at * math.exp(rng.gauss(0, 0.01)) * (1.5 if rng.random() < 1 / 6 else 1)
                for at in (9.5, 10.0)
            )
            finding = compared.add(sample(ours), sample(theirs))
        found += finding.faster
    assert found > 30


def test_slow_steps_now_and_then_are_not_traded_for_a_gain_in_the_others() -> None:
    """3 % faster, but every eighth sample takes half as long again: slower on the whole."""
    rng = random.Random(5)
    for _ in range(50):
        compared, finding = comparison(0.005), None
        while finding is None:
            slow = 1.5 if len(compared.differences) % 8 == 5 else 1.0
            ours = 9.7 * slow * math.exp(rng.gauss(0, 0.005))
            finding = compared.add(sample(ours), sample(10 * math.exp(rng.gauss(0, 0.005))))
        assert not finding.faster


def test_a_gain_that_few_pairs_tell_badly_is_looked_at_longer() -> None:
    """Beyond its margin, but the margin is most of it: so it was on a real job (42 % ± 40 %)."""
    compared = comparison(noise=0.002)
    findings = []
    for at in range(LOOKS[1]):
        # Much rougher than the incumbents were, so the pairs speak for themselves alone.
        findings.append(compared.add(sample(5.8 * (1.04, 0.96, 1.05, 0.95)[at % 4]), sample(10.0)))
    first = inference.paired(compared.differences[: LOOKS[0]], Estimate(0.0, 0.002, 8.0))
    margin = first.margin(1 - compared._chance(LOOKS[0]))
    assert CLEAR * -first.value < margin < -first.value
    assert findings[:-1] == [None] * (len(findings) - 1)
    found = findings[-1]
    assert found is not None
    assert found.faster
    assert found.pairs == LOOKS[1]
    assert found.margin < 0.3 * found.gain


def test_it_is_not_looked_at_for_ever() -> None:
    compared = comparison(noise=0.1)
    pairs = 0
    found = None
    while found is None:
        pairs += 1
        found = compared.add(sample(7.0 * (1.25, 0.8)[pairs % 2], 0.1), sample(10.0, 0.1))
    assert found.faster
    assert found.margin > max(WIDE, CLEAR * found.gain)
    assert found.pairs == pairs == SURE_PAIRS


def test_a_margin_that_is_not_wide_may_be_most_of_the_gain() -> None:
    compared = comparison(noise=0.03)
    findings = [
        compared.add(sample(8.8 * (1.02, 0.98)[at % 2]), sample(10.0)) for at in range(LOOKS[0])
    ]
    found = findings[-1]
    assert found is not None
    assert found.faster
    assert found.margin > CLEAR * found.gain


def test_a_gain_that_is_clear_from_the_first_is_not_looked_at_longer() -> None:
    compared = comparison(noise=0.002)
    findings = [compared.add(sample(8.0 + 0.02 * (at % 2)), sample(10.0)) for at in range(LOOKS[0])]
    assert findings[-1] is not None
    assert findings[-1].faster


@pytest.mark.parametrize("gain", [0.55, 0.05, -0.1])
def test_shares_are_those_of_the_step_time(gain: float) -> None:
    margin = 0.4 * abs(gain)
    share, least = as_shares(gain, margin, faster=True)
    assert share == pytest.approx(1 - math.exp(-gain))
    assert share - least == pytest.approx(1 - math.exp(-(gain - margin)))
    share, most = as_shares(gain, margin, faster=False)
    assert share + most == pytest.approx(1 - math.exp(-(gain + margin)))


def test_no_margin_is_too_large_to_be_told() -> None:
    assert as_shares(0.0, 2000.0, faster=False) == (0.0, 1.0)
