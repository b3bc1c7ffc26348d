"""Blocking collectives, which may go past the coordinator, give what handles give."""

from __future__ import annotations

import pytest
from rank_programs import at_once
from support.jobs.ranks import run_ranks
from support.tiers import long_too


@pytest.mark.parametrize("np", long_too(2, long=[1, 3, 8]))
def test_every_type(np: int) -> None:
    result = run_ranks(np, at_once.every_type)
    assert result.values == ([],) * np


@pytest.mark.parametrize("np", long_too(3, long=[2]))
@pytest.mark.parametrize("capacity", ["1024", "2"])
def test_what_only_the_ordinary_way_knows(np: int, capacity: str) -> None:
    env = {"HOROVOD_CACHE_CAPACITY": capacity}
    result = run_ranks(np, at_once.special_forms, env=env)
    assert result.values == ([],) * np


def test_mistakes_have_the_same_words() -> None:
    one, other = run_ranks(2, at_once.mistakes).values
    turns = 2
    for words in (one, other):
        assert len(words) == 8 * turns
        for turn in range(turns):
            columns, roots, types, operators, *alone = words[8 * turn : 8 * turn + 8]
            assert "Mismatched ALLGATHER tensor shapes" in columns
            assert "Mismatched BROADCAST root ranks" in roots
            assert "Mismatched data types" in types
            assert "Mismatched reduction operation" in operators
            assert all(w.startswith("HorovodInternalError") for w in (columns, roots, types))
            root, divisible, scalar, maximum = alone
            assert root.startswith("ValueError")
            assert "invalid root rank 2" in root
            assert "not divisible by the number of processes (2)" in divisible
            assert scalar.startswith("ValueError")
            assert "only supports AVERAGE and SUM" in maximum


def test_in_process_sets() -> None:
    assert run_ranks(3, at_once.in_sets).values == ([], [], [])
