"""Describing process sets, and numbering those of an init; no job runs here."""

from __future__ import annotations

import copy
import importlib.util
import os
import pickle
from collections.abc import Iterator
from itertools import combinations, islice

import numpy as np
import pytest

import hvdtune
from hvdtune.core import process_sets
from hvdtune.core.membership import remove_process_set
from hvdtune.core.process_sets import ProcessSet, global_process_set, id_of, static_ranks

RANKS = 20


@pytest.fixture(autouse=True)
def _no_job() -> Iterator[None]:
    yield
    process_sets.release()


def different_sets(count: int) -> list[ProcessSet]:
    return [ProcessSet(pair) for pair in islice(combinations(range(RANKS), 2), count)]


def test_as_many_sets_as_there_is_room_for() -> None:
    sets = different_sets(127)
    assert static_ranks(sets, RANKS) == [process_set.ranks for process_set in sets]


def test_too_many_sets_are_refused() -> None:
    with pytest.raises(ValueError, match=r"given 128 process sets.* room for 127"):
        static_ranks(different_sets(128), RANKS)


def test_duplicates_get_one_number() -> None:
    given = [ProcessSet([2, 1]), ProcessSet(range(3)), ProcessSet([1, 2]), global_process_set]
    assert static_ranks(given, 3) == [[1, 2]]


@pytest.mark.parametrize("ranks", [[], [0, 3], [-1, 0], [1, 1]])
def test_ranks_that_cannot_be(ranks: list[int]) -> None:
    with pytest.raises(ValueError, match="Horovod initialization failed: process set 1 of init"):
        static_ranks([ProcessSet([0, 1]), ProcessSet(ranks)], 3)


def test_any_iterable_of_ints_in_any_order() -> None:
    assert ProcessSet(iter((2, 0, 1))).ranks == [0, 1, 2]
    assert ProcessSet(range(2)).ranks == [0, 1]
    text = "ProcessSet(process_set_id=None, ranks=[0, 3], mpi_comm=None)"
    assert str(ProcessSet({3, 0})) == text


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([np.int64(0), 1], "must be ints"),
        ([0, True], "must be ints"),
        (["0"], "must be ints"),
        ([0.0], "must be ints"),
        (5, "an iterable of ranks or an mpi4py communicator, not from 5"),
        (None, "not from None"),
    ],
)
def test_what_is_no_set(ranks: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ProcessSet(ranks)


def test_without_mpi4py_the_message_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="mpi4py is not installed"):
        ProcessSet(object())
    with pytest.raises(ValueError, match="mpi4py is not installed"):
        hvdtune.init(comm=object())


def test_before_init() -> None:
    process_set = ProcessSet([0, 1])
    assert process_set.process_set_id is None
    assert process_set.size() is None
    assert process_set.rank() is None
    assert remove_process_set(process_set) is False
    assert remove_process_set(global_process_set) is False
    assert global_process_set.process_set_id == 0
    assert global_process_set.ranks == []
    for query in (global_process_set.size, global_process_set.rank, process_set.included):
        with pytest.raises(ValueError, match="has not been initialized"):
            query()
    with pytest.raises(ValueError, match="has not been initialized"):
        hvdtune.add_process_set([0])
    with pytest.raises(ValueError, match="has not been registered"):
        id_of(process_set)
    with pytest.raises(ValueError, match="takes a ProcessSet"):
        remove_process_set([0, 1])  # type: ignore[arg-type]


def test_a_copy_of_the_global_set_is_the_global_set() -> None:
    assert copy.deepcopy([global_process_set])[0] is global_process_set
    assert pickle.loads(pickle.dumps(global_process_set)) is global_process_set
    process_set = ProcessSet([0, 1])
    copied = copy.deepcopy(process_set)
    assert copied is not process_set
    assert str(copied) == str(process_set)


def test_dynamic_in_any_case_sets_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOROVOD_DYNAMIC_PROCESS_SETS", raising=False)
    assert process_sets.given_to_init("DynaMic") == []
    assert os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] == "1"


@pytest.mark.parametrize("given", ["static", 5, [[0, 1]], ProcessSet([0])])
def test_what_init_does_not_take(given: object) -> None:
    with pytest.raises(ValueError, match=r"init\(process_sets="):
        hvdtune.init(process_sets=given)  # type: ignore[arg-type]
    assert not hvdtune.is_initialized()
