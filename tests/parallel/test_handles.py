"""Handles, threads, lifetimes of inputs, and extreme numbers of ranks, operations, elements.

HVDTUNE_TEST_LONG=1 adds tensors of more than 2^31 elements, which need 10 GB of memory.
"""

from __future__ import annotations

import ctypes
import signal
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from rank_programs import handles
from support.jobs.ranks import run_ranks
from support.tiers import EVERY, long_too

from hvdtune.core import operations


def test_several_threads_of_a_rank() -> None:
    assert run_ranks(3, handles.several_threads).values == ([], [], [])


@pytest.mark.long
def test_threads_of_a_rank_wake_each_other() -> None:
    result = run_ranks(2, handles.threads_that_need_each_other, 2000, timeout=60)
    assert result.values == ("done", "done")


def test_inputs_that_nobody_else_holds() -> None:
    assert run_ranks(2, handles.dropped_inputs).values == (0.0, 0.0)


@pytest.mark.parametrize("capacity", ["1024", "16", "0"])
def test_many_operations_in_flight(capacity: str) -> None:
    environment = {"HOROVOD_CACHE_CAPACITY": capacity}
    assert run_ranks(2, handles.many_in_flight, 3000, env=environment).values == (3000, 3000)


def test_poll_and_fetch() -> None:
    for first, again, text, second in run_ranks(2, handles.poll_and_fetch).values:
        assert first == second == [2.0] * 3
        assert again is None
        assert "was not created or has been cleared" in text


def test_unnamed_operations_match_by_kind_and_set() -> None:
    assert run_ranks(3, handles.unnamed_after_unequal_histories).values == ([3.0] * 2,) * 3


class Interrupted(Exception):
    pass


def test_a_signal_handler_that_raises_loses_no_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine has accepted it: its memory is kept, and its name is not used again."""
    # C code like the engine's `submit`: a signal comes, and Python handles it after the call, which
    # returns 0, the handle.
    submit = ctypes.pythonapi["PyErr_SetInterruptEx"]
    submit.argtypes = [ctypes.c_int, *[ctypes.py_object] * 13]
    engine = SimpleNamespace(submit=partial(submit, signal.SIGUSR1))
    monkeypatch.setattr(operations, "running_engine", lambda: engine)
    monkeypatch.setattr(operations, "_pending", {})
    monkeypatch.setattr(operations, "_unnamed", {})
    array = np.zeros(2)
    address = operations.array_address(array)
    inputs = [operations.Buffer(address, operations.DTYPES["float64"], array.shape, array)]

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(Interrupted):
            operations.allgather_async(inputs, name=None, finish=lambda completed: None)
    finally:
        signal.signal(signal.SIGUSR1, before)
    [pending] = operations._pending.values()
    assert pending.memory[0] is inputs
    assert operations.wire_name(operations.ALLGATHER, False, None, 0)[0] == "allgather.noname.2"


def test_an_operation_that_is_refused_gives_its_name_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise ValueError("refused")

    engine = SimpleNamespace(submit=refuse)
    monkeypatch.setattr(operations, "running_engine", lambda: engine)
    monkeypatch.setattr(operations, "_pending", {})
    monkeypatch.setattr(operations, "_unnamed", {})
    with pytest.raises(ValueError, match="refused"):
        operations.allgather_async([], name=None, finish=lambda completed: None)
    assert operations._pending == {}
    assert operations.wire_name(operations.ALLGATHER, False, None, 0)[0] == "allgather.noname.1"


def test_objects() -> None:
    expected = [{"rank": rank, "text": "x" * (1000 * rank)} for rank in range(3)]
    for seen in run_ranks(3, handles.objects).values:
        assert seen[:3] == expected
        assert seen[3] == expected


@pytest.mark.parametrize("np", long_too(16, long=[64]))
def test_many_ranks(np: int) -> None:
    """More ranks than any machine that runs the tests has cores."""
    for total, gathered in run_ranks(np, handles.small_job, timeout=240).values:
        assert total == sum(range(np))
        assert gathered == list(range(1, np, 2))


@pytest.mark.skipif(not EVERY, reason="needs 10 GB of memory: HVDTUNE_TEST_LONG=1")
def test_more_than_two_to_the_31_elements() -> None:
    assert run_ranks(2, handles.huge, 2**31 + 11, timeout=280).values == ([], [])
