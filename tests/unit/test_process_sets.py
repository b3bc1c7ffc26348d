"""Numbering the process sets of an init."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, islice

import pytest

from hvdtune.core.process_sets import ProcessSet, assign, release

RANKS = 20


@pytest.fixture(autouse=True)
def _no_job() -> Iterator[None]:
    yield
    release()


def different_sets(count: int) -> list[ProcessSet]:
    return [ProcessSet(pair) for pair in islice(combinations(range(RANKS), 2), count)]


def test_as_many_sets_as_there_is_room_for() -> None:
    sets = different_sets(127)
    assert assign(sets, RANKS) == [process_set.ranks for process_set in sets]
    assert [process_set.process_set_id for process_set in sets] == list(range(1, 128))


def test_too_many_sets_are_refused() -> None:
    sets = different_sets(128)
    with pytest.raises(ValueError, match=r"given 128 process sets.* room for 127"):
        assign(sets, RANKS)
    assert {process_set.process_set_id for process_set in sets} == {None}
