from __future__ import annotations

import math

import pytest

from hvdtune.launch.elastic.exclusion import Exclusion
from hvdtune.launch.errors import LaunchError


def test_for_ever_without_a_range():
    exclusion = Exclusion()
    assert not exclusion.excludes("a", 0)
    assert exclusion.exclude("a", 5) == math.inf
    assert exclusion.excludes("a", 1e12)
    assert not exclusion.excludes("b", 6)
    assert exclusion.next_end(6) is None


@pytest.mark.parametrize("chance", [0.0, 0.25, 0.75])
def test_each_exclusion_lasts_about_twice_as_long(chance: float):
    low, high, now = 3.0, 100.0, 0.0
    exclusion = Exclusion((low, high), uniform=lambda: chance)
    for times in range(1, 40):
        expected = min(max(low * 2**times + chance * low, low), high)
        end = exclusion.exclude("a", now)
        assert end == now + expected
        assert exclusion.excludes("a", math.nextafter(end, 0))
        assert not exclusion.excludes("a", end)
        now = end


def test_the_longest_is_a_limit_of_the_first_too():
    assert Exclusion((1, 2), uniform=lambda: 0.9).exclude("a", 10) == 12


def test_one_that_is_excluded_already_stays_as_it_is():
    exclusion = Exclusion((1, 100), uniform=lambda: 0.0)
    assert [exclusion.exclude("a", now) for now in (0, 1, 2)] == [2, 2, 6]


def test_when_the_next_is_free():
    exclusion = Exclusion((1, 3600), uniform=lambda: 0.0)
    exclusion.exclude("a", 0)
    exclusion.exclude("a", 2)
    exclusion.exclude("b", 3)
    assert [exclusion.next_end(now) for now in (3, 5, 6)] == [5, 6, None]


@pytest.mark.parametrize("cooldown", [(1, 3600), (5, 5)])
def test_ranges_that_are_accepted(cooldown):
    Exclusion(cooldown)


@pytest.mark.parametrize("cooldown", [(0, 10), (-1, 10), (10, 5), (1, 3601), (math.nan, 5)])
def test_ranges_that_are_not(cooldown):
    with pytest.raises(LaunchError, match=r"--blacklist-cooldown-range .* from 1 to 3600"):
        Exclusion(cooldown)
